"""How functions are named on the wire.

A function that a module holds travels as "module:qualified name", once per connection; from then on
a small number stands for it. Everything else that can be called (closures, bound methods, partial
objects, instances) travels by value, together with the arguments.
"""

from __future__ import annotations

import importlib
import sys
import threading
import types
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.errors import SerializationError
from lockstitch.imports import IMPORTS
from lockstitch.memory.waiting import DurationEstimate
from lockstitch.torch_internals.names import FUNCTIONS_OF_C
from lockstitch.wire.unpickling import missing_here

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.attach.recorder import Noted
    from lockstitch.trust.registry import Registry

BY_VALUE: Final = 0
"""The number of a function that travels with its arguments."""

TO_HERE: Final = "to_here"
"""What stands for a function in a request for a reference's value."""

QUICK_SECONDS: Final = 100e-6
SHORT_SECONDS: Final = 500e-6
QUICK_STREAK: Final = 8
_LONGEST_STREAK: Final = 2 * QUICK_STREAK
_COST_OF_A_LAPSE: Final = 4
_FAR_TOO_LONG: Final = 10

# Where builtins live that do not say it themselves.
_HOMES_OF_BUILTINS: Final = (
    "torch",
    "torch.nn.functional",
    FUNCTIONS_OF_C,
    "builtins",
    "operator",
    "math",
)
_NAMED_TYPES: Final = (
    types.FunctionType,
    types.BuiltinFunctionType,
    type,
)


def qualified_name(function: Callable[..., Any]) -> str | None:
    """The name `module:qualname` under which this very object can be found again, or None."""
    if isinstance(function, torch.jit.ScriptFunction):
        home, _, name = function.qualified_name.removeprefix("__torch__.").rpartition(".")
        return f"{home}:{name}" if _find(home, name) is function else None
    if not isinstance(function, _NAMED_TYPES):
        return None
    module: str | None = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", "")
    if module is not None and "<" not in name and _find(module, name) is function:
        return f"{module}:{name}"
    if isinstance(function, types.BuiltinFunctionType):
        for home in _HOMES_OF_BUILTINS:
            if _find(home, function.__name__) is function:
                return f"{home}:{function.__name__}"
    return None


def as_called(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None
) -> tuple[str, Callable[..., Any] | None, tuple[Any, ...], dict[str, Any]]:
    """A call as the user wrote it, for messages: the function's name, what of it is the user's,
    and the arguments. A function of ours that makes a call for the user has an `as_called`."""
    ours = getattr(function, "as_called", None)
    if ours is not None:
        name, args, kwargs = ours(*args, **(kwargs or {}))
        return name, None, args, kwargs or {}
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return name if isinstance(name, str) else repr(function), function, args, kwargs or {}


def name_of(what: object) -> str:
    """How messages name a function, or whatever else was asked for: as its module does, where that
    has it (`torch:mul`), and not the class that made it (`torch:_VariableFunctionsClass.mul`)."""
    module, name = getattr(what, "__module__", None), getattr(what, "__qualname__", None)
    if name is None:
        return str(what)
    if not module:
        return str(name)
    short = str(name).rpartition(".")[2]
    return f"{module}:{short if _find(module, short) is what else name}"


def _find(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _imported(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def resolve(qualified: str) -> Callable[..., Any]:
    """The function of that name here; imports its module when needed.

    Raises `SerializationError` when there is none.
    """
    module, _, name = qualified.partition(":")
    try:
        found: Any = IMPORTS.find(module, name, _imported)
    except (ImportError, AttributeError) as error:
        raise missing_here(f"{qualified} cannot be found here", error) from error
    if not callable(found):
        raise SerializationError(f"{qualified} is no function on the callee")
    return found  # type: ignore[no-any-return]


class CallEstimate(DurationEstimate):
    """A function that the receiver knows by a number, and how long answers are waited for."""

    __slots__ = ("noted", "number")

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.noted: Noted | None = None
        """What these calls are noted with, once somebody has looked on."""


class OutgoingFunctions:
    """The numbers that one connection's receiver knows. A definition is sent while holding
    `defining`, since it must leave before any use of its number. After `limit` of them, and for all
    others, the definition goes along each time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.sent: dict[Callable[..., Any], CallEstimate] = {}
        """The functions whose definition has left."""
        self.defining = threading.Lock()

    def define(self, function: Callable[..., Any]) -> tuple[int, bytes | None]:
        """The number for `function` and, until `mark_sent`, the definition that must go with it."""
        try:
            known = self.sent.get(function)
        except TypeError:  # not hashable, hence not held by any module
            return BY_VALUE, None
        if known is not None:
            return known.number, None
        qualified = qualified_name(function)
        if qualified is None:
            return BY_VALUE, None
        if len(self.sent) >= self._limit:
            return -1, qualified.encode()
        return len(self.sent) + 1, qualified.encode()

    def mark_sent(self, function: Callable[..., Any], number: int) -> None:
        """The definition has left: from now on the number alone will do."""
        if number > 0:
            self.sent[function] = CallEstimate(number)


class KnownFunction:
    """A function that a peer has named; `streak` counts how often in a row it was quick, and
    `short_streak` how often it was at least short.

    A little slower now and then is not held against it, for the machine may be busy: that costs a
    few runs of the streak. Far slower costs all of it.
    """

    __slots__ = ("function", "noted", "qualified", "short_streak", "streak")

    def __init__(self, qualified: str) -> None:
        self.qualified = qualified
        self.function: Callable[..., Any] | None = None
        self.noted: Noted | None = None
        """What requests of it are noted with, once somebody has looked on."""
        self.streak = self.short_streak = 0

    @property
    def is_quick(self) -> bool:
        """Whether the next run, too, can be expected to be over at once."""
        return self.streak >= QUICK_STREAK

    @property
    def is_short(self) -> bool:
        """Whether the next run can be expected to be over sooner than another thread is awake."""
        return self.short_streak >= QUICK_STREAK

    def note(self, seconds: float) -> None:
        """A run has taken so long."""
        if seconds < QUICK_SECONDS and self.streak == _LONGEST_STREAK:
            return  # the other one cannot be shorter
        self.streak = _continued(self.streak, seconds, QUICK_SECONDS)
        self.short_streak = _continued(self.short_streak, seconds, SHORT_SECONDS)

    def resolved(self, allowed: Registry | None = None) -> Callable[..., Any]:
        """The function itself, which must be one of `allowed`; where nothing is said about that,
        the first use may import its module."""
        if self.function is None and allowed is not None:
            module, _, name = self.qualified.partition(":")
            self.function = allowed.function(module, name)
        elif self.function is None:
            self.function = resolve(self.qualified)
        return self.function


def _continued(streak: int, seconds: float, limit: float) -> int:
    """Returns how long a streak of runs below `limit` is after another run, of `seconds`."""
    if seconds < limit:
        return streak + 1 if streak < _LONGEST_STREAK else streak
    return max(0, streak - _COST_OF_A_LAPSE) if seconds < _FAR_TOO_LONG * limit else 0
