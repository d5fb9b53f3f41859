"""The meeting of a group so large that nobody reads the entries of all.

The ranks are cut into blocks of 32, these into blocks of 32 blocks, and so on, until one block has
all. Of each block one rank is the *speaker*: it waits for the entries of its block's ranks, or for
what the speakers of smaller blocks have found, and publishes the census of the block. All others
wait for the census of the largest block. So each rank makes a fixed number of requests, and reads
some kilobytes, however many ranks there are.

- `meeting/<n>/census/<level>/<block>`: the census of a block
- `meeting/<n>/name/<name>`: the rank of the worker of that name

A member's entry is read when somebody first wants to reach it. For that the store has to be there
still; what has been read is kept.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.errors import RemoteProtocolError, RpcError
from lockstitch.ids import WorkerId
from lockstitch.rendezvous.arrivals import ARRIVALS, arrivals_of
from lockstitch.rendezvous.census import Census
from lockstitch.rendezvous.reaching import say
from lockstitch.rendezvous.roster import Member, Table, name_is_taken
from lockstitch.rendezvous.store import another_client, missing_keys, read_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.distributed.distributed_c10d import Store

    from lockstitch.attach.values import OtherWait
    from lockstitch.clock import Clock

MOST_WHO_READ_ALL: Final = 64
"""Up to so many ranks, all read all entries."""
BLOCK: Final = 32
"""Of so many ranks, or smaller blocks, one speaks for all."""
CALLED_OFF: Final = "called off"
_LEAST_SECONDS: Final = 0.01
# Of so many blocks that are not complete the missing ranks are looked for.
_BLOCKS_LOOKED_AT = 4


@dataclass(frozen=True, slots=True)
class _Block:
    """Some neighbouring ranks."""

    level: int
    index: int
    ranks: range

    @property
    def speaker(self) -> int:
        """The rank that speaks for it: of nested blocks another one each, where there are so
        many."""
        return min(self.ranks.start + self.level - 1, self.ranks.stop - 1)


class LargeMeeting:
    """The nth meeting of `size` ranks, as `rank` goes through it. `what`: where its keys are."""

    def __init__(  # noqa: PLR0913 - all that it works with
        self,
        store: Store,
        meeting: int,
        rank: int,
        size: int,
        width: int,
        clock: Clock = SYSTEM_CLOCK,
        *,
        what: str = "meeting",
    ) -> None:
        self._store = store
        self._clock = clock
        self._meeting = meeting
        self._place = f"{what}/{meeting}"
        self._rank = rank
        self._size = size
        self._width = width
        self._waiting: Store | None = None
        """Another client of the store, which waits."""
        self._top = 1
        while width**self._top < size:
            self._top += 1

    def __repr__(self) -> str:
        return f"<LargeMeeting {self._meeting} of {self._size} ranks · rank {self._rank}>"

    def take_name(self, name: str) -> str | None:
        """Enters this rank under its name; returns the text of the error where another one has
        it."""
        said = self._store.compare_set(self.name_key(name), "", str(self._rank))
        owner = _rank_in(said)
        return None if owner == self._rank else name_is_taken(name, owner, self._rank)

    def census(self, timeout_seconds: float) -> Census | str | list[int]:
        """Waits for all. Returns the census, or why the meeting has been called off, or the ranks
        that are missing when the time is over: as many of them as one finds quickly."""
        try:
            with ARRIVALS.awaited(self._awaited):
                return self._found(self._clock.now() + timeout_seconds)
        finally:
            self._waiting = None

    def give_up(self, name: str) -> None:
        """Takes back what this rank has written, so that the ranks can try again."""
        for key in (self.name_key(name), *map(self._key, self._own_blocks())):
            self._store.delete_key(key)

    def call_off(self, why: str) -> None:
        """Ends the wait of all, in blocks too whose speaker will not come."""
        for level in range(1, self._top + 1):
            for index in range(-(-self._size // self._width**level)):
                self._store.compare_set(self._key(self._block(level, index)), "", why)

    def is_complete(self) -> bool:
        """Returns whether all have met."""
        return self._store.check([self._key(self._block(self._top, 0))])

    def entry_key(self, rank: int) -> str:
        """Where the entry of a rank is."""
        return f"{self._place}/{rank}"

    def name_key(self, name: str) -> str:
        """Where the rank is that has a name."""
        return f"{self._place}/name/{name}"

    # ------------------------------------------------------------ inside

    def _found(self, deadline: float) -> Census | str | list[int]:
        found: bytes = b""
        for block in self._own_blocks():
            if missing := self._wait(self._parts(block), deadline):
                return self._missing_ranks(block, missing)
            # Where the meeting has been called off meanwhile, some may have read that.
            found = self._store.compare_set(self._key(block), "", self._put_together(block))
        top = self._block(self._top, 0)
        if self._rank != top.speaker:
            if self._wait([self._key(top)], deadline):
                return self._missing_ranks(top, self._parts(top))
            found = self._store.get(self._key(top))
        return found.decode() if found.startswith(CALLED_OFF.encode()) else Census.decode(found)

    def _block(self, level: int, index: int) -> _Block:
        width = self._width**level
        return _Block(level, index, range(index * width, min((index + 1) * width, self._size)))

    def _own_blocks(self) -> Iterator[_Block]:
        """The blocks for which this rank speaks, the smaller first."""
        for level in range(1, self._top + 1):
            block = self._block(level, self._rank // self._width**level)
            if block.speaker == self._rank:
                yield block

    def _key(self, block: _Block) -> str:
        return f"{self._place}/census/{block.level}/{block.index}"

    def _smaller(self, block: _Block) -> list[_Block]:
        """The blocks of which a block is made, one level down."""
        width = self._width ** (block.level - 1)
        return [self._block(block.level - 1, first // width) for first in block.ranks[::width]]

    def _parts(self, block: _Block) -> list[str]:
        """The keys of what a block's speaker puts together."""
        if block.level == 1:
            return [self.entry_key(rank) for rank in block.ranks]
        return [self._key(each) for each in self._smaller(block)]

    def _put_together(self, block: _Block) -> str:
        """Returns what the speaker of a block publishes."""
        try:
            parts = read_all(self._store, self._parts(block))
            for part in parts:
                if part.startswith(CALLED_OFF.encode()):
                    return part.decode()
            if block.level == 1:
                census = Census.of(map(Member.decode, parts))
            else:
                census = Census.joined(map(Census.decode, parts))
        except RemoteProtocolError as error:
            return f"{CALLED_OFF} ({error})"
        return (census.numbered() if block.level == self._top else census).encode()

    def _wait(self, keys: list[str], deadline: float) -> list[str]:
        def notice(missing: list[str]) -> None:
            if len(keys) > 1:  # the speakers say it, and each for its block
                say(f"rank {self._rank} waits for {len(missing)} of {len(keys)}: {missing[:8]}")

        if self._waiting is None:
            self._waiting = another_client(self._store)
        # To torch's stores no time at all means for ever.
        left = max(_LEAST_SECONDS, deadline - self._clock.now())
        return missing_keys(self._store, keys, left, notice, waiting=self._waiting)

    def _awaited(self) -> OtherWait:
        """For whom this rank waits: as many of them as one finds quickly."""
        top = self._block(self._top, 0)
        return arrivals_of(self._missing_ranks(top, self._parts(top)), self._size)

    def _missing_ranks(self, block: _Block, missing: list[str]) -> list[int]:
        if block.level == 1:
            keys = [self.entry_key(rank) for rank in block.ranks]
            return [r for r, key in zip(block.ranks, keys, strict=True) if key in missing]
        incomplete = [
            each
            for each in self._smaller(block)
            if self._key(each) in missing and not self._store.check([self._key(each)])
        ]
        found: list[int] = []
        for each in incomplete[:_BLOCKS_LOOKED_AT]:
            keys = [key for key in self._parts(each) if not self._store.check([key])]
            found += self._missing_ranks(each, keys)
        return found


