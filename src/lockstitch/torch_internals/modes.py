"""The modes that torch keeps for each thread: how many there are, and how one leaves them.

`lockstitch.modes` is what the rest of the house uses of this. That is asked on each call, so the
names are torch's own functions, bound once.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad
from torch.overrides import BaseTorchFunctionMode

from lockstitch.torch_internals.probing import Cost, Names, resolve

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


def _function_mode() -> Any:
    return BaseTorchFunctionMode()


def _operator_mode() -> Any:
    return resolve("torch.utils._python_dispatch.TorchDispatchMode")()


def _counts(new_mode: Callable[[], Any]) -> Callable[[Any], bool]:
    def probe(length: Callable[[], int]) -> bool:
        before = length()
        with new_mode():
            return length() == before + 1

    return probe


def _enters(
    length: Callable[[], int], new_mode: Callable[[], Any], leave: Callable[[], Any]
) -> Callable[[Any], bool]:
    def probe(push: Callable[[Any], object]) -> bool:
        mode, before = new_mode(), length()
        push(mode)
        return length() == before + 1 and leave() is mode

    return probe


def _leaves(
    length: Callable[[], int], new_mode: Callable[[], Any], push: str
) -> Callable[[Any], bool]:
    """What was left is entered again by the function named `push` before the mode's own end: that
    takes back what else it has noted, as that torch compiles nothing meanwhile."""

    def probe(pop: Callable[[], object]) -> bool:
        mode, before = new_mode(), length()
        with mode:
            popped = pop()
            is_left = length() == before
            if is_left:
                resolve(push)(mode)
        return popped is mode and is_left

    return probe


def _in_transform(look: Callable[[torch.Tensor], object]) -> tuple[object, object]:
    """What `look` sees outside of a transform of functions, and inside."""
    inside: list[object] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        inside.append(look(x))
        return x

    torch.vmap(function)(torch.ones(1))
    return look(torch.ones(1)), inside[0]


def _tells_transforms(peek: Callable[[], object]) -> bool:
    outside, inside = _in_transform(lambda _x: peek())
    return outside is None and inside is not None


def _tells_wrapped_tensors(is_wrapped: Callable[[torch.Tensor], bool]) -> bool:
    return _in_transform(is_wrapped) == (False, True)


def _clears_transforms(clear: Callable[[], AbstractContextManager[object]]) -> bool:
    def look(_x: torch.Tensor) -> tuple[bool, bool]:
        with clear():
            cleared = peek_interpreter_stack() is None
        return cleared, peek_interpreter_stack() is not None

    return _in_transform(look)[1] == (True, True)


_names = Names("everything: the modes of a thread are looked at on each call", is_base=True)
len_function_stack: Callable[[], int] = _names.take(
    "torch._C._len_torch_function_stack",
    "count the modes of functions in which this thread is",
    _counts(_function_mode),
)
len_dispatch_stack: Callable[[], int] = _names.take(
    "torch._C._len_torch_dispatch_stack",
    "count the modes of operators in which this thread is",
    _counts(_operator_mode),
)
pop_function_mode: Callable[[], Any] = _names.take(
    "torch.overrides._pop_mode",
    "leave the last mode of functions and return it",
    _leaves(len_function_stack, _function_mode, "torch.overrides._push_mode"),
)
push_function_mode: Callable[[Any], None] = _names.take(
    "torch.overrides._push_mode",
    "enter a mode of functions",
    _enters(len_function_stack, _function_mode, pop_function_mode),
)
pop_dispatch_mode: Callable[[], Any] = _names.take(
    "torch.utils._python_dispatch._pop_mode",
    "leave the last mode of operators and return it",
    _leaves(len_dispatch_stack, _operator_mode, "torch.utils._python_dispatch._push_mode"),
)
push_dispatch_mode: Callable[[Any], None] = _names.take(
    "torch.utils._python_dispatch._push_mode",
    "enter a mode of operators",
    _enters(len_dispatch_stack, _operator_mode, pop_dispatch_mode),
)
peek_interpreter_stack: Callable[[], object] = _names.take(
    "torch._C._functorch.peek_interpreter_stack",
    "return None outside of a transform of functions, and only there",
    _tells_transforms,
    cost=Cost.THOROUGH,
)
is_functorch_wrapped_tensor: Callable[[torch.Tensor], bool] = _names.take(
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "tell the tensors of a transform of functions from others",
    _tells_wrapped_tensors,
    cost=Cost.THOROUGH,
)
temporarily_clear_interpreter_stack: Callable[[], AbstractContextManager[Any]] = _names.take(
    "torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack",
    "leave all transforms of functions, and enter them again",
    _clears_transforms,
    cost=Cost.THOROUGH,
)


def _is_forward_mode() -> bool:
    return forward_ad._current_level >= 0


def _tells_levels(is_forward_mode: Callable[[], bool]) -> bool:
    outside = is_forward_mode()
    with forward_ad.dual_level():
        return is_forward_mode() is True and outside is False


_forward = Names(
    "refusing to send tensors whose tangents would be lost", within=contextlib.nullcontext
)
is_forward_mode: Callable[[], bool] = _forward.take(
    "torch.autograd.forward_ad._current_level",
    "be 0 or more within a level of forward-mode differentiation, and negative outside of all",
    _tells_levels,
    reader=_is_forward_mode,
    otherwise=lambda: True,
)
PRIVATES = (*_names.finish(), *_forward.finish())
