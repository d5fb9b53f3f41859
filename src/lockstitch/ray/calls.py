"""Functions on their way to workers: by Ray's own cloudpickle, so that also those travel that no
module holds, and references to objects of Ray's among what they use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockstitch.errors import SerializationError
from lockstitch.ray.engine import running_ray

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True)
class Call:
    """A function and its arguments."""

    function: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raises `TypeError` where the function is none."""
        if not callable(self.function):
            raise TypeError(f"workers run a function, not {self.function!r}")

    def put(self) -> Any:
        """Returns a reference of Ray's to it, which a worker gets as the call itself. Raises
        `SerializationError` where something cannot be pickled."""
        self.check()
        try:
            return running_ray().put(self)
        except Exception as error:
            name = getattr(self.function, "__qualname__", repr(self.function))
            raise SerializationError(
                f"{name} cannot be sent to workers: {error}. What it uses travels with it, so "
                "open files, locks, connections and the like have to be made on the worker"
            ) from error
