"""Operations under way, as programs hold them, and what is done with these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lockstitch.hvd.job import current_session
from lockstitch.hvd.process_sets import ProcessSet, global_process_set, id_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.collectives import Handle, Session

T = TypeVar("T")
S = TypeVar("S")


class Operation(Generic[T]):
    """A handle. `finish` makes what the program gets of what the session gives, once."""

    def __init__(
        self, session: Session, handle: Handle[Any], finish: Callable[[Any], T] | None = None
    ) -> None:
        self._session = session
        self._handle = handle
        self._finish = finish
        self._result: list[T] = []

    def __repr__(self) -> str:
        return f"<Operation {self._handle!r}>"

    def __call__(self) -> T:
        """Waits for the result, like `synchronize`."""
        return self.wait()

    def is_done(self) -> bool:
        """Returns whether there is a result or an error. If not yet, does what can be done at once,
        which the next call sees."""
        if self._handle.is_done:
            return True
        self._session.poll(self._handle)
        return False

    def wait(self) -> T:
        """The result, or raises the error."""
        value = self._session.wait(self._handle)
        if not self._result:
            self._result.append(value if self._finish is None else self._finish(value))
        return self._result[0]

    def wait_unless_wanted(self) -> bool:
        """Waits, but not while other ranks wait for this one elsewhere; whether it is done."""
        return self._session.wait_unless_wanted(self._handle)

    def then(self, finish: Callable[[T], S]) -> Operation[S]:
        """Returns the same operation, whose result goes through `finish`."""
        return Operation(self._session, self._handle, lambda _value: finish(self.wait()))


def poll(handle: Operation[Any]) -> bool:
    """Returns whether the operation is done, so that `synchronize` would not wait. It is not when
    the call that has begun it returns: another call, or a thread, goes on with it. Raises
    `ValueError` for what is no handle."""
    return _checked(handle).is_done()


def synchronize(handle: Operation[T]) -> T:
    """Waits for the operation and returns its result, or raises `HorovodInternalError`. Raises
    `ValueError` for what is no handle."""
    return _checked(handle).wait()


def _checked(handle: Operation[T]) -> Operation[T]:
    if not isinstance(handle, Operation):
        raise ValueError(
            f"{handle!r} is not a handle: pass what allreduce_async_ and the like have returned"
        )
    return handle


def join(device: int = -1) -> int:  # noqa: ARG001 - where its zeros would be; we need none
    """This rank is out of data: the others' allreduces take it for zeros until all have joined.
    Returns the rank that joined last. What needs a part of every rank (allgather, broadcast, …)
    fails meanwhile. `device` is taken for compatibility and ignored."""
    return current_session().join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every rank of the set has come here. Raises what `hvd.allreduce` does."""
    current_session().barrier(process_set=id_of(process_set))
