"""The modes of torch that a thread may be in, and work of ours that must not be touched by them.

A program that calls us may be in inference mode, under a default device, in a fake-tensor mode or a
mode of its own, inside a transform of functions. All of these change what torch does in this
thread: tensors made there come without versions, without memory, or on another device. But what we
make while a program waits may be kept for its next step, or belong to another thread that waits for
the same. So such work is done *in plain modes*, whoever happens to do it. What the program gets
back are ordinary tensors, of which everything can be done.

Whether gradients are recorded is no such mode: it stays as it was.

Where another thread, or another worker, is to run as this thread would, it takes its `Modes` over.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import torch

from lockstitch.devices import accelerators
from lockstitch.devices.kinds import META
from lockstitch.torch_internals.modes import (
    is_functorch_wrapped_tensor,
    len_dispatch_stack,
    len_function_stack,
    peek_interpreter_stack,
    pop_dispatch_mode,
    pop_function_mode,
    push_dispatch_mode,
    push_function_mode,
    temporarily_clear_interpreter_stack,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


P = ParamSpec("P")
T = TypeVar("T")

_is_inference = torch.is_inference_mode_enabled
_ORDINARY = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def are_plain() -> bool:
    """Whether this thread is in no mode that changes what tensors are made: 0.2 µs."""
    return not (
        _is_inference()
        or len_function_stack()
        or len_dispatch_stack()
        or peek_interpreter_stack() is not None
    )


@contextlib.contextmanager
def plain_modes() -> Iterator[None]:
    """Within, this thread is in none of them."""
    is_grad_enabled = torch.is_grad_enabled()
    with contextlib.ExitStack() as stack:
        for length, pop, push in (
            (len_function_stack, pop_function_mode, push_function_mode),
            (len_dispatch_stack, pop_dispatch_mode, push_dispatch_mode),
        ):
            for _ in range(length()):
                stack.callback(push, pop())
        if peek_interpreter_stack() is not None:
            stack.enter_context(temporarily_clear_interpreter_stack())
        if _is_inference():
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.set_grad_enabled(is_grad_enabled))
        yield


def in_plain_modes(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, run in plain modes whoever calls it."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if are_plain():
            return function(*args, **kwargs)
        with plain_modes():
            return function(*args, **kwargs)

    return run


@dataclass(frozen=True)
class Modes:
    """The modes of one thread, to be taken over by another: grad mode, inference mode, autocast
    with its dtype on the CPU and the accelerator, the device on which tensors are made. (Anomaly
    detection is one for all threads of a process.) Can be pickled."""

    is_grad_enabled: bool
    is_inference: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    is_autocast_cached: bool
    default_device: torch.device | None = None
    """None: none has been set."""

    @staticmethod
    def of_this_thread() -> Modes:
        """The modes that hold here and now."""
        return _modes(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            tuple(
                (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
                for kind in accelerators.kinds()
            ),
            torch.is_autocast_cache_enabled(),
            torch.get_default_device() if len_function_stack() else None,
        )

    def active(self) -> Active:
        """These modes within the block, in the thread that enters it."""
        return Active(self)

    def enter(self, stack: contextlib.ExitStack) -> None:
        """Has them until the stack is left, whichever there were before."""
        if self.default_device is not None:
            stack.enter_context(self.default_device)
        stack.enter_context(torch.inference_mode(self.is_inference))
        stack.enter_context(torch.set_grad_enabled(self.is_grad_enabled))
        for kind, is_enabled, dtype in self.autocast:
            if is_enabled or torch.is_autocast_enabled(kind):
                stack.enter_context(
                    torch.autocast(
                        kind, dtype, enabled=is_enabled, cache_enabled=self.is_autocast_cached
                    )
                )


class Active:
    """A block in modes; see `Modes.active`. (It is entered so often that it is no generator.)"""

    __slots__ = ("_modes", "_stack")

    def __init__(self, modes: Modes) -> None:
        self._modes = modes
        self._stack: contextlib.ExitStack | None = None

    def __enter__(self) -> None:
        here = Modes.of_this_thread()
        if self._modes is not here and self._modes != here:
            with contextlib.ExitStack() as stack:
                self._modes.enter(stack)
                self._stack = stack.pop_all()

    def __exit__(self, *error: Any) -> None:
        if self._stack is not None:
            self._stack.__exit__(*error)


# They hardly ever change: the same object is faster than a new one, and found to be equal faster.
_modes: Final = functools.lru_cache(100)(Modes)


def in_callers_modes(function: Callable[..., T]) -> Callable[..., T]:
    """Returns `function`, to be called by another thread as if this one did: with its modes and its
    context variables."""
    modes, context = Modes.of_this_thread(), contextvars.copy_context()

    def call(*args: Any) -> T:
        with modes.active():
            return function(*args)

    return lambda *args: context.copy().run(call, *args)


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor has numbers of its own: fake ones, those of the meta device, those of a
    transform of functions and those made of other tensors have none."""
    if is_functorch_wrapped_tensor(tensor) or tensor.is_meta:
        return False
    if type(tensor) in _ORDINARY or tensor.layout is not torch.strided:
        return True
    try:
        storage = tensor.untyped_storage()
        return storage.device != META and bool(storage.data_ptr() or not tensor.numel())
    except RuntimeError:  # so says torch of what has no storage
        return False


def writable(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, as a tensor that may be written in plain modes: what was made in inference
    mode may not. Other layouts than strided stay as they are."""
    if tensor.layout is not torch.strided:
        return tensor
    with torch.inference_mode(False):
        alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        storage = tensor.untyped_storage()
        return alias.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
