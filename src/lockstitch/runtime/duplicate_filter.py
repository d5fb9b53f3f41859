"""Which requests of a peer have come already: a function runs once at most.

A caller numbers its requests upwards, but two of its threads may send theirs in another order, and
some numbers are never sent. So it is remembered which numbers below the greatest are still missing;
of those only the last ones, since what is very late does not come any more.
"""

from __future__ import annotations

from lockstitch.errors import RemoteProtocolError

_MOST_MISSING = 4096
_LONGEST_LEAP = 1 << 20


class DuplicateFilter:
    """Remembers which numbers have come over one connection."""

    def __init__(self) -> None:
        self.next = 1
        """One more than the greatest so far."""
        self.repeated = 0
        self._missing: dict[int, None] = {}
        self._given_up: dict[int, None] = {}

    def is_new(self, number: int) -> bool:
        """Whether a request comes for the first time. Raises `RemoteProtocolError` for a number
        that no caller can have reached."""
        if number >= self.next:
            self._leap_to(number)
            self.next = number + 1
            return True
        if number in self._missing:
            del self._missing[number]
            return True
        self.repeated += 1
        return False

    def _leap_to(self, number: int) -> None:
        """The next one is `number`; those before it are missing."""
        if number - self.next > _LONGEST_LEAP:
            raise RemoteProtocolError(f"request {number} follows request {self.next - 1}")
        first = max(self.next, number - _MOST_MISSING)
        self._missing.update(dict.fromkeys(range(first, number)))
        self.next = max(self.next, number)
        _trim(self._missing)

    def give_up(self, number: int) -> None:
        """The caller does not want that request's answer any more."""
        if number >= self.next:  # should it come yet, it is not simply the next
            self._leap_to(number + 1)
        self._given_up[number] = None
        _trim(self._given_up)

    def is_given_up(self, number: int) -> bool:
        """Whether the caller has given that request up, so that it need not be begun."""
        return bool(self._given_up) and number in self._given_up


def _trim(numbers: dict[int, None]) -> None:
    while len(numbers) > _MOST_MISSING:
        numbers.pop(next(iter(numbers)), None)
