"""How a worker's program came to its end, told to the launcher before the process ends.

Exit handlers may keep a process for long after its program has failed, and whoever fails because of
it may be gone sooner. So a worker writes a *mark* into its stderr when its program is over, before
any exit handler runs: a line that terminals do not show and the launcher takes out again. It goes
the way of all that a worker says, and so from other hosts as well.

A program that was ended by a signal, or by `os._exit`, leaves no mark; its end is as quick as that.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
from dataclasses import dataclass
from typing import Final

from lockstitch.errors import tells_of_lost_peer

_STEP: Final = re.compile(rb"\x1b_lockstitch:step:([^\x1b]*)\x1b\\")
_MARK: Final = re.compile(rb"\x1b_lockstitch:(over|failed|lost):([01]):([^\x1b]*)\x1b\\")


@dataclass(frozen=True, slots=True)
class Mark:
    """`what`: the type of the exception that has ended the program, empty where none has.
    `is_of_lost_peer`: it says that a peer is gone. `is_of_worker`: whether this was the worker's
    own process, not one that it has started (a wrapper's program, say)."""

    what: str = ""
    is_of_lost_peer: bool = False
    is_of_worker: bool = True

    @classmethod
    def of(cls, error: BaseException | None, *, is_of_worker: bool = True) -> Mark:
        """That of a program which `error` has ended."""
        if error is None:
            return cls(is_of_worker=is_of_worker)
        return cls(type(error).__name__, tells_of_lost_peer(error), is_of_worker)

    def encode(self) -> bytes:
        """As a line, with its end."""
        kind = "lost" if self.is_of_lost_peer else "failed" if self.what else "over"
        return f"\x1b_lockstitch:{kind}:{self.is_of_worker:d}:{self.what}\x1b\\\n".encode()


def take_mark(line: bytes) -> tuple[bytes, Mark | None]:
    """A line without the mark in it, and the mark, if there is one."""
    match = _MARK.search(line)
    if match is None:
        return line, None
    kind, is_of_worker, what = match.groups()
    mark = Mark(what.decode(errors="replace"), kind == b"lost", is_of_worker == b"1")
    return line[: match.start()] + line[match.end() :], mark


@dataclass(frozen=True, slots=True)
class StepMark:
    """The last step of a worker's training, and its values by name: told now and then, for a line
    of progress."""

    number: int
    values: tuple[tuple[str, float], ...]

    def encode(self) -> bytes:
        """As a line, with its end."""
        told = json.dumps([self.number, self.values], separators=(",", ":"))
        return f"\x1b_lockstitch:step:{told}\x1b\\\n".encode()


def take_step(line: bytes) -> tuple[bytes, StepMark | None]:
    """A line without the mark of a step in it, and the mark, if there is one."""
    match = _STEP.search(line)
    if match is None:
        return line, None
    rest = line[: match.start()] + line[match.end() :]
    try:
        number, values = json.loads(match[1])
        known = tuple((str(name), float(value)) for name, value in values)
        return rest, StepMark(int(number), known)
    except (TypeError, ValueError, OverflowError, RecursionError):  # whoever has written that
        return rest, None


class Ending:
    """Writes the mark of this process, and other marks on its way; begun when the process begins,
    for a program may lead its stderr elsewhere. A process that a worker has started writes its mark
    only where an exception ends it and what it says goes where the worker's own words go."""

    def __init__(self) -> None:
        self._process = 0
        self._is_worker = False
        self._stderr = -1
        self._place = (0, 0)

    def install(self) -> None:
        """From now on. Before the exit handlers, also those of threads that a program waits for;
        `atexit` alone would do it after all others."""
        self._process = os.getpid()
        self._is_worker = os.getsid(0) == self._process
        # Kept from children that are other programs, as every descriptor of Python's.
        self._stderr = os.dup(2)
        self._place = _place_of(self._stderr)
        threading._register_atexit(self._tell)  # type: ignore[attr-defined]

    def say(self, mark: bytes) -> None:
        """Tells the launcher of something, if this is a worker's own process."""
        with contextlib.suppress(OSError, ValueError):
            is_here = self._is_worker and os.getpid() == self._process
            if is_here and _place_of(self._stderr) == self._place:
                os.write(self._stderr, mark)

    def _tell(self) -> None:
        # The worker's end is not to fail because of its mark: the launcher may have gone, a
        # program have closed all descriptors, and a forked child is somebody else.
        with contextlib.suppress(OSError, ValueError):
            if os.getpid() != self._process or _place_of(self._stderr) != self._place:
                return
            error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
            if self._is_worker or (error is not None and self._is_heard()):
                os.write(self._stderr, Mark.of(error, is_of_worker=self._is_worker).encode())

    def _is_heard(self) -> bool:
        found = os.stat(f"/proc/{os.getsid(0)}/fd/2")
        return (found.st_dev, found.st_ino) == self._place


ENDING: Final = Ending()


def _place_of(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino
