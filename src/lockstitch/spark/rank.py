"""The process of a rank: started by its task, followed to its end, its words passed on.

It is a new process, so that what one job does to its interpreter (threads, devices, the session of
`hvd`) does not meet the next one in a worker process that Spark uses again. It dies with its task,
and when the driver hangs up, which Spark's own way of killing tasks would follow seconds later.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from lockstitch.endings import Mark, take_mark
from lockstitch.folders import Folder
from lockstitch.launch.process import WorkerProcess
from lockstitch.launch.screen import LineBuffer
from lockstitch.launch.stderr_tail import StderrTail
from lockstitch.trust.secret import FILE_VARIABLE, VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from lockstitch.spark.reports import StreamName
    from lockstitch.trust import Secret

    Listener = Callable[[StreamName, str], None]

_CHUNK_BYTES: Final = 1 << 16
# What the process has left behind may keep its pipes open.
_LAST_WORDS_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Ended:
    """How a rank has ended. `result`: what it returned, pickled; None where it has failed. `error`:
    what it raised, as `remote_errors` describes it, pickled; None where it has raised nothing.
    `is_in_order`: its process ended with status 0."""

    how: str
    result: bytes | None
    error: bytes | None
    is_of_lost_peer: bool
    is_in_order: bool
    last_words: str


def run_rank(
    call: bytes,
    secret: Secret,
    environment: Mapping[str, str],
    listener: Listener,
    executable: str | None = None,
    until: Callable[[], object] | None = None,
) -> Ended:
    """Runs a pickled call (a function, its arguments, its keyword arguments) in a process with
    `environment`, which tells it its rank, and waits for its end. `listener` is called for each
    line that it writes, from two threads, and raises nothing. `executable`: another Python than
    this one. `until`: returns when the process is to be killed, should it still run; it is called
    in a thread of its own."""
    with Folder() as folder:
        (folder / "call").write_bytes(call)
        secret.write(folder / "secret")
        told = {name: value for name, value in environment.items() if name != VARIABLE}
        told[FILE_VARIABLE] = str(folder / "secret")
        name = told.get("LOCKSTITCH_WORKER") or told["RANK"]
        command = [executable or sys.executable, "-m", "lockstitch.hvd.runner.task", str(folder)]
        process = WorkerProcess(int(name), command, told)
        try:
            readers = [_Reader("stdout", process.stdout, listener)]
            readers.append(_Reader("stderr", process.stderr, listener))
            if until is not None:
                _start_thread("end", lambda: _kill_after(until, process))
            process.note_end(os.waitpid(process.pid, 0)[1])
        finally:
            process.signal(signal.SIGKILL)  # and whatever it has left behind
            if process.exit_code is None:
                process.note_end(os.waitpid(process.pid, 0)[1])
        for reader in readers:
            reader.finish()
        return _outcome(process, readers[1], folder, name)


def _kill_after(until: Callable[[], object], process: WorkerProcess) -> None:
    until()
    if process.exit_code is None:
        process.signal(signal.SIGKILL)


def _start_thread(name: str, run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, name=f"lockstitch {name}", daemon=True)
    thread.start()
    return thread


def _outcome(process: WorkerProcess, stderr: _Reader, folder: Path, name: str) -> Ended:
    results = list(folder.glob("result.*"))
    how = process.describe_end()
    if process.exit_code == 0 and not results:
        how = "its program ended before the function returned (by SystemExit?)"
    is_well = process.exit_code == 0 and bool(results)
    error = folder / f"error.rank{name}"
    return Ended(
        how,
        results[0].read_bytes() if is_well else None,
        error.read_bytes() if error.exists() else None,
        stderr.mark is not None and stderr.mark.is_of_lost_peer,
        process.exit_code == 0,
        b"\n".join(stderr.tail.telling()).decode(errors="replace"),
    )


class _Reader:
    """Reads one of the two pipes of a rank, in a thread of its own."""

    def __init__(self, name: StreamName, pipe: IO[bytes], listener: Listener) -> None:
        self.tail = StderrTail()
        self.mark: Mark | None = None
        self._name = name
        self._pipe = pipe
        self._listener = listener
        self._lines = LineBuffer()
        self._thread = _start_thread(name, self._run)

    def finish(self) -> None:
        """Waits for the end of the pipe, for a moment."""
        self._thread.join(_LAST_WORDS_SECONDS)
        with suppress(OSError):
            self._pipe.close()

    def _run(self) -> None:
        while chunk := self._read():
            for line in self._lines.feed(chunk):
                self._take(line)
        if rest := self._lines.flush():
            self._take(rest)

    def _read(self) -> bytes:
        try:
            return self._pipe.read(_CHUNK_BYTES)
        except (OSError, ValueError):  # it was closed here while somebody else had it open
            return b""

    def _take(self, line: bytes) -> None:
        text, mark = take_mark(line)
        if mark is not None and mark.is_of_worker:
            self.mark = mark
        if mark is None or text:
            self.tail.add(text)
            self._listener(self._name, text.decode(errors="replace"))
