"""Handles of operations under way: completed once, by whichever thread finishes the operation."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from lockstitch.errors import copy_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.collectives.request_cache import CachedRequest
    from lockstitch.collectives.requests import Request

T = TypeVar("T")


class CopyBack(Protocol):
    """Brings a result to where the program wants it, in the thread that asks for it: on a device
    each thread has a stream of its own."""

    def __call__(self, value: object) -> object:
        """The result that is handed out. Called as often as somebody asks."""
        ...

    def abandon(self) -> None:
        """Is called where there will be no result."""
        ...


class Route(Protocol):
    """What performs an operation, where that is not the session's backend."""

    def wait(self, handle: Handle[Any], gives_up: Callable[[], bool] | None = None) -> None:
        """Waits like `Backend.wait`; may return earlier, when the operation has another route."""
        ...


class Handle(Generic[T]):
    """One operation of this rank. `Session.wait(handle)` gives its result, as often as asked."""

    # What few operations need is declared here: to assign it would show in every small one.
    ready_at = 0.0
    """When all ranks had submitted it, where somebody records."""
    rows: tuple[tuple[int, ...], ...] = ()
    """Of an allgather: for each tensor, how many rows came from each rank of the set."""
    copy_back: CopyBack | None = None
    """For tensors of a device."""
    route: Route | None = None
    """By which it goes, if not by the session's backend."""
    is_begun = False
    """Whether a backend has it: others may know of it."""
    _value: object = None
    _error: BaseException | None = None
    _signal: threading.Event | None = None

    def __init__(self, request: Request, cached: CachedRequest, submitted_at: float = 0.0) -> None:
        self.request = request
        self.key = cached.key
        """Its process set and its name."""
        self.cached = cached
        self.submitted_at = submitted_at
        self.is_done = False
        """Whether there is a result or an error."""

    def __repr__(self) -> str:
        state = "under way"
        if self.is_done:
            state = "done" if self._error is None else f"failed: {self._error!r}"
        return f"<Handle of {self.request.kind.value} {self.name!r} · {state}>"

    @property
    def name(self) -> str:
        """The name that the operation was submitted under, or its queue."""
        return self.request.queue or self.request.name

    def result(self) -> T:
        """The result of an operation that is done, or raises its error."""
        if not self.is_done:
            raise RuntimeError(f"{self.name!r} is not done: wait for it first")
        if self._error is not None:
            raise copy_of(self._error)
        copy_back = self.copy_back
        return cast("T", self._value if copy_back is None else copy_back(self._value))

    # ------------------------------------------------------------ for backends

    def complete(self, value: object) -> None:
        """The operation is done."""
        self._value = value
        self.is_done = True
        if self._signal is not None:
            self._signal.set()

    def fail(self, error: BaseException) -> None:
        """The operation has failed; harmless when it is done already."""
        if not self.is_done:
            self._error = error
            if self.copy_back is not None:
                self.copy_back.abandon()
            self.is_done = True
            if self._signal is not None:
                self._signal.set()

    def clear(self) -> None:
        """Holds nothing of an operation that is done any more, for another one like it."""
        self._value = None
        self.request.tensors = self.request.outputs = ()
        if self._signal is not None:
            self._signal = None

    def signal(self) -> threading.Event:
        """Something to wait on: set when the operation is done, or by `nudge`."""
        if self._signal is None:
            self._signal = threading.Event()
        if self.is_done:
            self._signal.set()
        return self._signal

    def wait(self, timeout_seconds: float) -> bool:
        """Waits for the signal; whether the operation is done. Two threads that ask for the signal
        at once may each have made one, of which only the later is set: so what counts is not it."""
        self.signal().wait(timeout_seconds)
        return self.is_done

    def rearm(self) -> None:
        """Makes the signal wait again, if there is no result yet."""
        if self._signal is not None:
            self._signal.clear()
            if self.is_done:
                self._signal.set()

    def nudge(self) -> None:
        """Wakes whoever waits on the signal, without a result."""
        if self._signal is not None:
            self._signal.set()
