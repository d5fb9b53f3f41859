"""Who holds which block of a pool: the bookkeeping, apart from the memory. Values in, values out.

A *block* is lent to one holder at a time and comes back, warm, to be lent again. Blocks are made
as they are needed and belong to one *owner* each (a connection, say), all together within
`capacity_bytes`. What is lent and what is spare is counted; spare blocks of anybody go, the longest
unused first, when another one needs the room.

A block that is new is dearer than no block at all: its memory has never been touched. It pays when
it is used again. So an owner may have `TRIAL_BLOCKS` of a size, and one more each time that one of
them comes back and is used again: where everything is kept, no more than the trial is lost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

TRIAL_BLOCKS: Final = 4
MOST_BLOCKS: Final = 1024
"""How many blocks one owner may have."""
PAGE_BYTES: Final = 4096
# Sizes rise in eighths of a power of two, which wastes 6 % on average.
_STEPS_LOG2: Final = 3
# A block may be lent for much less than it holds, but not for less than this part of it.
_LEAST_PART: Final = 4


def rounded(nbytes: int) -> int:
    """The size of a block for `nbytes`."""
    step = max(PAGE_BYTES, 1 << max((nbytes - 1).bit_length() - 1 - _STEPS_LOG2, 0))
    return -(-nbytes // step) * step


@dataclass(eq=False, slots=True)
class Block:
    """A piece of memory: number `number` of its owner. `memory` is whatever the pool puts there."""

    owner: Hashable
    number: int
    size: int
    is_lent: bool = True
    used_at: float = 0.0
    memory: Any = None


@dataclass(slots=True)
class _Account:
    """What one owner has. `spare` ends with the block that came back last: it is the warmest."""

    lent: dict[int, Block] = field(default_factory=dict)
    spare: list[Block] = field(default_factory=list)
    retired: set[int] = field(default_factory=set)
    counts: Counter[int] = field(default_factory=Counter)
    reused: Counter[int] = field(default_factory=Counter)

    def fresh_number(self) -> int | None:
        """The smallest number that no block has, and none that may still be used elsewhere."""
        taken = {*self.lent, *self.retired, *(block.number for block in self.spare)}
        return next((number for number in range(MOST_BLOCKS) if number not in taken), None)


class Ledger:
    """See the module. Not for several threads at once."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.bytes = 0
        self._accounts: dict[Hashable, _Account] = {}

    def __repr__(self) -> str:
        return f"<Ledger · {len(self.blocks())} blocks · {self.bytes:,} of {self.capacity_bytes:,}>"

    def owners(self) -> list[Hashable]:
        """All that have had a block."""
        return list(self._accounts)

    def blocks(self) -> list[Block]:
        """All blocks there are."""
        return [
            block
            for account in self._accounts.values()
            for block in (*account.lent.values(), *account.spare)
        ]

    def lent(self, owner: Hashable) -> list[Block]:
        """The blocks of an owner that have not come back."""
        account = self._accounts.get(owner)
        return [] if account is None else list(account.lent.values())

    def retired(self, owner: Hashable) -> list[int]:
        """Numbers of an owner that no new block may have yet."""
        account = self._accounts.get(owner)
        return [] if account is None else list(account.retired)

    # ------------------------------------------------------------ lending

    def reuse(self, owner: Hashable, nbytes: int, now: float) -> Block | None:
        """Lends a spare block of `nbytes` or somewhat more; None if there is none."""
        account = self._accounts.get(owner)
        if account is None:
            return None
        spare = account.spare
        for place in range(len(spare) - 1, -1, -1):
            block = spare[place]
            if self.fits(block, nbytes):
                del spare[place]
                block.is_lent = True
                block.used_at = now
                account.lent[block.number] = block
                account.reused[block.size] += 1
                return block
        return None

    def lend_again(self, block: Block) -> None:
        """A lent block has come back and is lent again at once."""
        self._accounts[block.owner].reused[block.size] += 1

    @staticmethod
    def fits(block: Block, nbytes: int) -> bool:
        """Whether a block holds `nbytes`, and is not much too large for that."""
        return nbytes <= block.size <= max(nbytes, PAGE_BYTES) * _LEAST_PART

    def make(self, owner: Hashable, nbytes: int, now: float) -> tuple[Block | None, list[Block]]:
        """Lends a new block, whose memory is still to be made; None where that does not pay or
        there is no room. Also returns spare blocks that had to go, whose memory is to be freed."""
        size = rounded(nbytes)
        if not nbytes or size > self.capacity_bytes:
            return None, []
        account = self._accounts.setdefault(owner, _Account())
        number = account.fresh_number()
        if number is None or account.counts[size] >= TRIAL_BLOCKS + account.reused[size]:
            return None, []
        excess = self.bytes + size - self.capacity_bytes
        gone = self._make_room(excess) if excess > 0 else []
        if gone is None:
            return None, []
        block = Block(owner, number, size, used_at=now)
        account.lent[number] = block
        account.counts[size] += 1
        self.bytes += size
        return block, gone

    def _make_room(self, excess: int) -> list[Block] | None:
        """Drops spare blocks of at least `excess` bytes, or none at all."""
        spare = [block for account in self._accounts.values() for block in account.spare]
        spare.sort(key=lambda block: block.used_at)
        gone = []
        for block in spare:
            if excess <= 0:
                break
            gone.append(block)
            excess -= block.size
        if excess > 0:
            return None
        for block in gone:
            self.drop(block)
        return gone

    # ------------------------------------------------------------ coming back, going

    def give_back(self, block: Block, now: float) -> None:
        """Its holder has let go of a block: it may be lent again."""
        account = self._accounts[block.owner]
        del account.lent[block.number]
        block.is_lent = False
        block.used_at = now
        account.spare.append(block)

    def drop(self, block: Block) -> None:
        """A block is no more."""
        account = self._accounts[block.owner]
        if block.is_lent:
            del account.lent[block.number]
            block.is_lent = False
        else:
            account.spare.remove(block)
        account.counts[block.size] -= 1
        self.bytes -= block.size

    def retire(self, block: Block) -> None:
        """A lent block will never be lent again; its number may not be used until `clear`."""
        self.drop(block)
        self._accounts[block.owner].retired.add(block.number)

    def clear(self, owner: Hashable, number: int) -> None:
        """Nobody uses the retired block of that number any more."""
        self._accounts[owner].retired.discard(number)

    def drop_owner(self, owner: Hashable) -> list[Block]:
        """An owner is gone, and all its blocks with it."""
        account = self._accounts.pop(owner, None)
        if account is None:
            return []
        gone = [*account.lent.values(), *account.spare]
        self.bytes -= sum(block.size for block in gone)
        return gone

    def drop_idle(self, before: float) -> Sequence[Block]:
        """Drops the spare blocks that nobody has used since `before`."""
        idle = [
            block
            for account in self._accounts.values()
            for block in account.spare
            if block.used_at < before
        ]
        for block in idle:
            self.drop(block)
        return idle
