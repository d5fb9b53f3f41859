"""Where others connect to a rank: lets in those who prove that they belong to the job.

The thread that has the poller asks the entrance about each thing that the poller names
(`look_at`), opens it again after each turn (`reopen`), and lets time pass for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstitch.link.door import Door, Guest

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.clock import Clock
    from lockstitch.link.handshake import ListenerHandshake
    from lockstitch.transport import Connection, Listener, Pollable, Poller

_MOST_STRANGERS: Final = 128
_GUEST_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.1
"""Where nobody can be let in, one looks again after so long."""


class Entrance:
    """The listener of a rank, and those who have connected and not proved themselves yet.

    `expected`: how many may come at once, beside strangers. `handshake` makes what a guest is
    greeted by; `welcome` is called with each that has proved itself, and returns whether the poller
    is to go on with its connection.
    """

    def __init__(
        self,
        listener: Listener,
        poller: Poller,
        clock: Clock,
        handshake: Callable[[], ListenerHandshake],
        welcome: Callable[[Guest[Connection]], bool],
        *,
        expected: int = 0,
    ) -> None:
        self._listener = listener
        self._poller = poller
        self._handshake = handshake
        self._welcome = welcome
        most = _MOST_STRANGERS + expected
        self._door: Door[Guest[Connection]] = Door(clock, most, _GUEST_SECONDS, self.turn_away)
        self._guests: dict[int, Guest[Connection]] = {}
        """By what the poller knows of them: the connection."""
        self._is_full = False

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._listener.address

    def open(self) -> None:
        """Listens from now on."""
        self._poller.add(self._listener)
        self._poller.arm(self._listener)

    def reopen(self) -> None:
        """Looks again whether this process can open another file, where it could not."""
        if self._is_full:
            self._poller.arm(self._listener)

    def look_at(self, pollable: Pollable) -> bool:
        """Does what is to be done for something that the poller has named; returns whether that is
        the entrance's own."""
        if pollable is self._listener:
            self._let_in()
            return True
        guest = self._guests.get(id(pollable))
        if guest is None:
            return False
        if self._goes_on(guest):
            self._poller.arm(pollable)
        return True

    def turn_away(self, guest: Guest[Connection]) -> None:
        """Ends the connection of a guest."""
        self._poller.remove(guest.stream)
        self._guests.pop(id(guest.stream), None)
        guest.stream.close()

    def seconds_to_next(self) -> float | None:
        """How long until it wants to be asked again; None for never."""
        waits = (self._door.seconds_to_next(), _PAUSE_SECONDS if self._is_full else None)
        return min((wait for wait in waits if wait is not None), default=None)

    def pass_time(self) -> None:
        """Turns away those whose time is over."""
        self._door.pass_time()

    def close(self) -> None:
        """Lets nobody in any more."""
        self._door.close()
        self._listener.close()

    # ------------------------------------------------------------ inside

    def _let_in(self) -> None:
        """Takes in somebody who has connected; they wait where this process can open no more
        files."""
        try:
            connection = self._listener.accept()
        except OSError:
            self._is_full = True
            self._door.make_room()
            return
        self._is_full = False
        if connection is not None:
            guest = self._guests[id(connection)] = Guest(connection, self._handshake())
            self._poller.add(connection)
            self._poller.arm(connection)
            self._door.admit(guest)
        self._poller.arm(self._listener)

    def _goes_on(self, guest: Guest[Connection]) -> bool:
        """Hears a guest; returns whether more is to be heard over its connection."""
        refusal = guest.listen()
        if refusal is None:
            return True
        if refusal:
            self._door.turn_away(guest, refusal)
            return False
        if not self._door.let_in(guest):
            return False
        del self._guests[id(guest.stream)]
        return self._welcome(guest)
