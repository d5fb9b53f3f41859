"""Where to find a group that workers join and leave: some of its members, in the store.

The store holds one value, which is only ever replaced whole and by comparison: which group it is
(`group_id`), and of each member that has come in its mark, where it listens, and who it is. The
members decide who comes in (`membership_protocol`); in the store a newcomer only finds one. Of a
large group 64 members are named: a newcomer neither reads nor writes all of them.

A newcomer that finds nobody alive there founds the group anew. One that was let in by a member of
the former group at that very moment does not count: it has to add itself to the value it has read,
and that is no longer there. Of two founders, one comes first. So there is one group, not two.

For that one of the living must be named here at any time. So nobody is taken out on suspicion: a
member that is cut off takes all others for dead, and may yet reach the store. Only the eldest takes
members out, once another member has shown that the eldest is not the one that is cut off
(`membership_events.Confirmed`); it also enters those that came by invitation. And the last of those
that are named here, if it leaves in good order, names those who stay.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockstitch.errors import RemoteProtocolError
from lockstitch.link.codec import Codec
from lockstitch.rendezvous.member_records import MemberRecords
from lockstitch.rendezvous.roster import Member

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch.distributed.distributed_c10d import Store

    from lockstitch.rendezvous.member_records import MemberRecord

_KEY = "group"
MOST_NAMED: Final = 64
"""Up to so many members are named: more than die at once, before others are named instead."""
MIXED = "RPC group mixes statically and dynamically initialized members which is not supported."


@dataclass(frozen=True, slots=True)
class Group:
    """What the store says of the group: `members` by mark, the eldest first. `group_id` is empty
    where there has never been a group; `text` is how it is written there."""

    group_id: str
    members: Mapping[str, Member]
    text: str


class Contacts:
    """The members' addresses in a store. Its methods raise `RuntimeError` when the store has
    gone."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self) -> Group:
        """Returns what the store says now."""
        return _decode(self._store.get(_KEY) if self._store.check([_KEY]) else b"")

    def found(self, seen: Group, group_id: str, mark: str, me: Member) -> bool:
        """Begins a new group in place of the one that was `seen`; returns False if the store has
        changed since."""
        return self._replace(seen, group_id, {mark: me})

    def add(self, group_id: str, mark: str, me: Member) -> bool:
        """Adds a member that has come in, unless many are named already; returns False if there is
        another group by now."""
        return self._change(group_id, lambda members: _some({**members, mark: me}))

    def update(self, group_id: str, records: Iterable[MemberRecord]) -> None:
        """Takes out those who are gone, and enters those who are in, however they came; harmless
        when repeated, or for another group."""
        table = MemberRecords(records)

        def change(members: Mapping[str, Member]) -> dict[str, Member]:
            kept = {mark: who for mark, who in members.items() if not table.is_over(who.id)}
            return _some({**kept, **{record.mark: record.member for record in table.living()}})

        self._change(group_id, change)

    def remove(self, group_id: str, mark: str, heirs: Iterable[MemberRecord] = ()) -> None:
        """Takes out one that goes, and enters its `heirs` if none of them is there; harmless when
        repeated, or for another group."""
        others = {record.mark: record.member for record in heirs}

        def change(members: Mapping[str, Member]) -> dict[str, Member]:
            kept = {each: who for each, who in members.items() if each != mark}
            return kept if others.keys() & kept.keys() else _some({**kept, **others})

        self._change(group_id, change)

    def count_groups(self) -> int:
        """Counts one more group; returns how many there were in this store before, which is the
        generation of the new one's members."""
        return int(self._store.add("groups", 1)) - 1

    def check_is_not_static(self) -> None:
        """Raises `RuntimeError` when a static group meets on this store."""
        if self._store.add("members/static", 0) > 0:
            raise RuntimeError(MIXED)

    def _change(
        self, group_id: str, change: Callable[[Mapping[str, Member]], dict[str, Member]]
    ) -> bool:
        while True:
            seen = self.read()
            if seen.group_id != group_id:
                return False
            members = change(seen.members)
            if members == seen.members or self._replace(seen, group_id, members):
                return True

    def _replace(self, seen: Group, group_id: str, members: Mapping[str, Member]) -> bool:
        entries = tuple((mark, member.encode()) for mark, member in members.items())
        text = _CODEC.encode(_Entry(group_id, entries)).decode()
        return bytes(self._store.compare_set(_KEY, seen.text, text)).decode() == text


@dataclass(frozen=True, slots=True)
class _Entry:
    """A group as it is written in the store, where workers of other versions may look, too."""

    world: str
    members: tuple[tuple[str, str], ...]
    """Pairs of a mark and a member's entry (`Member.encode`)."""


def _some(members: Mapping[str, Member]) -> dict[str, Member]:
    """Returns those that are named: the first."""
    return dict(itertools.islice(members.items(), MOST_NAMED))


_COMPLAINT = "the store holds no group"
_CODEC = Codec(_Entry, complaint=_COMPLAINT, by_name=True)


def _decode(value: bytes) -> Group:
    if not value:
        return Group("", {}, "")
    entry = _CODEC.decode(value)
    try:
        members = {mark: Member.decode(who.encode()) for mark, who in entry.members}
        return Group(entry.world, members, value.decode())
    except UnicodeError as error:
        raise RemoteProtocolError(f"{_COMPLAINT}: {value!r}") from error