class StoredTable:
    """The members of a large group, each read from the store when it is first asked for; from any
    thread. Raises `RpcError` where the store has gone by then."""

    def __init__(self, store: Store, meeting: LargeMeeting, size: int, me: Member) -> None:
        self._store = store
        self._meeting = meeting
        self._size = size
        self._known = Table([me])
        self._reading = threading.Lock()

    def find(self, who: str | int | WorkerId) -> Member | None:
        """Returns the member of that name, rank or id; None when there is none."""
        known = self._known.find(who)
        if known is not None:
            return known
        with self._reading:
            try:
                return self._read(who)
            except RemoteProtocolError:
                raise
            except RuntimeError as error:
                raise _gone(str(who), error) from error

    def members(self) -> list[Member]:
        """Returns all members, by rank. Reads all entries that have not been read before."""
        self.fetch(range(self._size))
        return self._known.members()

    def fetch(self, ranks: Iterable[int]) -> None:
        """Reads the entries of members that will be asked for, by one request."""
        with self._reading:
            wanted = [rank for rank in ranks if self._known.find(rank) is None]
            try:
                entries = read_all(self._store, list(map(self._meeting.entry_key, wanted)))
            except RemoteProtocolError:
                raise
            except RuntimeError as error:
                raise _gone("all workers", error) from error
            for entry in entries:
                self._known.add(Member.decode(entry))

    def _read(self, who: str | int | WorkerId) -> Member | None:
        if isinstance(who, str):
            key = self._meeting.name_key(who)
            if not self._store.check([key]):
                return None
            rank = _rank_in(self._store.get(key))
        else:
            rank = who.rank if isinstance(who, WorkerId) else who
        if not 0 <= rank < self._size:
            return None
        if self._known.find(rank) is None:
            self._known.add(Member.decode(self._store.get(self._meeting.entry_key(rank))))
        return self._known.find(who)


def _rank_in(value: bytes) -> int:
    try:
        return int(bytes(value).decode())
    except ValueError as error:
        raise RemoteProtocolError(f"the store holds no rank: {value!r}") from error


def _gone(who: str, error: Exception) -> RpcError:
    return RpcError(
        f"where to reach {who} stands in the store in which the workers met, and that has gone, "
        f"perhaps with rank 0 ({error}). In a group of more than {MOST_WHO_READ_ALL} workers "
        "each is looked up there when it is first called"
    )
