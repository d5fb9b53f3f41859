"""How a worker joins its group: a static one by a meeting in the store, a dynamic one by being let
in by a member.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.errors import RpcError
from lockstitch.ids import WorkerId
from lockstitch.rendezvous import join
from lockstitch.rendezvous.contacts import Contacts
from lockstitch.rendezvous.hosts import elsewhere, host_reached_at, leads_here, reach, why_apart
from lockstitch.rendezvous.membership_protocol import MembershipProtocol
from lockstitch.rendezvous.static_group import failing_together
from lockstitch.rpc.admission import Admission, Invitation, asking
from lockstitch.rpc.device_maps import HAS_DEVICES, agree
from lockstitch.rpc.dynamic_directory import DynamicDirectory
from lockstitch.rpc.dynamic_membership import DynamicMembership
from lockstitch.rpc.membership import Membership, StaticMembership

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed.distributed_c10d import Store

    from lockstitch.ids import WorkerInfo
    from lockstitch.rendezvous import StaticRoster
    from lockstitch.rendezvous.roster import Member
    from lockstitch.rpc.admission import JoinRequest
    from lockstitch.runtime.agent import AgentOptions
    from lockstitch.runtime.peers import Directory
    from lockstitch.runtime.worker import Worker
    from lockstitch.transport.base import Connection, Transport
    from lockstitch.trust import Secret


# Of a worker that cannot be called from other hosts.
_ONLY_HERE = "only here"
# So many of these are looked at for the error.
_MOST_NAMED = 64


@dataclass(frozen=True)
class JoinedGroup:
    """A group that a worker has joined: who the worker is there, how it finds the others, and how
    it belongs to them."""

    me: WorkerInfo
    directory: Directory
    make_membership: Callable[[Worker], Membership]


class RosterDirectory:
    """The `Directory` of a static group: members from the roster, connections from the
    transport."""

    is_fixed = True

    def __init__(self, roster: StaticRoster, transport: Transport) -> None:
        self._roster = roster
        self._transport = transport
        self._called: dict[WorkerId, Member] = {}
        """Not looked up when one of them is lost, for the store may be gone with it."""

    def find(self, key: str | int | WorkerId) -> WorkerInfo | None:
        try:
            member = self._roster.find(key)
        except RpcError:
            if not isinstance(key, WorkerId):
                raise
            return None  # its name is wanted to tell of it, and is not known
        return None if member is None else member.info

    def members(self) -> Sequence[WorkerInfo]:
        return [member.info for member in self._roster.members()]

    def connect(self, peer: WorkerInfo, timeout_seconds: float) -> Connection:
        try:
            member = self._roster.find(peer.worker)
        except RpcError as error:
            raise ConnectionError(str(error)) from error
        if member is None:
            raise ConnectionError(f"worker {peer.name!r} is not in the group")
        self._called[peer.worker] = member
        return reach(member, self._transport, timeout_seconds)

    def elsewhere(self, worker: WorkerId) -> str:
        return elsewhere(self._called.get(worker))


def join_static_group(
    store: Store | Invitation,
    join_request: JoinRequest,
    world_size: int,
    transport: Transport,
    seconds: float,
    secret: Secret | None = None,
) -> JoinedGroup:
    """Meets the others in the store, and checks that all can be reached, and all device maps.
    Raises what `rendezvous.join` and `device_maps.agree` raise, `RuntimeError` where workers of
    different hosts could not call each other, and `ValueError` for an invitation."""
    if isinstance(store, Invitation):
        raise ValueError(
            f"{store} invites into a group that workers join and leave: it has no world_size"
        )
    roster = join(
        store,
        join_request.name,
        join_request.rank,
        world_size,
        join_request.addresses,
        seconds,
        devices=join_request.devices,
        kind=kind_of(join_request.addresses, join_request.devices),
        reached_at=host_reached_at(join_request.addresses),
        secret=secret,
    )
    try:
        _check_reach(store, roster)
        agree(store, roster, seconds)
    except BaseException:
        roster.leave()
        raise
    directory = RosterDirectory(roster, transport)
    return JoinedGroup(roster.me, directory, lambda worker: StaticMembership(worker, roster))


def kind_of(addresses: Sequence[str], devices: str) -> str:
    """Returns what all others have to know of a worker (`Member.kind`)."""
    said = (() if leads_here(addresses) else (_ONLY_HERE,)) + ((HAS_DEVICES,) if devices else ())
    return ",".join(said)


def _check_reach(store: Store, roster: StaticRoster) -> None:
    """Raises `RuntimeError`, on all workers, where some could not be called from other hosts."""
    census = roster.census
    if len(set(census.hosts)) < 2:
        return
    apart = [rank for rank, kind in enumerate(census.kinds) if _ONLY_HERE in kind.split(",")]
    if not apart:
        return
    away = next(r for r, host in enumerate(census.hosts) if host != census.hosts[apart[0]])
    with failing_together(store, roster.me, roster.size):
        named = [roster.find(rank) for rank in (*apart[:_MOST_NAMED], away)]
        raise RuntimeError(why_apart([member for member in named if member is not None]))


def join_dynamic_group(
    store: Store | Invitation,
    join_request: JoinRequest,
    transport: Transport,
    options: AgentOptions,
    seconds: float,
) -> JoinedGroup:
    """Comes in through a member, or founds the group. Raises what `Admission` raises."""
    ask = asking(transport, options, SYSTEM_CLOCK)
    admission = Admission(join_request, ask, SYSTEM_CLOCK, seconds)
    contacts = None
    if isinstance(store, Invitation):
        entry = admission.by_address(store.address)
    else:
        contacts = Contacts(store)
        contacts.check_is_not_static()
        entry = admission.by_store(contacts)
        try:
            contacts.check_is_not_static()  # it may have come at the same time
        except RuntimeError:
            contacts.remove(entry.group_id, entry.me.mark)
            raise
    protocol = MembershipProtocol(entry.me, entry.records)
    directory = DynamicDirectory(protocol, transport)

    def make_membership(worker: Worker) -> Membership:
        return DynamicMembership(worker, protocol, directory, contacts, entry.group_id)

    return JoinedGroup(entry.me.member.info, directory, make_membership)
