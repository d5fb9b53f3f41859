"""What one worker sends to several others of its host, copied once for all of them.

    sender: HostCopies.copy_of ─ the first time: copied into memory ─► handed over to each peer
    peer:   maps it for itself alone: a page becomes its own when it writes there

The memory is filled before anybody gets it, and not written to as long as anybody has it. When all
have let go of it the pool lends it again, warm (`segments.SegmentPool`).
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from lockstitch.memory.sizes import aligned

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from lockstitch.memory.mapping import Mapping

LEAST_BYTES: Final = 2 << 20
"""Less than this is copied for each: that takes no longer than to map it."""


class Copied(Protocol):
    """Memory to be copied; a `wire.tensors.Memory` is one."""

    address: int
    nbytes: int

    def copy_to(self, address: int) -> None:
        """Copies the bytes."""
        ...


class HostCopy:
    """Memory of `size` bytes at `address`, to be filled once and handed over by its `descriptor`,
    which becomes its own. `users` have it, as (connection, number)."""

    def __init__(self, memory: Mapping, descriptor: int) -> None:
        self._memory = memory
        self.address = memory.address
        self.size = memory.size
        self.descriptor = descriptor
        self.users: set[tuple[Hashable, int]] = set()
        self.is_open = True
        """More users may come."""
        self.is_spent = False
        """Somebody may have it without being a user: it can never be filled again."""
        weakref.finalize(self, os.close, descriptor).atexit = False

    def give_up(self) -> None:
        """Frees the memory. Nobody uses it."""
        self._memory.give_up()


Make: TypeAlias = Callable[[int], "HostCopy | None"]
"""Returns memory for so many bytes, None where there is none."""
Filled: TypeAlias = Callable[[Make], "HostCopy | None"]
"""Returns the filled memory; asks for it where that has not been done. None: do without."""


class HostCopies:
    """The copy that several messages share, if they bring the same: for messages that are made one
    after the other while nobody changes what they bring. `close` it then."""

    def __init__(self) -> None:
        self._copy: HostCopy | None = None
        self._memories: Sequence[Copied] = ()
        """What was copied. Kept, so that nothing else can lie at the same address."""

    def copy_of(self, memories: Sequence[Copied], nbytes: int, make: Make) -> HostCopy | None:
        """The memory in which these lie, each aligned, `nbytes` in all; None where there is no gain
        in it, or no room, or it holds something else."""
        if nbytes < LEAST_BYTES or not all(each.address for each in memories):
            return None
        if not self._memories:
            self._memories = list(memories)
            self._copy = make(nbytes)
            if self._copy is not None:
                _fill(self._copy, memories)
        is_same = [(each.address, each.nbytes) for each in memories] == [
            (each.address, each.nbytes) for each in self._memories
        ]
        return self._copy if is_same else None

    def close(self) -> None:
        """Nobody else will get it; harmless when repeated."""
        copy, self._copy, self._memories = self._copy, None, ()
        if copy is not None:
            copy.is_open = False


def _fill(copy: HostCopy, memories: Sequence[Copied]) -> None:
    address = copy.address
    for memory in memories:
        memory.copy_to(address)
        address += aligned(memory.nbytes)
