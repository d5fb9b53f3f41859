"""All private names of torch that are in use, and those that this torch lacks."""

from __future__ import annotations

from typing import Final

from lockstitch.torch_internals import (
    autograd,
    calls,
    compiling,
    distributed,
    gradients,
    modes,
    modules,
    optimizers,
    owners,
    tensors,
)
from lockstitch.torch_internals.probing import Cost, Missing, Private

__all__ = ["PRIVATES", "Cost", "missing"]

PRIVATES: Final[tuple[Private, ...]] = (
    *modes.PRIVATES,
    *autograd.PRIVATES,
    *owners.PRIVATES,
    *tensors.PRIVATES,
    *modules.PRIVATES,
    *optimizers.PRIVATES,
    *gradients.PRIVATES,
    *calls.PRIVATES,
    *distributed.PRIVATES,
    *compiling.PRIVATES,
)


def missing(dearest: Cost = Cost.QUICK) -> list[Missing]:
    """Those that are not there, or fail probes up to this cost. Of the others it is only seen that
    they are there, where they can be found by name."""
    looked = [(private, private.look(dearest)[1]) for private in PRIVATES]
    return [Missing(private, fault) for private, fault in looked if fault]
