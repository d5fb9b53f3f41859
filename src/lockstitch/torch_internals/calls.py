"""What is private to torch of futures and of its registry of operators."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.modes import plain_modes
from lockstitch.torch_internals.probing import Cost, Names

if TYPE_CHECKING:
    from collections.abc import Callable


def _is_base_of_futures(kind: type) -> bool:
    return issubclass(torch.futures.Future, kind) and not issubclass(torch.Tensor, kind)


def _calls_at_once(add_done_callback: Callable[[Any, Callable[[Any], None]], object]) -> bool:
    """Whether it calls in the thread that completes the future, and at once if it is complete."""
    future: torch.futures.Future[int] = torch.futures.Future()
    seen: list[object] = []

    def note(done: torch.futures.Future[int]) -> None:
        seen.append((done.value(), threading.get_ident()))

    add_done_callback(future, note)
    if seen:
        return False
    future.set_result(7)
    add_done_callback(future, note)
    return seen == [(7, threading.get_ident())] * 2


def _knows_the_end(is_done: Callable[[Any], bool]) -> bool:
    future: torch.futures.Future[int] = torch.futures.Future()
    before = is_done(future)
    future.set_result(7)
    return before is False and is_done(future) is True


def _raises_what_it_is_told(set_function: Callable[[Any, Callable[[Any], Any]], object]) -> bool:
    future: torch.futures.Future[Any] = torch.futures.Future()

    def unwrap(value: object) -> None:
        raise KeyError(value)

    set_function(future, unwrap)
    future.set_result(7)
    try:
        future.wait()
    except KeyError as error:
        return error.args == (7,)
    return False


_futures = Names("calls and their futures", is_base=True, within=plain_modes)
PlainFuture: type = _futures.take(
    "torch._C.Future",
    "be what torch.futures.Future derives from",
    _is_base_of_futures,
)
add_done_callback: Callable[[Any, Callable[[Any], Any]], None] = _futures.take(
    "torch._C.Future.add_done_callback",
    "have a function called by whoever completes a future",
    _calls_at_once,
)
is_done: Callable[[Any], bool] = _futures.take(
    "torch._C.Future.done",
    "tell whether a future is completed",
    _knows_the_end,
)
set_unwrap_function: Callable[[Any, Callable[[Any], Any]], None] = _futures.take(
    "torch._C.Future._set_unwrap_func",
    "have a function look at the result of a future, and raise it, when it is asked for",
    _raises_what_it_is_told,
)


def _names_operators(name_of: Callable[[Any], str | None]) -> bool:
    return name_of(torch.add) == "aten::add" and name_of(len) != name_of(torch.add)


def _explains(operation_of: Callable[[str], Any]) -> bool:
    operator, _ = operation_of("aten::add")
    try:
        operator("no tensor", [])
    except RuntimeError as error:
        return "failed to match any schema" in str(error)
    return False


_operators = Names("the registry's words for arguments that an operator does not take")
find_operator: Callable[[Any], str | None] = _operators.take(
    "torch.jit._builtins._find_builtin",
    "return the name under which a function is in the registry of operators",
    _names_operators,
    otherwise=lambda _function: None,
)
operation_of: Callable[[str], Any] = _operators.take(
    "torch._C._jit_get_operation",
    "return what calls an operator by the registry, and says which schemas do not match",
    _explains,
    cost=Cost.THOROUGH,
)
PRIVATES = (*_futures.finish(), *_operators.finish())
