"""Automatic mixed precision of this thread, as a value."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import torch

from lockstitch.devices.accelerators import kinds

if TYPE_CHECKING:
    from collections.abc import Iterator


class Autocast(NamedTuple):
    """In what autocast a thread is: plain values, which cross the wire."""

    dtypes: tuple[tuple[str, torch.dtype], ...]
    """The kinds of device it is on for, each with its dtype."""
    keeps_casts: bool
    """Whether casts of weights are kept until its end."""


def current_autocast() -> Autocast:
    """The autocast that this thread is in."""
    dtypes = [
        (kind, torch.get_autocast_dtype(kind))
        for kind in kinds()
        if torch.is_autocast_enabled(kind)
    ]
    return Autocast(tuple(dtypes), torch.is_autocast_cache_enabled())


@contextlib.contextmanager
def within_autocast(autocast: Autocast) -> Iterator[None]:
    """Within, this thread is in that autocast, and in no other. Kinds of device that this machine
    lacks are left out: nothing is computed on them."""
    wanted = dict(autocast.dtypes)
    with contextlib.ExitStack() as stack:
        for kind in kinds():
            if kind in wanted or torch.is_autocast_enabled(kind):
                dtype = wanted.get(kind, torch.get_autocast_dtype(kind))
                stack.enter_context(
                    torch.autocast(
                        kind,
                        dtype=dtype,
                        enabled=kind in wanted,
                        cache_enabled=autocast.keeps_casts,
                    )
                )
        yield
