"""Room in one rank's part of the segment: which bytes are free. No memory is touched here.

Sizes are rounded up to one of eight per doubling, and what is given back is kept for the next
of its size, the latest first: memory that was just used is warm, and a first touch of fresh pages
costs more than the transfer. So the arena grows to the most that was in use of each size.
"""

from __future__ import annotations

from queue import SimpleQueue

_SMALLEST = 256


class ArenaFullError(Exception):
    """No room until something is given back."""


class Arena:
    """Hands out ranges of `capacity` bytes."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._top = _SMALLEST  # nothing lies at 0, which says "nowhere"
        self._free: dict[int, list[int]] = {}
        """By the size asked for; sizes that are rounded alike share a list."""
        self._of_size: dict[int, list[int]] = {}
        self._taken: dict[int, list[int]] = {}
        """What is handed out, and where it goes back to."""
        # Finalizers may run at any point, so they only leave a note.
        self._dropped: SimpleQueue[int] = SimpleQueue()

    def __repr__(self) -> str:
        return f"<Arena · {len(self)} ranges in use · {self._top} bytes touched>"

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, size: int) -> int:
        """Where a free range of at least `size` bytes begins; `ArenaFullError` if there is none."""
        if not self._dropped.empty():
            self.collect()
        free = self._free.get(size)  # most sizes have come before
        if free is None:
            free = self._free[size] = self._of_size.setdefault(rounded_up(size), [])
        if free:
            place = free.pop()
        else:
            rounded = rounded_up(size)
            place = self._top
            if place + rounded > self._capacity:
                raise ArenaFullError(f"{size} bytes do not fit; {self!r}")
            self._top += rounded
        self._taken[place] = free
        return place

    def give_back(self, place: int) -> None:
        """The range that begins there is free."""
        self._taken.pop(place).append(place)

    def drop(self, place: int) -> None:
        """Gives back from a finalizer: takes effect with the next `take`."""
        self._dropped.put(place)

    def collect(self) -> None:
        """Gives back what finalizers have dropped."""
        while not self._dropped.empty():
            self.give_back(self._dropped.get())


def rounded_up(size: int) -> int:
    """The size that is really taken."""
    if size <= _SMALLEST:
        return _SMALLEST
    step = 1 << max((size - 1).bit_length() - 4, 6)
    return (size + step - 1) // step * step
