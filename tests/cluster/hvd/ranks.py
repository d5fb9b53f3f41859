"""A program on several ranks, each a thread of the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from lockstitch.collectives import LocalSessions, Session
from lockstitch.hvd.job import active

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def in_job(function: Callable[[], T]) -> Callable[[Session], T]:
    """`function`, to be run with a session that is active meanwhile."""

    def run(session: Session) -> T:
        with active(session):
            return function()

    return run


def on_ranks(size: int, program: Callable[[], T]) -> list[T]:
    """The values of all ranks. Where one raises, the others need not wait for it."""

    def run(session: Session) -> T:
        try:
            with active(session):
                return program()
        except BaseException:
            session.shutdown()
            raise

    with LocalSessions(size) as sessions:
        return sessions.run(run)
