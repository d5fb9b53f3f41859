"""Somebody asks this process, by SIGUSR1, what it waits for: it says so on stderr, and goes on.

The signal's own effect is to kill. So a worker of `lockstitch run` listens from before its program
begins, any other process from the import of `lockstitch.rpc` or `lockstitch.hvd` on, until the very
end; unless the program has a handler of its own, in Python or below it, which is left alone.

Who waits for something says how that is told: `waits` are asked for lines of this process, and
`explain` for the text, where other processes can be asked too.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_PATHS: Final = ("stdlib", "purelib", "platlib")
_LAST_WORD_SECONDS: Final = 1.0
_SIGUSR1: Final = getattr(signal, "SIGUSR1", None)


class Inquiry:
    """See the module. A process has one, `INQUIRY`."""

    def __init__(self) -> None:
        self.explain: Callable[[], str] = self.explain_alone
        """What to print."""
        self.waits: list[Callable[[], list[str] | None]] = []
        """Each tells, in lines, what it waits for; None where it is out of use."""
        self._is_registered = False
        self._asked: list[None] = []
        self._told: list[None] = []
        """An entry for each time: lists, since a signal's handler must not wait for a lock."""

    def install(self, *, even_if_ignored: bool = False) -> None:
        """Listens from now on, if this is the main thread and nobody else does; harmless when
        repeated. `even_if_ignored`: who started this process has the signal ignored only until
        somebody listens."""
        free = (signal.SIG_DFL, signal.SIG_IGN) if even_if_ignored else (signal.SIG_DFL,)
        if (
            _SIGUSR1 is None
            or threading.current_thread() is not threading.main_thread()
            or signal.getsignal(_SIGUSR1) not in free
            or catches(os.getpid(), _SIGUSR1)  # faulthandler.register, or a library
        ):
            return
        signal.signal(_SIGUSR1, self._react)
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self._ignore)

    def lines(self) -> list[str] | None:
        """What this process waits for, but for its calls; None where nothing is in use that could
        wait."""
        told = [waits() for waits in list(self.waits)]
        if all(lines is None for lines in told):
            return None
        return [line for lines in told for line in lines or ()]

    def explain_alone(self) -> str:
        """What this process waits for, and where its main thread is."""
        lines = self.lines()
        if lines is None:
            state = "is in no group: before init_rpc or hvd.init, or after their shutdown"
        else:
            state = "waits" if lines else "waits for nothing"
        main = sys._current_frames().get(threading.main_thread().ident or 0)
        where = [] if main is None else [f"its main thread is at {line_of(main)}"]
        return "\n  ".join([f"{_who()}: {state}", *(lines or []), *where])

    def _ignore(self) -> None:
        """When the interpreter ends, Python gives the signal back its own effect while much is
        still to be taken down. Who has asked just before is answered."""
        deadline = time.monotonic() + _LAST_WORD_SECONDS
        while len(self._told) < len(self._asked) and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        if _SIGUSR1 is not None and signal.getsignal(_SIGUSR1) == self._react:
            signal.signal(_SIGUSR1, signal.SIG_IGN)

    def _react(self, _number: int, _frame: FrameType | None) -> None:
        # Another thread, because this one may hold any lock right now, even one that is needed to
        # start a `threading.Thread`.
        with contextlib.suppress(RuntimeError):  # there can be none any more: the process ends
            _thread.start_new_thread(self._tell, ())
            self._asked.append(None)

    def _tell(self) -> None:
        try:
            text = self.explain()
        except Exception as error:  # noqa: BLE001 - whatever happens, who asked is to hear of it
            text = f"{_who()} cannot tell what it waits for: {error!r}"
        with contextlib.suppress(OSError):
            os.write(2, f"{text}\n".encode(errors="replace"))
        self._told.append(None)


INQUIRY = Inquiry()


def tell_of_crashes() -> None:
    """A crash leaves the stacks of all threads on stderr, as soon as there is one to write to;
    harmless where the program sees to that itself."""
    if not faulthandler.is_enabled():
        # Notebooks have no file for it, and some programs none at all.
        with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
            faulthandler.enable(sys.__stderr__ or 2)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for that signal, of whatever language; False where the system
    does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    masks = (line.split() for line in status.splitlines() if line.startswith("SigCgt:"))
    return any(int(mask, 16) >> (number - 1) & 1 for _, mask in masks)


def line_of(innermost: FrameType) -> str:
    """The innermost line of the user's own code in a stack: not of this library, nor of Python's
    own or installed packages, unless there is no other."""
    foreign = (Path(__file__).resolve().parent, *map(sysconfig.get_path, _PATHS))
    prefixes = tuple(f"{folder}{os.sep}" for folder in foreign)
    stack = traceback.extract_stack(innermost)
    own = [each for each in stack if not each.filename.startswith((*prefixes, "<frozen"))]
    entry = (own or stack)[-1]
    return f"{entry.filename}:{entry.lineno} in {entry.name}"


def _who() -> str:
    rank = os.environ.get("RANK") or os.environ.get("LOCKSTITCH_WORKER")
    return f"worker {rank} (pid {os.getpid()})" if rank else f"process {os.getpid()}"
