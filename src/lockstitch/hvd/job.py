"""The job that the calling code belongs to: one rank's session.

`hvd.init()` makes the process's own. A test may hold several ranks in one process, each active in a
thread of its own:

    with active(session):
        hvd.allreduce(torch.ones(2), op=hvd.Sum)
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
from contextvars import ContextVar
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from lockstitch.attach.sources import SOURCES
from lockstitch.hvd.communicators import meet
from lockstitch.inquiry import INQUIRY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed import TCPStore

    from lockstitch.attach.values import GroupReport, Question
    from lockstitch.collectives import Session
    from lockstitch.hvd.communicators import Communicator

_active: ContextVar[Session | None] = ContextVar("lockstitch_hvd_session", default=None)


class Process:
    """The process's own session, from `init` to `shutdown` or the end of the process."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.parents: int | None = None
        """The rank of the process of which this one is a forked child."""
        self.timelines: set[str] = set()
        """Files: a later session of this process goes on with them."""
        self._numbers: WeakKeyDictionary[Session, itertools.count[int]] = WeakKeyDictionary()
        self._meetings: dict[int, tuple[int, int, TCPStore]] = {}
        atexit.register(self.shutdown)
        INQUIRY.waits.append(self._describe_waits)
        SOURCES.groups.append(self._told)
        os.register_at_fork(after_in_child=self.forget)

    def shutdown(self) -> None:
        """Ends the session; harmless where there is none."""
        session, self.session = self.session, None
        if session is not None:
            session.shutdown()

    def meeting_of(self, comm: Communicator) -> tuple[int, int, TCPStore]:
        """Returns where the ranks of a communicator meet. Its store is kept until the process ends,
        so that the others may come again."""
        meeting = self._meetings.get(id(comm))
        if meeting is None:
            meeting = self._meetings[id(comm)] = meet(comm)
        return meeting

    def next_number(self, session: Session) -> int:
        """0, 1, 2, … for what each rank makes in the same order."""
        return next(self._numbers.setdefault(session, itertools.count()))

    def _describe_waits(self) -> list[str] | None:
        session = self.session
        return None if session is None else session.describe_waits()

    def _told(self, question: Question) -> list[GroupReport]:
        session = self.session
        return [] if session is None else [session.told("hvd", "", question)]

    def forget(self) -> None:
        """A forked child (of a `DataLoader`, say) is no rank."""
        session, self.session = _active.get() or self.session, None
        if session is not None:
            self.parents = session.rank
        _active.set(None)


PROCESS = Process()


def has_session() -> bool:
    """Returns whether `current_session` would return one."""
    return (_active.get() or PROCESS.session) is not None


def current_session() -> Session:
    """The session of the calling code. Raises `ValueError` outside of init and shutdown."""
    session = _active.get() or PROCESS.session
    if session is None:
        text = "Horovod has not been initialized; use hvd.init()."
        if PROCESS.parents is not None:
            text += (
                f" This process, a slot of a DataParallel or a worker of a DataLoader, say, was "
                f"forked from rank {PROCESS.parents} and is no rank: have the rank ask before, and "
                "keep the answer in a variable"
            )
        raise ValueError(text)
    return session


@contextlib.contextmanager
def active(session: Session) -> Iterator[None]:
    """Makes the session the one that `current_session()` returns within the block."""
    token = _active.set(session)
    try:
        yield
    finally:
        _active.reset(token)
