"""Whether those at the other ends of lines still live, where a process is stopped or a host is cut
off: nothing tells of that by itself.

Time is cut into five parts of the bound. At the end of each part every line gets a ping, a record
of no bytes. Who shows no sign of life in four parts, neither a ping nor anything else, is lost;
hence within the bound. A process of this host also lives while it uses the CPU, since it may hold
the GIL for long (`Stream.signs_of_life`).

A part that took much longer than it should was our own silence: this process was stopped, or
starved. Then all counting begins anew. Between workers `runtime.liveness` does the same for those
that somebody waits for; here both ends of a line need each other as long as it is open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstitch.clock import Clock

VARIABLE: Final = "LOCKSTITCH_HEARTBEAT_TIMEOUT"
DEFAULT_SECONDS: Final = 10.0

_PARTS: Final = 5
_SILENT_PARTS: Final = 4

SILENT_SHARE: Final = _SILENT_PARTS / _PARTS
"""So much of the bound may one be silent: the rest is for who is told of it."""


class SilenceError(ConnectionError):
    """Nothing has come from the other end for as long as it may be silent."""


class Living(Protocol):
    """A line as far as it is needed here."""

    heard: int

    def ping(self) -> None:
        """Sends a sign of life. Raises `OSError`."""
        ...

    def bound_silence(self, seconds: float) -> None:
        """Has the system end what it cannot deliver for so long."""
        ...

    def signs_of_life(self) -> tuple[int, ...]: ...


@dataclass(slots=True)
class _Watch:
    signs: object = None
    silent: int = 0


def heartbeat_seconds(given: float | None, environment: Mapping[str, str]) -> float:
    """Returns the bound that the program gives, or that of LOCKSTITCH_HEARTBEAT_TIMEOUT, or the
    default, in seconds; 0 for none. Raises `ValueError` for what is none."""
    text = environment.get(VARIABLE) if given is None else given
    if text is None:
        return DEFAULT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ValueError(
            f"heartbeat_timeout (or {VARIABLE}) is a number of seconds, 0 for none, not {text!r}"
        )
    return seconds


class Pulse:
    """The watch over some lines. Who has it sleeps for `seconds_to_next` at most, and then calls
    `pass_time`. `bound_seconds` 0 watches nobody."""

    def __init__(self, bound_seconds: float, clock: Clock) -> None:
        self._bound_seconds = bound_seconds
        self._part_seconds = bound_seconds / _PARTS
        self._clock = clock
        self._due = clock.now() + self._part_seconds
        self._watches: dict[Living, _Watch] = {}

    def __repr__(self) -> str:
        return f"<Pulse · {len(self._watches)} lines, {self._bound_seconds:g} s>"

    def add(self, line: Living) -> None:
        """Begins to watch."""
        if self._bound_seconds:
            if not self._watches:  # nobody has looked at the time until now
                self._due = self._clock.now() + self._part_seconds
            line.bound_silence(self._bound_seconds)
            self._watches[line] = _Watch()

    def discard(self, line: Living) -> None:
        """Ends that; harmless when repeated."""
        self._watches.pop(line, None)

    def seconds_to_next(self) -> float | None:
        """How long until `pass_time` wants to be called; None for never."""
        return max(0.0, self._due - self._clock.now()) if self._watches else None

    def pass_time(self) -> list[tuple[Living, OSError]]:
        """Sends pings if it is time; returns the lines that are lost, with why, and watches them no
        longer."""
        now = self._clock.now()
        if not self._watches or now < self._due:
            return []
        is_own_silence = now - self._due > self._part_seconds
        self._due = now + self._part_seconds
        lost: list[tuple[Living, OSError]] = []
        for line, watch in self._watches.items():
            signs = (line.heard, *line.signs_of_life())
            is_silent = signs == watch.signs and not is_own_silence
            watch.signs, watch.silent = signs, watch.silent + 1 if is_silent else 0
            try:
                if watch.silent >= _SILENT_PARTS:
                    raise SilenceError(f"it has been silent for {self._bound_seconds:g} s")
                line.ping()
            except OSError as error:
                lost.append((line, error))
        for line, _ in lost:
            self.discard(line)
        return lost
