"""A private name of torch is taken here: found, tried, and replaced where it is not what it was.

    names = Names("quick copies of many tensors")
    copy_many = names.take(
        "torch._foreach_copy_", "copy each tensor of a list into one of another", _copies_each
    )
    PRIVATES = names.finish()

What `take` returns is the very thing that torch has, bound once: it costs nothing more to call.
Where this torch lacks it, or the probe is not content, it is what else will do (`otherwise`), or an
`Absent`, which raises as soon as it is used.
"""

from __future__ import annotations

import contextlib
from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch

from lockstitch.errors import UnsupportedTorchError
from lockstitch.versions import (
    RANGE,
    REQUIREMENT,
    refuse_old,
    tell_of_missing,
    tell_of_unknown,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


refuse_old(torch.__version__)  # all that needs torch imports this file first
tell_of_unknown(torch.__version__)


class Cost(IntEnum):
    """What a probe takes."""

    QUICK = 0
    """Microseconds: it runs when the name is taken."""
    THOROUGH = 1
    """Milliseconds, or torch's engine: for `lockstitch doctor`, and where torch is unknown."""
    SLOW = 2
    """Seconds: for the tests."""


class Private(NamedTuple):
    """A private name that is in use."""

    name: str
    """As a program would write it; `Tensor`, `Node` and `Module` stand for any object of these."""
    feature: str
    """What stands on it."""
    expected: str
    """What it has to do, after "it should"."""
    probe: Callable[[Any], object]
    """Tries it: true if it does that."""
    find: Callable[[], Any]
    cost: Cost
    within: Callable[[], AbstractContextManager[object]]
    """In which modes it is tried."""
    can_be_missed: bool
    """Whether the feature goes on without it, more slowly or with less."""

    def fault_of(self, thing: object) -> str:
        """What is wrong with `thing` under this name; empty if nothing is."""
        try:
            with self.within(), torch.enable_grad():
                return "" if self.probe(thing) else "does something else"
        except Exception as error:  # noqa: BLE001 - whatever it raises, this is not what is expected
            return f"raises {type(error).__name__} when tried: {error}"

    def look(self, dearest: Cost) -> tuple[Any, str]:
        """What torch has under this name, and what is wrong with it."""
        try:
            thing = self.find()
        except (AttributeError, ImportError):
            return None, "is missing"
        return thing, self.fault_of(thing) if self.cost <= dearest else ""


class Missing(NamedTuple):
    """A private name that this torch lacks, or that does something else here."""

    private: Private
    fault: str

    def __str__(self) -> str:
        private = self.private
        return f"{private.name} {self.fault}; it should {private.expected}"

    @property
    def consequence(self) -> str:
        """What that means for programs."""
        how = "does without it" if self.private.can_be_missed else "off"
        return f"{self.private.feature}: {how}"


class Absent:
    """Stands for what this torch does not have. Whoever uses it is told."""

    def __init__(self, missing: Missing) -> None:
        self._lockstitch_missing = missing

    def __repr__(self) -> str:
        return f"<Absent: {self._lockstitch_missing}>"

    def _refuse(self, *_arguments: object, **_named: object) -> NoReturn:
        missing = self._lockstitch_missing
        raise UnsupportedTorchError(
            f"with torch {torch.__version__} there is no {missing.private.feature}: {missing}. "
            f"Install a torch that Lockstitch supports ({RANGE}); `lockstitch doctor` says more"
        )

    __call__ = __instancecheck__ = __contains__ = __getitem__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)  # somebody looks at what kind of thing this is
        self._refuse()


class Names:
    """Takes the names on which one feature stands. `is_base`: without it there is no Lockstitch."""

    def __init__(
        self,
        feature: str,
        *,
        is_base: bool = False,
        within: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._feature = feature
        self._is_base = is_base
        self._within = within
        self._taken: list[Private] = []
        self._missing: list[Missing] = []

    def take(
        self,
        name: str,
        expected: str,
        probe: Callable[[Any], object],
        *,
        reader: Any = None,
        otherwise: Any = None,
        cost: Cost = Cost.QUICK,
    ) -> Any:
        """What torch has under this name; `reader` is what reads it of an object, where it is an
        attribute of one. `otherwise` does as well, if need be."""

        def find() -> Any:
            return resolve(name) if reader is None else reader

        private = Private(
            name, self._feature, expected, probe, find, cost, self._within, otherwise is not None
        )
        self._taken.append(private)
        thing, fault = private.look(Cost.QUICK)
        if not fault:
            return thing
        missing = Missing(private, fault)
        self._missing.append(missing)
        return Absent(missing) if otherwise is None else otherwise

    def finish(self) -> tuple[Private, ...]:
        """All that were taken. Raises `ImportError` if the base lacks any; of others that a torch
        which nobody knows yet lacks, it warns."""
        fatal = [each for each in self._missing if not each.private.can_be_missed]
        if fatal and self._is_base:
            raise ImportError(
                f"Lockstitch cannot work with torch {torch.__version__}: "
                f"{'; '.join(map(str, fatal))}. Everything stands on this ({self._feature}). "
                f"Install a torch that Lockstitch supports ({RANGE}): pip install '{REQUIREMENT}'"
            )
        tell_of_missing(torch.__version__, [(each, each.consequence) for each in self._missing])
        return tuple(self._taken)


def resolve(name: str) -> Any:
    """What a dotted name, which begins with `torch`, stands for."""
    thing: Any = torch
    path = "torch"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        try:
            thing = getattr(thing, part)
        except AttributeError:
            thing = import_module(path)  # a module that nobody has imported yet
    return thing
