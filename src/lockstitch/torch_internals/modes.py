"""The modes that torch keeps for each thread: how many there are, and how one leaves them.

`lockstitch.modes` is what the rest of the house uses of this. That is asked on each call, so the
names are torch's own functions, bound once.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from lockstitch.torch_internals.probing import Cost, Names, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


@contextmanager
def _operator_mode() -> Iterator[object]:
    with resolve("torch.utils._python_dispatch.TorchDispatchMode")() as mode:
        yield mode


def _counts(new_mode: Callable[[], AbstractContextManager[object]]) -> Callable[[Any], bool]:
    def probe(length: Callable[[], int]) -> bool:
        before = length()
        with new_mode():
            return length() == before + 1

    return probe


def _counts_every_mode(length: Callable[[], int]) -> Callable[[Any], bool]:
    """Of a function that enters a mode for good."""

    def probe(push: Callable[[Any], object]) -> bool:
        mode, before = _mode_of(length), length()
        push(mode)
        is_entered = length() == before + 1
        if is_entered:
            _leave(length)
        return is_entered

    return probe


def _leaves_the_last(length: Callable[[], int]) -> Callable[[Any], bool]:
    def probe(pop: Callable[[], object]) -> bool:
        mode: Any = _mode_of(length)
        before = length()
        mode.__enter__()
        left = pop()
        is_left = length() == before
        if not is_left:
            mode.__exit__(None, None, None)
        return is_left and left is mode

    return probe


def _mode_of(length: Callable[[], int]) -> object:
    if length is len_function_stack:
        return TorchFunctionMode()
    return resolve("torch.utils._python_dispatch.TorchDispatchMode")()


def _leave(length: Callable[[], int]) -> None:
    name = "torch.overrides" if length is len_function_stack else "torch.utils._python_dispatch"
    resolve(f"{name}._pop_mode")()


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
    _counts(TorchFunctionMode),
)
len_dispatch_stack: Callable[[], int] = _names.take(
    "torch._C._len_torch_dispatch_stack",
    "count the modes of operators in which this thread is",
    _counts(_operator_mode),
)
pop_function_mode: Callable[[], Any] = _names.take(
    "torch.overrides._pop_mode",
    "leave the last mode of functions and return it",
    _leaves_the_last(len_function_stack),
)
push_function_mode: Callable[[Any], None] = _names.take(
    "torch.overrides._push_mode",
    "enter a mode of functions",
    _counts_every_mode(len_function_stack),
)
pop_dispatch_mode: Callable[[], Any] = _names.take(
    "torch.utils._python_dispatch._pop_mode",
    "leave the last mode of operators and return it",
    _leaves_the_last(len_dispatch_stack),
)
push_dispatch_mode: Callable[[Any], None] = _names.take(
    "torch.utils._python_dispatch._push_mode",
    "enter a mode of operators",
    _counts_every_mode(len_dispatch_stack),
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
PRIVATES = _names.seal()
