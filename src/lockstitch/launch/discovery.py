"""Which hosts there are, asked of a script again and again, without waiting for it."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from lockstitch.launch.hosts import Slots, parse_discovered

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from lockstitch.clock import Clock
    from lockstitch.launch.process_loop import ProcessLoop

_PERIOD_SECONDS = 1.0


class Discovery:
    """Runs `script`, which prints one host a line, a second after it has answered last.

    `tell(slots)` is called when the answer is another one. A script that fails changes
    nothing; `complain` is told why, once for each reason. What the script writes to stderr is shown
    until it has failed once, and again when it has answered.
    """

    def __init__(
        self,
        script: str,
        default_slots: int,
        clock: Clock,
        loop: ProcessLoop,
    ) -> None:
        self._script = script
        self._default_slots = default_slots
        self._clock = clock
        self._loop = loop
        self.tell: Callable[[Slots], None] = lambda _slots: None
        self.complain: Callable[[str], None] = lambda _text: None
        self._process: subprocess.Popen[bytes] | None = None
        self._said = bytearray()
        self._next_at = clock.now()
        self._known: Slots | None = None
        self._complaint = ""

    def seconds_to_next(self) -> float | None:
        """How long until `ask` wants to be called; None while the script runs."""
        if self._process is not None:
            return None
        return max(0.0, self._next_at - self._clock.now())

    def ask(self) -> None:
        """Starts the script if it is time."""
        if self.seconds_to_next() != 0:
            return
        try:
            self._process = subprocess.Popen(
                self._script,
                shell=not os.path.exists(self._script),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL if self._complaint else None,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            self._next_at = self._clock.now() + _PERIOD_SECONDS
            self._complain(f"{self._script} cannot be run: {error}")
            return
        assert self._process.stdout is not None
        self._said.clear()
        self._loop.pipes.follow(self._process.stdout, self._said.extend)
        self._loop.call_at_end(self._process.pid, self._note_end)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the script, if it runs, and to what it has started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    # ------------------------------------------------------------ inside

    def _note_end(self, wait_status: int) -> None:
        process, self._process = self._process, None
        assert process is not None
        process.returncode = code = os.waitstatus_to_exitcode(wait_status)
        self._next_at = self._clock.now() + _PERIOD_SECONDS
        assert process.stdout is not None
        self._loop.pipes.finish(process.stdout)
        if code != 0:
            self._complain(f"{self._script} ended with status {code}")
            return
        try:
            found = parse_discovered(self._said.decode(errors="replace"), self._default_slots)
        except ValueError as error:
            self._complain(f"{self._script}: {error}")
            return
        self._complaint = ""
        if found != self._known:
            self._known = found
            self.tell(found)

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            self._complaint = text
            self.complain(text)
