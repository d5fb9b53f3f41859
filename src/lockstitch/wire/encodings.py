"""How values may be encoded, and what the pickler of a worker knows.

Five encodings, the cheapest that fits: nothing at all for None, one extracted tensor alone,
`marshal` for flat tuples and lists of exactly plain values and tensors, the same with instances
of registered types among them, and pickle protocol 5 for the rest.

Higher floors teach the pickler their own types through a `PicklingRegistry`.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

if TYPE_CHECKING:
    from lockstitch.ids import WorkerId
    from lockstitch.trust.registry import Registry

T = TypeVar("T")
Item = torch.Tensor | memoryview | None
"""What can be extracted from a value."""
Records = Callable[[], bool]
"""Says whether autograd records now that tensors are sent."""

NOTHING: Final = 0
ONE_TENSOR: Final = 1
MARSHAL: Final = 2
PICKLE: Final = 3
FLAT_WITH_OWN: Final = 4

CARRY_OWN: Final = (PICKLE, FLAT_WITH_OWN)
"""The encodings in which instances of registered types may be."""

# What the most frequent tuples are in marshal: one tensor, two, and the same one twice.
ONE_ITEM: Final = marshal.dumps((...,))
TWO_ITEMS: Final = marshal.dumps((..., ...))
ONE_ITEM_TWICE: Final = marshal.dumps((..., (0,)))


class PickleSession:
    """The state of pickling one value; it collects what is extracted from it."""

    __slots__ = ("_undo", "items", "kept", "leaf_ids", "plain", "records", "to")

    def __init__(
        self, to: WorkerId | None, kept: list[object] | None, *, records: Records | None = None
    ) -> None:
        self.to = to
        self.kept = kept
        """Takes what the sender will keep until the value was answered; None: nothing is kept."""
        self.records = records
        """Says whether autograd records that tensors are sent, so that gradients come back to them;
        None: it does not. Asked only where something hangs on it."""
        self.items: list[Item] = []
        self.plain: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Instances of subclasses, and the plain tensors that were extracted for them."""
        self.leaf_ids: set[int] = set()
        """Ids of parameters that belong to a pickled module and so stay leaves."""
        self._undo: list[Callable[[], None]] = []

    def keep_plain_leaves(self) -> None:
        """Lets the plain tensors that stand for leaves of other types stay leaves, too."""
        for tensor, plain in self.plain:
            if id(tensor) in self.leaf_ids:
                self.leaf_ids.add(id(plain))

    def will_undo(self, undo: Callable[[], None]) -> None:
        """A reducer is about to do something that `undo` takes back, be it done or not: called if
        the pickling fails, or if the message turns out later to be none that can be sent."""
        if self.kept is not None and not self._undo:
            self.kept.append(TakeBack(self._undo))
        self._undo.append(undo)

    def take_back(self) -> None:
        """The pickling has failed."""
        TakeBack(self._undo)()


class TakeBack:
    """Kept with what a request keeps: takes back what its making has begun, if it never leaves."""

    def __init__(self, undo: list[Callable[[], None]]) -> None:
        self._undo = undo

    def __call__(self) -> None:
        for undo in self._undo:
            undo()


class UnpickleSession:
    """The state of unpickling one value; `received` collects what must be confirmed before the
    value is used."""

    __slots__ = ("received", "sender")

    def __init__(self, sender: WorkerId | None) -> None:
        self.sender = sender
        self.received: list[Any] = []


Reduce = Callable[[Any, PickleSession], tuple[Any, ...]]
Rebuild = Callable[..., Any]


Find = Callable[[str, str, Callable[[str, str], Any]], Any]
"""Finds what a module holds under a name, by what the unpickler itself would find it by, which may
import the module."""


def _find(module: str, name: str, find: Callable[[str, str], Any]) -> Any:
    return find(module, name)


class PicklingRegistry:
    """A registry of how instances of certain types cross the wire, by exact type. Each worker has
    one."""

    def __init__(self) -> None:
        self.reducers: dict[type, tuple[str, Reduce]] = {}
        self.rebuilders: dict[str, Rebuild] = {}
        self.allowed: Registry | None = None
        """What peers may name in what they send; None: anything."""
        self.find: Find = _find
        """How a function or class is found that they name, where they may name anything."""

    def register(
        self,
        cls: type[T],
        reduce: Callable[[T, PickleSession], tuple[Any, ...]],
        rebuild: Callable[..., T],
    ) -> None:
        """Instances of exactly `cls` cross as `reduce(instance, session)`, and arrive as
        `rebuild(session, *state)`."""
        tag = cls.__qualname__
        if tag in self.rebuilders:
            raise ValueError(f"a type named {tag!r} is registered already")
        self.reducers[cls] = (tag, reduce)
        self.rebuilders[tag] = rebuild
