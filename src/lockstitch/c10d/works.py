"""Operations under way, as torch has them: `torch.distributed.Work`.

Who waits for a work does the session's work meanwhile, as everywhere (`Session.wait`). Only where
somebody asks for its future a thread has to wait for it (`completions`), since a future of torch is
waited for where no Python runs.
"""

from __future__ import annotations

import contextlib
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed

from lockstitch.c10d.flight_recorder import RECORDER, Entry
from lockstitch.c10d.futures import WorkFuture
from lockstitch.errors import CollectiveError, MismatchError, StalledError
from lockstitch.unversioned import UNVERSIONED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.c10d.flight_recorder import Repetition
    from lockstitch.c10d.membership import Membership
    from lockstitch.c10d.outputs import Outputs
    from lockstitch.collectives import Handle

NO_TIMEOUT: Final = timedelta(0)
_POLL_SECONDS: Final = 10e-3


class SessionWork(distributed.Work):
    """One operation of a session. `entry`: what it is; `outputs`: where its results are copied at
    the end; `results`: the tensors that have them, as torch returns them. `wait` goes on for as
    long as the entry says where it is not told so (zero: as long as the session)."""

    has_future = True

    def __init__(
        self,
        group: Membership,
        handle: Handle[Any],
        entry: Entry | Repetition,
        results: Sequence[torch.Tensor],
        outputs: Outputs,
    ) -> None:
        super().__init__()
        self._group = group
        self._session = group.session
        self._handle = handle
        self._entry = entry
        self._results = results
        self._outputs = outputs
        self._finishing = threading.Lock()
        self._future: WorkFuture | None = None

    def __repr__(self) -> str:
        return f"<Work · {self._what()} · {self._handle!r}>"

    def _what(self) -> Entry:
        """What it is, in the words of the flight recorder."""
        entry = self._entry
        if not isinstance(entry, Entry):
            entry = self._entry = RECORDER.as_entry(entry)
        return entry

    def _limit_seconds(self) -> float:
        return self._what().limit_seconds

    # ------------------------------------------------------------ what torch calls

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Returns True when the operation is done and its results are where they belong, or raises
        its error. Raises `StalledError` after `timeout` (a timedelta; zero or negative: that of the
        operation, or else of the group); the operation is then still under way."""
        seconds = timeout.total_seconds() if timeout > NO_TIMEOUT else self._limit_seconds()
        if seconds > 0:
            self.wait_for(seconds)
        self.finish()
        return True

    def finish(self) -> None:
        """Waits as long as it takes, and raises what went wrong."""
        handle = self._handle
        try:
            self._session.wait(handle)
        except StalledError as error:
            raise self._group.explained(error, self._what(), self.missing() or ()) from error
        except CollectiveError as error:
            if not isinstance(error, MismatchError) or not self._goes_on(handle):
                raise self._group.explained(error, self._what()) from error
            self.finish()
            return
        if self._outputs.are_copied:
            with self._finishing:  # who comes meanwhile waits until they are there
                if self._outputs.are_copied:
                    self._outputs.copy_back(self._handle)
        UNVERSIONED.note(self._results)

    def _goes_on(self, _refused: Handle[Any]) -> bool:
        """Whether there is something else to wait for, since the ranks did not agree."""
        return False

    def _is_over(self) -> bool:
        """Whether there is nothing to wait for any more; never waits."""
        return self._session.poll(self._handle)

    def wait_for(self, seconds: float) -> None:
        """Returns when it is done, or raises `StalledError` after so long. Polls: a program that
        gives a limit expects that it may be reached."""
        now = self._session.clock.now
        end = now() + seconds
        while not self._is_over():
            if now() >= end:
                raise self._group.late(self._what(), seconds, self.missing() or ())
            with contextlib.suppress(CollectiveError):  # told by `finish`
                self._session.rest(_POLL_SECONDS)

    def is_completed(self) -> bool:
        """Returns whether the operation is done, or has failed; never waits."""
        if not self._is_over():
            return False
        with contextlib.suppress(Exception):  # told by `wait` and `exception`
            self.finish()
        return True

    def is_success(self) -> bool:
        """Returns whether it is done, and nothing went wrong."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Returns what went wrong; None while it is under way."""
        return self.outcome() if self._handle.is_done and self._is_over() else None

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """Returns the tensors that have the results. Raises the error of what has failed."""
        self.wait()
        return list(self._results)

    def get_future(self) -> torch.futures.Future[Any]:
        """Returns the future of the same tensors, completed by a thread of the group. Raises
        `RuntimeError` for send and recv, as Gloo does."""
        if not self.has_future:
            raise RuntimeError("send and recv have no future: wait for the work")
        with self._finishing:
            future = self._future
            if future is None:
                future = self._future = WorkFuture(self._what().future_name)
                self._group.completions.add(self, future, self._what().callback)
        return future

    def missing(self) -> tuple[int, ...] | None:
        """Returns the ranks that have not submitted it; None where that is not found out."""
        return self._session.missing(self._handle)

    # ------------------------------------------------------------ for the thread

    def outcome(self) -> BaseException | None:
        """Waits, and returns what went wrong."""
        try:
            self.finish()
        except Exception as error:  # noqa: BLE001 - raised where the future is waited for
            return error
        return None

    def complete(self, future: torch.futures.Future[Any], error: BaseException | None) -> None:
        """Completes the future, which runs what was attached to it."""
        if error is None:
            future.set_result(list(self._results))
        else:
            future.set_exception(error)
