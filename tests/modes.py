"""The modes that a program of torch may be in while it calls us, by name."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class Changed(torch.Tensor):
    """What the modes of a program make of tensors."""


class ChangingFunctions(TorchFunctionMode):
    """Whatever is made from nothing becomes another class."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        is_new = getattr(function, "__name__", "").startswith(("empty", "zeros", "frombuffer"))
        return result.as_subclass(Changed) if is_new else result


class ChangingOperators(TorchDispatchMode):
    """The same below autograd."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        is_new = "empty" in str(function) or "zeros" in str(function)
        return result.as_subclass(Changed) if is_new else result


class Hollow(torch.Tensor):
    """A tensor without data, as fake ones are."""

    @staticmethod
    def __new__(cls, like: torch.Tensor) -> Hollow:
        return torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype)

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten.detach.default:
            return Hollow(args[0])
        raise LookupError(f"no data for {function}")


class Faking(TorchDispatchMode):
    """Nothing has data any more: like `FakeTensorMode`, which takes seconds to import."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        is_new = "empty" in str(function) or "zeros" in str(function)
        return Hollow(result) if is_new else result


def real_fake_mode() -> AbstractContextManager[Any]:
    """The one of torch."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415 - see `Faking`

    return FakeTensorMode()


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "none": contextlib.nullcontext,
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "meta": lambda: torch.device("meta"),
    "fake": Faking,
    "functions": ChangingFunctions,
    "operators": ChangingOperators,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}

EACH_MODE = [*MODES, pytest.param("real fake", marks=pytest.mark.slow)]


def in_mode(name: str) -> AbstractContextManager[Any]:
    """A context of the mode with that name."""
    return real_fake_mode() if name == "real fake" else MODES[name]()
