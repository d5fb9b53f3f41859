"""SIGTERM: this process ends as at the end of its program, and those that it works with are told.

By itself the signal ends a process at once, and the first process of a container not at all, since
the kernel keeps it from signals that it has no handler for: so Kubernetes would wait for the whole
grace period of a pod and then kill it. A worker raises `SystemExit` in its main thread instead,
wherever that is: `finally` blocks and exit handlers run, then the farewells of this module, and the
exit status is 143, as a shell reports it. A second SIGTERM has its own effect again.

A program that has a handler of its own, in Python or below it, keeps it; so does `torchrun`. A
child that is forked from a worker ends at once, as before.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from lockstitch.inquiry import catches

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

EXIT_STATUS = 128 + signal.SIGTERM


class Termination:
    """See the module. A process has one, `TERMINATION`."""

    def __init__(self) -> None:
        self.farewells: list[Callable[[], object]] = []
        """Called in the main thread when a SIGTERM ends the program, after all that it cleans up
        itself. None of them may wait for long, nor start a thread: the interpreter ends."""
        self._process: int | None = None
        self._is_begun = self._is_ending = False

    def install(self) -> None:
        """Handles the signal from now on, if this is the main thread and nobody else does; harmless
        when repeated."""
        if threading.current_thread() is not threading.main_thread():
            return
        present = signal.getsignal(signal.SIGTERM)
        is_free = present is signal.SIG_DFL and not catches(os.getpid(), signal.SIGTERM)
        if not is_free and present != self._react:  # ours may be that of a parent
            return
        signal.signal(signal.SIGTERM, self._react)
        self._process = os.getpid()
        # Registered last, so that it comes before the handlers that end workers and sessions.
        atexit.unregister(self._part)
        atexit.register(self._part)

    def _react(self, number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != self._process:
            os.kill(os.getpid(), number)
            return
        self._is_begun = True
        end = SystemExit(EXIT_STATUS)
        if self._is_ending:
            # It ends an exit handler that waits. Python would print that, and go on to the next.
            report = sys.unraisablehook
            sys.unraisablehook = lambda said: None if said.exc_value is end else report(said)
        raise end

    def _part(self) -> None:
        self._is_ending = True
        if self._is_begun and os.getpid() == self._process:
            for farewell in self.farewells:
                farewell()


TERMINATION = Termination()
