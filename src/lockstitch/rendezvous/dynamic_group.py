"""A group that ranks join and leave at any time.

- `name/<name>`: the member's entry, or empty after it has left
- `rank/<rank>`: the name of the member with that rank, or empty
- `lives/<rank>`: how often that rank has been taken; its generation
- `left/<rank>/<generation>`: how often somebody has struck that member out; the first counts
- `newcomers`: how many have joined so far
- `newcomer/<n>`: the name of the nth

Names and ranks are *claimed*: `compare_set` from empty to taken, which the store does for one
worker only. So joins need no lock that a dying worker could keep. Whoever is in already learns of
newcomers when it asks: for one it does not know, or for all.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from typing import TYPE_CHECKING

from lockstitch.ids import MAX_GENERATION, WorkerId, WorkerInfo
from lockstitch.rendezvous.roster import Member, Table, name_is_taken
from lockstitch.rendezvous.store import read_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.distributed_c10d import Store


class DynamicRoster:
    """The `Roster` of a dynamic group; `withdraw` is called once for each member struck out."""

    def __init__(self, store: Store, me: Member, withdraw: Callable[[], None]) -> None:
        self._store = store
        self._me = me
        self._withdraw = withdraw
        self._lock = threading.Lock()  # of what follows; never held while asking the store
        self._table = Table([me])
        self._names: dict[str, None] = {}  # of all newcomers so far, in their order
        self._newcomers_read = 0

    def __repr__(self) -> str:
        return f"<DynamicRoster of {self.me.name!r} · {len(self._table.members())} known>"

    @property
    def me(self) -> WorkerInfo:
        return self._me.info

    def find(self, who: str | int | WorkerId) -> Member | None:
        with self._lock:
            known = self._table.find(who)
        if known is not None:
            return known
        member = self._look_up(who)
        if member is None or (isinstance(who, WorkerId) and member.id != who):
            return None
        with self._lock:
            self._table.add(member)
        return member

    def forget(self, member: Member) -> None:
        with self._lock:
            self._table.remove(member)

    def evict(self, member: Member) -> None:
        self.forget(member)
        store = self._store
        if store.add(f"left/{member.id.rank}/{member.id.generation}", 1) == 1:
            store.compare_set(_name_key(member.info.name), member.encode(), "")
            store.set(_rank_key(member.id.rank), "")
            self._withdraw()

    def members(self) -> list[Member]:
        names = self._all_names()
        entries = read_all(self._store, [_name_key(name) for name in names])
        table = Table(Member.decode(entry) for entry in entries if entry)
        with self._lock:
            self._table = table
        return table.members()

    def leave(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store may have gone with its host
            self.evict(self._me)

    def _look_up(self, who: str | int | WorkerId) -> Member | None:
        if not isinstance(who, str):
            rank = who.rank if isinstance(who, WorkerId) else who
            who = _holder(_read(self._store, _rank_key(rank)))
        entry = _read(self._store, _name_key(who)) if who else b""
        return Member.decode(entry) if entry else None

    def _all_names(self) -> list[str]:
        with self._lock:
            first = self._newcomers_read
        count = self._store.add("newcomers", 0)
        # One that has its number but has not yet written its name is not in yet: stop before it.
        keys = [_newcomer_key(number) for number in range(first, count)]
        if not (keys and self._store.check(keys)):
            keys = [key for key in keys if self._store.check([key])]
        names = [name.decode() for name in read_all(self._store, keys)]
        with self._lock:
            self._names.update(dict.fromkeys(names))
            if len(keys) == count - first:
                self._newcomers_read = max(self._newcomers_read, count)
            return list(self._names)


def enter(store: Store, me: Callable[[int, int], Member], name: str, rank: int) -> Member:
    """Claims a rank (the next free one when -1) and the name; returns `me(rank, generation)`.

    Raises RuntimeError when one of them is taken.
    """
    rank = _claim_rank(store, name, rank)
    member = me(rank, (store.add(f"lives/{rank}", 1) - 1) & MAX_GENERATION)
    entry = member.encode()
    holder = store.compare_set(_name_key(name), "", entry)
    if holder.decode() != entry:
        store.set(_rank_key(rank), "")
        raise RuntimeError(name_is_taken(name, Member.decode(holder).info.id, rank))
    store.set(_newcomer_key(store.add("newcomers", 1) - 1), name)
    return member


def _claim_rank(store: Store, name: str, rank: int) -> int:
    # With a mark of its own, lest a worker takes its namesake's claim for its own.
    claim = f"{name}/{uuid.uuid4().hex}"
    wants_any = rank < 0
    while True:
        if wants_any:
            rank = store.add("ranks", 1) - 1
        value = store.compare_set(_rank_key(rank), "", claim)
        if value.decode() == claim:
            return rank
        if not wants_any:
            raise RuntimeError(f"rank {rank} is taken by worker {_holder(value)}")


def _holder(claim: bytes) -> str:
    """The name in a claim to a rank; empty when nobody claims it."""
    return claim.decode().partition("/")[0]


def _read(store: Store, key: str) -> bytes:
    """The value of `key`, empty when it was never set; keys are never deleted."""
    return bytes(store.get(key)) if store.check([key]) else b""


def _name_key(name: str) -> str:
    return f"name/{name}"


def _rank_key(rank: int) -> str:
    return f"rank/{rank}"


def _newcomer_key(number: int) -> str:
    return f"newcomer/{number}"
