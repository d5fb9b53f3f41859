"""Who has connected and has not yet proved to have the secret: until then it is nobody's peer.

They are few: a limit, beyond which the newest pushes the oldest out, since who has the secret is
through within a few milliseconds. And their time is short. What goes wrong with one is counted and
concerns nobody else: port scanners, garbage, those who connect and say nothing.

Where this process itself was stopped for a while, all begin anew. Waiting for what guests say is
the affair of whoever has the door, and for its moments (`seconds_to_next`), too.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from lockstitch.clock import seconds_until
from lockstitch.errors import HandshakeError
from lockstitch.link.greetings import GreetingReader
from lockstitch.link.line import Line, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.clock import Clock
    from lockstitch.link.handshake import ListenerHandshake

GONE: Final = "gone"
"""It closed the connection in the middle, or before it said anything."""
TOO_SLOW: Final = "too slow"
PUSHED_OUT: Final = "pushed out"
# Whoever has the secret is through long before.
_USUAL_SECONDS: Final = 1.0

G = TypeVar("G")
S = TypeVar("S", bound=Stream)


class Guest(Generic[S]):
    """Somebody who has connected over `stream` and has not proved to have the secret yet. What it
    says is taken in as it comes."""

    def __init__(self, stream: S, handshake: ListenerHandshake) -> None:
        self.stream = stream
        self.handshake = handshake
        self.welcome = b""
        """What is still to be said to a guest that comes in."""
        self._reader = GreetingReader()

    def listen(self) -> str | None:
        """Takes in and answers what the guest has said so far, without waiting. Returns None where
        more is to come, an empty text where the guest may come in, and else why it may not."""
        try:
            while not self.handshake.is_over:
                self._take_in()
        except BlockingIOError:
            return None
        except HandshakeError as error:
            return error.reason
        except OSError:
            return GONE
        refused = self.handshake.refused
        return "" if refused is None else refused.reason

    def _take_in(self) -> None:
        counts: list[int] = []
        self.stream.receive_into(self._reader.space(), counts, 0)
        if not counts[0]:
            raise ConnectionResetError("it closed the connection")
        greeting = self._reader.absorb(counts[0])
        if greeting is None:
            return
        answer = self.handshake.take(greeting)
        if self.handshake.caller is None:
            self.stream.send([answer])
        else:
            self.welcome = answer

    def line(self, most_bytes: int, *, is_authenticated: bool = True) -> Line[S]:
        """Welcomes a guest that may come in. Raises `OSError` where it is gone."""
        self.stream.send([self.welcome])
        return Line(self.stream, self.handshake.keys if is_authenticated else None, most_bytes)


class Door(Generic[G]):
    """Those who have connected to one listener and have not proved themselves yet: at most `most`,
    each for at most `seconds`. `part` is called with each that is turned away. Any thread may use
    it."""

    def __init__(
        self, clock: Clock, most: int, seconds: float, part: Callable[[G], object]
    ) -> None:
        self._clock = clock
        self._most = most
        self._seconds = seconds
        self._part = part
        self._lock = threading.Lock()
        self._guests: dict[G, float] = {}  # the oldest first, with their time's end
        self._refused: Counter[str] = Counter()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Door · {len(self)} of at most {self._most} guests>"

    def __len__(self) -> int:
        return len(self._guests)

    def admit(self, guest: G) -> bool:
        """Takes in somebody who has connected; returns False where nobody is let in any more."""
        oldest = None
        with self._lock:
            if len(self._guests) >= self._most:
                oldest = next(iter(self._guests))
            self._guests[guest] = self._clock.now() + self._seconds
        if oldest is not None:
            self.turn_away(oldest, PUSHED_OUT)
        if self._closed:
            self.turn_away(guest, GONE)
        return not self._closed

    def let_in(self, guest: G) -> bool:
        """Lets in a guest that has proved itself; returns False if it was turned away before."""
        with self._lock:
            return self._guests.pop(guest, None) is not None

    def turn_away(self, guest: G, reason: str) -> None:
        """Turns a guest away for a reason, which is counted; harmless when repeated."""
        with self._lock:
            is_known = self._guests.pop(guest, None) is not None
            if is_known:
                self._refused[reason] += 1
        if is_known:
            self._part(guest)

    def make_room(self) -> None:
        """Makes room for a new connection where this process can open no more files: turns away the
        guest that has been here longest, unless it may be about to prove itself."""
        latest = self._clock.now() + self._seconds - _USUAL_SECONDS
        with self._lock:
            oldest, end = next(iter(self._guests.items()), (None, 0.0))
        if oldest is not None and end < latest:
            self.turn_away(oldest, PUSHED_OUT)

    def seconds_to_next(self) -> float | None:
        """Returns how long until `pass_time` wants to be called; None for never."""
        with self._lock:
            first = next(iter(self._guests.values()), None)
        return seconds_until(first, self._clock)

    def pass_time(self) -> None:
        """Turns away those whose time is over."""
        now = self._clock.now()
        with self._lock:
            first = next(iter(self._guests.values()), now)
            if now - first > _USUAL_SECONDS:
                self._guests = dict.fromkeys(self._guests, now + self._seconds)
            due = itertools.takewhile(lambda each: each[1] <= now, self._guests.items())
            late = [guest for guest, _ in due]
        for guest in late:
            self.turn_away(guest, TOO_SLOW)

    def refused(self) -> dict[str, int]:
        """Returns how many were turned away, by reason."""
        with self._lock:
            return dict(self._refused)

    def close(self) -> None:
        """Turns all away, and whoever comes later."""
        self._closed = True
        for guest in list(self._guests):
            self.turn_away(guest, GONE)
