"""What a thread takes over from the one for which it works.

torch keeps grad mode, autocast and the like for each thread; a slot that runs the caller's module
has to run it as the caller would.
"""

from __future__ import annotations

import contextvars
import functools
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

from lockstitch.devices import accelerators
from lockstitch.torch_internals.modes import len_function_stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

R = TypeVar("R")


@dataclass(frozen=True)
class Modes:
    """The modes of one thread, to be taken over by another: grad mode, inference mode, autocast
    with its dtype on the CPU and the accelerator, anomaly detection, the device on which tensors
    are made. Can be pickled."""

    is_grad_enabled: bool
    is_inference: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    is_autocast_cached: bool
    is_anomaly_checked: bool
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
            torch.is_anomaly_enabled(),
            torch.get_default_device() if len_function_stack() else None,
        )

    @contextmanager
    def active(self) -> Iterator[None]:
        """These modes within the block, in the thread that enters it."""
        here = Modes.of_this_thread()
        if self is here or self == here:
            yield
            return
        with ExitStack() as stack:
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
            yield


# They hardly ever change: the same object is faster than a new one, and found to be equal faster.
_modes: Final = functools.lru_cache(100)(Modes)


def in_callers_modes(function: Callable[..., R]) -> Callable[..., R]:
    """`function`, to be called by another thread as if this one did: with its modes and its context
    variables."""
    modes = Modes.of_this_thread()
    context = contextvars.copy_context()

    def call(*args: Any) -> R:
        with modes.active():
            return function(*args)

    return lambda *args: context.copy().run(call, *args)
