"""Who holds which block of a pool: the bookkeeping, apart from the memory. Values in, values out.

A *block* is lent to one holder at a time and comes back, warm, to be lent again. Blocks are made
as they are needed and belong to one *owner* each (a connection, say), all together within
`capacity_bytes`. What is lent and what is spare is counted; spare blocks of anybody go, the longest
unused first, when another one needs the room.

A block that is new is dearer than no block at all: its memory has never been touched. It pays when
it is used again. So an owner may have `TRIAL_BLOCKS` of a size, and one more each time that one of
them comes back and is used again: where everything is kept, no more than the trial is lost. (Those
who cannot do without have a ledger without limits.)
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from lockstitch.memory.sizes import fits, rounded

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

TRIAL_BLOCKS: Final = 4
MOST_BLOCKS: Final = 1024
"""How many blocks one owner may have."""


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
    """What one owner has."""

    fresh: Iterator[int]
    """Numbers that no block has had."""
    unused: list[int] = field(default_factory=list)
    """Numbers that a block has had, and that nobody uses any more."""
    lent: dict[int, Block] = field(default_factory=dict)
    spare: dict[int, list[Block]] = field(default_factory=dict)
    """The free blocks by size; each list ends with the block that came back last: it is the
    warmest."""
    retired: set[int] = field(default_factory=set)
    counts: Counter[int] = field(default_factory=Counter)
    reused: Counter[int] = field(default_factory=Counter)

    def all_spare(self) -> Iterator[Block]:
        return chain.from_iterable(self.spare.values())


class Ledger:
    """See the module. Not for several threads at once."""

    def __init__(
        self,
        capacity_bytes: int,
        trial_blocks: int = TRIAL_BLOCKS,
        most_blocks: int = MOST_BLOCKS,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.bytes = 0
        self.spare_bytes = 0
        self._trial_blocks = trial_blocks
        self._most_blocks = most_blocks
        self._accounts: dict[Hashable, _Account] = {}

    @classmethod
    def without_limits(cls) -> Ledger:
        """One that lends to whoever asks."""
        return cls(sys.maxsize, sys.maxsize, sys.maxsize)

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
            for block in (*account.lent.values(), *account.all_spare())
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
        if account is None or not self.spare_bytes:
            return None
        size = rounded(nbytes)
        if not account.spare.get(size):
            spare = account.spare.items()
            size = min((each for each, same in spare if same and fits(each, nbytes)), default=0)
            if not size:
                return None
        block = account.spare[size].pop()
        block.is_lent = True
        block.used_at = now
        account.lent[block.number] = block
        account.reused[size] += 1
        self.spare_bytes -= size
        return block

    def lend_again(self, block: Block) -> None:
        """A lent block has come back and is lent again at once."""
        self._accounts[block.owner].reused[block.size] += 1

    def make(self, owner: Hashable, nbytes: int, now: float) -> tuple[Block | None, list[Block]]:
        """Lends a new block, whose memory is still to be made; None where that does not pay or
        there is no room. Also returns spare blocks that had to go, whose memory is to be freed."""
        size = rounded(nbytes)
        if not nbytes or size > self.capacity_bytes:
            return None, []
        account = self._account(owner)
        if account.counts[size] >= self._trial_blocks + account.reused[size]:
            return None, []
        excess = self.bytes + size - self.capacity_bytes
        gone = self._make_room(excess) if excess > 0 else []
        if gone is None:
            return None, []
        number = account.unused.pop() if account.unused else next(account.fresh, None)
        if number is None:
            return None, gone
        block = Block(owner, number, size, used_at=now)
        account.lent[number] = block
        account.counts[size] += 1
        self.bytes += size
        return block, gone

    def _account(self, owner: Hashable) -> _Account:
        account = self._accounts.get(owner)
        if account is None:
            account = self._accounts[owner] = _Account(iter(range(self._most_blocks)))
        return account

    def _make_room(self, excess: int) -> list[Block] | None:
        """Drops spare blocks of at least `excess` bytes, or none at all."""
        if excess > self.spare_bytes:
            return None
        return self.drop_idle(float("inf"), self.spare_bytes - excess)

    # ------------------------------------------------------------ coming back, going

    def give_back(self, block: Block, now: float) -> None:
        """Its holder has let go of a block: it may be lent again."""
        account = self._accounts[block.owner]
        del account.lent[block.number]
        block.is_lent = False
        block.used_at = now
        account.spare.setdefault(block.size, []).append(block)
        self.spare_bytes += block.size

    def drop(self, block: Block) -> None:
        """A block is no more."""
        self._removed(block).unused.append(block.number)

    def reserve(self, owner: Hashable) -> int | None:
        """A number of an owner for memory that is another's, in use until `release`; None where it
        has no more numbers."""
        account = self._account(owner)
        return account.unused.pop() if account.unused else next(account.fresh, None)

    def release(self, owner: Hashable, number: int) -> None:
        """A number that was reserved may be used again; nothing, where the owner is gone."""
        account = self._accounts.get(owner)
        if account is not None:
            account.unused.append(number)

    def retire(self, block: Block) -> None:
        """A lent block will never be lent again; its number may not be used until `clear`."""
        self._removed(block).retired.add(block.number)

    def clear(self, owner: Hashable, number: int) -> None:
        """Takes note that nobody uses the retired block of that number any more."""
        account = self._accounts[owner]
        account.retired.remove(number)
        account.unused.append(number)

    def _removed(self, block: Block) -> _Account:
        account = self._accounts[block.owner]
        if block.is_lent:
            del account.lent[block.number]
            block.is_lent = False
        else:
            account.spare[block.size].remove(block)
            self.spare_bytes -= block.size
        account.counts[block.size] -= 1
        self.bytes -= block.size
        return account

    def drop_owner(self, owner: Hashable) -> list[Block]:
        """An owner is gone, and all its blocks with it."""
        account = self._accounts.pop(owner, None)
        if account is None:
            return []
        spare = list(account.all_spare())
        gone = [*account.lent.values(), *spare]
        self.bytes -= sum(block.size for block in gone)
        self.spare_bytes -= sum(block.size for block in spare)
        return gone

    def drop_idle(self, before: float, kept_bytes: int = 0) -> list[Block]:
        """Drops spare blocks that nobody has used since `before`, the longest unused first, until
        no more than `kept_bytes` are spare."""
        spare = [block for account in self._accounts.values() for block in account.all_spare()]
        spare.sort(key=lambda block: block.used_at)
        gone = []
        for block in spare:
            if block.used_at >= before or self.spare_bytes <= kept_bytes:
                break
            gone.append(block)
            self.drop(block)
        return gone
