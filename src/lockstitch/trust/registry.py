"""What peers may name: registered functions and classes, and nothing else.

Without a registry whoever belongs to the job can run any code on any of its workers, as with
PyTorch's RPC. With one (`registry=True`) a peer can call the functions that somebody has
registered, make instances of the classes, and call their public methods; what it sends is read by
an unpickler that knows no other names.

    @rpc.register
    def forward(batch): ...

Registering is a declaration of the code, like `copyreg`'s: it holds for the process, and means
nothing to workers without a registry.
"""

from __future__ import annotations

import builtins
import datetime
import types
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

from lockstitch import errors
from lockstitch.errors import SerializationError
from lockstitch.ids import GlobalId, WorkerId, WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")

_CODE: Final = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def _home(thing: object) -> tuple[str, str]:
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name:
        raise TypeError(
            f"{thing!r} has no name by which a peer could call it: register functions and classes "
            "that a module holds"
        )
    return module, name


def _harmless() -> dict[tuple[str, str], object]:
    """Returns what every registry lets pass: making one of these runs nobody's code and takes no
    more memory than its parts. (Not `range` nor `list`: a few bytes would ask for any amount of
    it.)"""
    plain: list[Any] = [complex, slice, OrderedDict, deque, torch.Size, torch.device]
    plain += [datetime.date, datetime.time, datetime.datetime, datetime.timedelta]
    plain += [datetime.timezone, WorkerInfo, WorkerId, GlobalId]
    plain += [each for each in vars(errors).values() if isinstance(each, type)]
    builtin = vars(builtins).values()
    plain += [each for each in builtin if isinstance(each, type) and issubclass(each, Exception)]
    named = {_home(each): each for each in plain}
    dtypes = {name: each for name, each in vars(torch).items() if isinstance(each, torch.dtype)}
    return {**named, **{("torch", name): each for name, each in dtypes.items()}}


class Registry:
    """Functions and classes by name; `things` are registered at once."""

    def __init__(self, things: Iterable[object] = ()) -> None:
        self._things: dict[tuple[str, str], object] = {}
        self._harmless = _harmless()
        for thing in things:
            self.register(thing)

    def __repr__(self) -> str:
        return f"<Registry of {len(self._things)}>"

    def __len__(self) -> int:
        return len(self._things)

    def register(self, thing: T, name: str | None = None) -> T:
        """Lets peers call a function, or make and use instances of a class; returns it, so it is a
        decorator too. `name` is "module:qualified name", for what does not know its own. Raises
        `TypeError` for what has no name, `ValueError` where another thing has it."""
        home = _home(thing) if name is None else tuple(name.split(":", 1))
        if not callable(thing):
            raise TypeError(f"{thing!r} is neither a function nor a class")
        known = self._things.setdefault((home[0], home[1]), thing)
        if known is not thing and not _is_reloaded(known, thing):
            raise ValueError(f"{home[0]}:{home[1]} is registered already, as {known!r}")
        self._things[home[0], home[1]] = thing
        return thing

    def function(self, module: str, name: str) -> Callable[..., Any]:
        """The function or class that a peer calls. Raises `SerializationError` where it may not."""
        found = self._things.get((module, name)) or _needed.get((module, name))
        if found is None:
            raise SerializationError(
                f"{module}:{name} is not registered on this worker, which calls only what is "
                "(registry=True): register it there by lockstitch.rpc.register, as a decorator, or "
                "by a call where it is somebody else's"
            )
        return found  # type: ignore[return-value]

    def part(self, module: str, name: str) -> Any:
        """Returns the function or class that a peer names in values that it sends. Raises
        `SerializationError` where it may not."""
        found = self._harmless.get((module, name))
        return self.function(module, name) if found is None else found

    def holds(self, thing: object) -> bool:
        """Returns whether that very function or class is registered."""
        known = (*self._things.values(), *_needed.values())
        return any(each is thing for each in known)

    def check_callee(self, thing: object) -> None:
        """Raises `SerializationError` unless a peer may call what it has sent: a registered
        function, or an instance of a registered class."""
        if not self.holds(thing) and not self.holds(type(thing)):
            raise SerializationError(
                f"a {type(thing).__qualname__} that is not registered may not be called on this "
                "worker (registry=True)"
            )

    def check_method(self, value: object, name: str) -> None:
        """Raises `SerializationError` unless a peer may call the method of a value that this worker
        keeps: a public one, or `__call__`, of an instance of a registered class."""
        cls = type(value)
        if not self.holds(cls) or (name.startswith("_") and name != "__call__"):
            raise SerializationError(
                f"{name!r} of a {cls.__qualname__} may not be called on this worker, where peers "
                "call public methods of registered classes only (registry=True)"
            )


def _is_reloaded(known: object, thing: object) -> bool:
    """Returns whether one is what a reloaded module has made in place of the other."""
    return isinstance(known, _CODE) and type(known) is type(thing)


_needed: Final[dict[tuple[str, str], object]] = {}
"""Lockstitch's own functions for its messages to itself: in every registry."""


def needed(thing: T) -> T:
    """Marks a function as one of them."""
    _needed[_home(thing)] = thing
    return thing


DECLARED: Final = Registry()
"""What the modules of this process have declared."""

register = DECLARED.register
