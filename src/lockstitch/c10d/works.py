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

from lockstitch.errors import StalledError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.c10d.completions import Completions
    from lockstitch.c10d.outputs import Outputs
    from lockstitch.collectives import Handle, Session

NO_TIMEOUT: Final = timedelta(0)
_POLL_SECONDS: Final = 10e-3


class SessionWork(distributed.Work):
    """One operation of a session. `outputs`: where its results are copied at the end; `results`:
    the tensors that have them, as torch returns them; `limit`: how long `wait` waits where it is
    not told so (zero: as long as the session)."""

    def __init__(
        self,
        session: Session,
        handle: Handle[Any],
        results: Sequence[torch.Tensor],
        outputs: Outputs,
        completions: Completions | None = None,
        limit: timedelta = NO_TIMEOUT,
    ) -> None:
        super().__init__()
        self._session = session
        self._handle = handle
        self._results = results
        self._outputs = outputs
        self._completions = completions
        self._limit = limit
        self._finishing = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None

    def __repr__(self) -> str:
        return f"<Work · {self._handle!r}>"

    # ------------------------------------------------------------ what torch calls

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Returns True when the operation is done and its results are where they belong, or raises
        its error. Raises `StalledError` after `timeout` (a timedelta; zero or negative: that of the
        operation, or else of the group); the operation is then still under way."""
        limit = timeout if timeout > NO_TIMEOUT else self._limit
        if limit > NO_TIMEOUT:
            self._wait_for(limit.total_seconds())
        self.finish()
        return True

    def finish(self) -> None:
        """Waits as long as it takes, and raises what went wrong."""
        try:
            self._session.wait(self._handle)
        except StalledError as error:
            # Programs look for the word, which Gloo and NCCL say.
            raise StalledError(f"{error}, until the timeout of the group") from error
        if self._outputs.are_copied:
            with self._finishing:
                self._outputs.copy_back()

    def _wait_for(self, seconds: float) -> None:
        """Polls: a program that gives a limit expects that it may be reached."""
        now = self._session.clock.now
        end = now() + seconds
        while not self._session.poll(self._handle):
            if now() >= end:
                missing = self.missing()
                whom = f"ranks {list(missing)}" if missing else "other ranks"
                raise StalledError(
                    f"{self._handle.request.kind.value} on rank {self._session.rank} timed out: it "
                    f"waited {seconds:g} s for {whom}"
                )
            self._session.rest(_POLL_SECONDS)

    def is_completed(self) -> bool:
        """Returns whether the operation is done, or has failed; never waits."""
        if not self._session.poll(self._handle):
            return False
        with contextlib.suppress(Exception):  # told by `wait` and `exception`
            self.finish()
        return True

    def is_success(self) -> bool:
        """Returns whether it is done, and nothing went wrong."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Returns what went wrong; None while it is under way."""
        if not self._handle.is_done:
            return None
        try:
            self._handle.result()
        except Exception as error:  # noqa: BLE001 - that is the answer
            return error
        return None

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
        if self._completions is None:
            raise RuntimeError("send and recv have no future: wait for the work")
        with self._finishing:
            future = self._future
            if future is None:
                future = self._future = torch.futures.Future()
                self._completions.add(self, future)
        return future

    def missing(self) -> tuple[int, ...] | None:
        """Returns the ranks that have not submitted it; None where that is not found out."""
        return self._session.missing(self._handle)

    # ------------------------------------------------------------ for the thread

    def complete(self, future: torch.futures.Future[Any]) -> None:
        """Waits, and completes the future."""
        try:
            self.finish()
        except Exception as error:  # noqa: BLE001 - raised where the future is waited for
            future.set_exception(error)
        else:
            future.set_result(list(self._results))


class MessageWork(SessionWork):
    """A message on its way from a rank, or to it."""

    def __init__(
        self,
        session: Session,
        handle: Handle[Any],
        tensor: torch.Tensor,
        outputs: Outputs,
        source: int,
    ) -> None:
        super().__init__(session, handle, [tensor], outputs)
        self._source = source

    def source_rank(self) -> int:
        """The rank, in the group, that has sent it."""
        return self._source

    _source_rank = source_rank
