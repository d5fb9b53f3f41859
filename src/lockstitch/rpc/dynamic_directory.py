"""The agent's directory of a group that workers join and leave: who is in, where to reach them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch.errors import PeerDiedError, PeerLeftError
from lockstitch.rendezvous.hosts import elsewhere, reach
from lockstitch.rendezvous.member_records import MemberRecord, MemberState
from lockstitch.rendezvous.roster import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.ids import WorkerId, WorkerInfo
    from lockstitch.rendezvous.membership_protocol import MembershipProtocol
    from lockstitch.rendezvous.roster import Member
    from lockstitch.transport.base import Connection, Transport


def gone(record: MemberRecord) -> PeerDiedError:
    """Returns the error for those that want a worker whose life in the group has ended."""
    error = PeerLeftError if record.state is MemberState.LEFT else PeerDiedError
    return error(record.name, record.cause)


class DynamicDirectory:
    """The agent's `Directory` of such a group, as of the last change. Lookups take no lock."""

    is_fixed = False

    def __init__(self, protocol: MembershipProtocol, transport: Transport) -> None:
        self._transport = transport
        self._table = Table()
        self._infos: dict[WorkerId, WorkerInfo] = {}
        self._ended: dict[WorkerId, MemberRecord] = {}
        self.update(protocol.records.living())

    def update(self, living: Sequence[MemberRecord], ended: MemberRecord | None = None) -> None:
        """Takes in a change: who is in now, and whose life has `ended`, if one has."""
        self._table = Table(record.member for record in living)
        for record in living:
            self._infos[record.id] = record.member.info
        if ended is not None:
            self._infos[ended.id] = ended.member.info
            self._ended[ended.id] = ended

    def find(self, key: str | int | WorkerId) -> WorkerInfo | None:
        """Returns the worker with that identity, also if it is gone, or that name or rank, if it is
        in. Raises `PeerDiedError` or `PeerLeftError` for a name or rank whose worker is gone."""
        if isinstance(key, tuple):
            return self._infos.get(key)
        member = self._table.find(key)
        if member is not None:
            return member.info
        for record in reversed(list(self._ended.values())):
            if key in (record.name, record.id.rank):
                raise gone(record)
        return None

    def members(self) -> Sequence[WorkerInfo]:
        return [member.info for member in self._table.members()]

    def connect(self, peer: WorkerInfo, timeout_seconds: float) -> Connection:
        member = self._table.find(peer.worker)
        ended = self._ended.get(peer.worker)
        if ended is not None and ended.state is MemberState.LEFT:
            member = ended.member  # it waits to be told that this is known here
        if member is None:
            cause = "" if ended is None else f": {ended.cause}"
            raise ConnectionError(f"worker {peer.name!r} is not in the group any more{cause}")
        return self.reach(member, timeout_seconds)

    def elsewhere(self, worker: WorkerId) -> str:
        ended = self._ended.get(worker)
        return elsewhere(self._table.find(worker) if ended is None else ended.member)

    def reach(self, member: Member, timeout_seconds: float) -> Connection:
        """Connects to a worker that is a member, or was one."""
        return reach(member, self._transport, timeout_seconds)
