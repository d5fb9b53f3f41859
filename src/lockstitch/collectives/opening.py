"""The way into a session: the ranks find each other through a store, and choose a backend.

Every rank publishes its host and where it can be reached; when all have, the hosts tell who stands
where and which backend serves. Sessions are numbered by each rank for itself, so the nth of one
rank meets the nth of all others: a session may be opened after one was shut down, on the same store
and as often as one likes.

A store that a URL names is kept open until the process ends. Rank 0 may host it, and would
otherwise take it down under ranks that are on their way into the next session.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import HashStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from lockstitch import __version__
from lockstitch.clock import SYSTEM_CLOCK, Clock
from lockstitch.collectives.c10d.backend import C10dBackend
from lockstitch.collectives.c10d.beginning import in_thread
from lockstitch.collectives.c10d.group_operations import GroupOperations
from lockstitch.collectives.c10d.hierarchical import HierarchicalOperations
from lockstitch.collectives.c10d.link_options import LinkOptions
from lockstitch.collectives.c10d.peer_connections import PeerConnections
from lockstitch.collectives.c10d.tree import Place, place_of
from lockstitch.collectives.c10d.tree_links import Link, TreeLinks
from lockstitch.collectives.memory import LocalSessions
from lockstitch.collectives.nccl_bootstrap import NcclBootstrap
from lockstitch.collectives.options import SessionOptions
from lockstitch.collectives.pending_operations import PendingOperations
from lockstitch.collectives.process_sets import ProcessSets
from lockstitch.collectives.rank_entries import (
    COORDINATOR,
    DOOR,
    TOKEN,
    Kind,
    check_reach,
    check_versions,
    place,
    published,
)
from lockstitch.collectives.rank_names import RankNames
from lockstitch.collectives.session import Session
from lockstitch.collectives.shared_memory.backend import SharedMemoryBackend
from lockstitch.collectives.shared_memory.introduction import (
    IntroductionListener,
    SharedDescriptors,
    end_introduction,
    join_host,
)
from lockstitch.collectives.shared_memory.segment import Geometry, create
from lockstitch.collectives.topology import Topology
from lockstitch.errors import CollectiveError, RankLostError
from lockstitch.link.addresses import own_address
from lockstitch.link.ports import find_ports
from lockstitch.link.pulse import heartbeat_seconds
from lockstitch.modes import in_plain_modes
from lockstitch.rendezvous import (
    StaticRoster,
    another_client,
    join,
    missing_keys,
    open_store,
    sealed_by,
)
from lockstitch.rendezvous.static_group import call_off as call_off_meeting
from lockstitch.rendezvous.static_group import failing_together
from lockstitch.rendezvous.store import host_of
from lockstitch.transport import TcpTransport
from lockstitch.trust import find_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.collectives.backend import Backend
    from lockstitch.collectives.c10d.messages import Message
    from lockstitch.collectives.options import BackendName
    from lockstitch.transport import Listener

_PREFIX = "reductions"
_CALL_OFF_SECONDS = 10.0
# A store that is at work answers within so long.
_STORE_SECONDS = 10.0


@in_plain_modes
def open_session(
    rank: int,
    size: int,
    store: str | Store = "env://",
    options: SessionOptions | None = None,
    *,
    members: Sequence[int] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Session:
    """Meets the other ranks and returns this one's session; all ranks must call it.

    `store` is a store of torch, or names one: `env://` (MASTER_ADDR and MASTER_PORT, as every
    launcher sets them), `tcp://host:port`, `file://path`. A session of one rank needs none.
    `members`: only these of the ranks, this one among them, make up the session, and are numbered
    by their places there; other ranks may have a session of their own meanwhile.
    Raises RuntimeError when ranks are missing after `options.timeout_seconds`.
    """
    chosen = options or SessionOptions()
    whole, prefix = (rank, size), _PREFIX
    if members is not None and list(members) != list(range(size)):
        rank, size = list(members).index(rank), len(members)
        prefix = f"{_PREFIX} of {','.join(map(str, members))}"
    if size == 1:
        return LocalSessions(
            1,
            clock=clock,
            stall_warning_seconds=chosen.stall_warning_seconds,
            stall_failure_seconds=chosen.stall_failure_seconds,
            bootstrap=_bootstrap_alone(chosen) if chosen.device_operations == "nccl" else None,
        )[0]
    pending = PendingOperations(
        rank,
        clock,
        stall_warning_seconds=chosen.stall_warning_seconds,
        stall_failure_seconds=chosen.stall_failure_seconds,
        names=RankNames(chosen.rank_numbers),
    )
    own_address(None, chosen.address)  # what is said wrongly shall not cost others their time
    opened = PrefixStore(prefix, _opened_store(store, *whole, chosen.timeout_seconds))
    return _Opening(rank, size, opened, chosen, pending).session()


def call_off(size: int, store: str) -> None:
    """Ends the wait of all who are on their way into the first session of `size` ranks on `store`,
    since one of them will not come: theirs ends with an error. From any thread or process."""
    # Not as rank 0, which would want to host a store at a port.
    opened = PrefixStore(_PREFIX, open_store(store, 1, size, _CALL_OFF_SECONDS))
    secret = find_secret(None, None, os.environ)
    for member in call_off_meeting(sealed_by(secret, opened), size):
        for address in member.addresses:
            if address.startswith(DOOR):
                end_introduction(address.removeprefix(DOOR))


class _Opening:
    """The way of one rank into a session."""

    def __init__(
        self,
        rank: int,
        size: int,
        store: Store,
        options: SessionOptions,
        pending: PendingOperations,
    ) -> None:
        self._rank = rank
        self._size = size
        self._store = store
        self._options = options
        self._pending = pending
        self._sets = ProcessSets(size)
        self._secret = find_secret(None, None, os.environ)
        place = host_of(store) or os.environ.get("MASTER_ADDR")
        self._address = own_address(place, options.address)
        ports = find_ports(options.port_range, os.environ)
        self._transport = TcpTransport(self._address, ports)
        self._notice: GiveUpNotice | None = None
        self._place: Place
        """In the tree of those who speak for others; only between hosts."""

    def session(self) -> Session:
        """Publishes, meets, chooses, connects."""
        options = self._options
        introductions = IntroductionListener()
        listener = self._listen() if self._rank == 0 else None
        try:
            addresses = [DOOR + introductions.address]
            if listener is not None:
                addresses += [COORDINATOR + listener.address, TOKEN + secrets.token_hex(16)]
            roster = self._join(addresses)
            self._pending.names.learn_places(
                functools.partial(place, roster), place(roster, self._rank)
            )
            kinds = list(map(Kind.decode, roster.census.kinds))
            # A program that ends at once when that fails may take the store along.
            with failing_together(self._store, roster.me, self._size):
                check_versions(kinds, functools.partial(place, roster))
            hosts = [
                kind.host or host for kind, host in zip(kinds, roster.census.hosts, strict=True)
            ]
            topology = Topology.of(self._rank, hosts)
            name = _chosen_backend(topology, options)
            if name != "shared_memory":
                self._place = place_of(self._rank, topology.hosts, options.speaker_fan_in)
                roster.fetch({0, max(0, self._place.parent)})
                with failing_together(self._store, roster.me, self._size):
                    check_reach(roster)
            self._notice = GiveUpNotice(self._store, roster.me.generation)
            backend: Backend
            bootstrap = self._bootstrap(roster, topology)
            if name == "shared_memory":
                backend = self._share_memory(roster, topology, introductions, self._pending)
            else:
                backend = self._distribute(roster, topology, introductions, listener, name)
                listener = None
        except Exception as error:
            reason = self._notice and self._notice.post(self._rank, error)
            if reason and isinstance(error, CollectiveError):
                raise RankLostError(reason) from error
            raise
        finally:
            introductions.close()
            if listener is not None:
                listener.close()
        return Session(topology, backend, self._pending, self._sets, bootstrap)

    def _join(self, addresses: list[str]) -> StaticRoster:
        """Meets the others. A store may wait for ever: one in a file for whoever has locked it."""
        seconds = self._options.timeout_seconds

        def work() -> StaticRoster:
            store = sealed_by(self._secret, self._store)
            host = self._options.host or ""
            me, kind = f"rank{self._rank}", Kind(__version__, torch.__version__, host).encode()
            rank, size = self._rank, self._size
            return join(
                store,
                me,
                rank,
                size,
                addresses,
                seconds,
                kind=kind,
                is_shared=False,
                reached_at=self._address,
                secret=self._secret,
            )

        return in_thread(work, self._pending, seconds + _STORE_SECONDS)

    def _bootstrap(self, roster: StaticRoster, topology: Topology) -> NcclBootstrap | None:
        """Returns how the ranks find each other for operations between devices; None where none are
        wanted."""
        options = self._options
        if options.device != "cpu" or options.device_operations == "host":
            return None
        store = PrefixStore(f"devices/{roster.me.generation}", self._store)
        return NcclBootstrap(topology, store, options, self._secret, self._sets, self._pending)

    def _listen(self) -> Listener | None:
        if self._options.backend == "shared_memory":
            return None
        try:
            return self._transport.listen()
        except OSError as error:
            raise CollectiveError(
                f"rank 0 cannot listen for the others ({error}): give the address of its host as "
                "SessionOptions.address"
            ) from error

    def _share_memory(
        self,
        roster: StaticRoster,
        topology: Topology,
        introductions: IntroductionListener,
        pending: PendingOperations,
    ) -> SharedMemoryBackend:
        """The backend of the ranks of this host; they are numbered from 0."""
        options = self._options
        local_rank, ranks = topology.local_rank, topology.local_ranks
        if options.backend == "shared_memory" and topology.host_count > 1:
            raise CollectiveError(
                f"shared memory needs all ranks on one host, but there are {topology.host_count}"
            )
        numbers = [self._pending.names.number(rank) for rank in ranks]
        geometry = Geometry(len(ranks), arena_bytes=options.arena_bytes)
        assert self._notice is not None
        seconds, why = options.timeout_seconds, self._notice.read

        def begin(known: SharedDescriptors) -> SharedMemoryBackend:
            return SharedMemoryBackend(local_rank, geometry, known, pending)

        if local_rank == 0:
            return introductions.receive_all(numbers, create(geometry), begin, seconds, why)
        first = published(roster, ranks[0], DOOR)
        return join_host(first, local_rank, numbers, begin, seconds, why)

    def _distribute(
        self,
        roster: StaticRoster,
        topology: Topology,
        introductions: IntroductionListener,
        listener: Listener | None,
        name: BackendName,
    ) -> C10dBackend:
        """The backend over torch.distributed."""
        token, address = published(roster, 0, TOKEN), published(roster, 0, COORDINATOR)
        rank, options, transport = self._rank, self._options, self._transport
        seconds = options.timeout_seconds
        heartbeat = heartbeat_seconds(options.heartbeat_seconds, os.environ)
        link_options = LinkOptions.of(token, self._secret, seconds)
        link_options = replace(link_options, heartbeat=heartbeat, names=self._pending.names)
        assert self._notice is not None
        has_failed = functools.partial(self._notice.read, 0.0)

        tree = TreeLinks(
            self._place,
            self._size,
            address,
            sealed_by(self._secret, PrefixStore(f"tree/{roster.me.generation}", self._store)),
            transport,
            link_options,
            lambda: _raise_if(has_failed()),
        )

        def connect(hear: Callable[[Message], None]) -> Link:
            if listener is not None:
                return tree.of_root(listener, hear, options.fusion_bytes)
            return tree.of_other(hear)

        store = PrefixStore(f"groups/{roster.me.generation}", self._store)
        # Several hosts may each call themselves by an address that leads nowhere from the others.
        own = self._address if len(set(roster.census.hosts)) > 1 else None
        connect_seconds = min(seconds, 2 * link_options.greeting_seconds)
        chunks = sealed_by(self._secret, PrefixStore(f"chunks/{roster.me.generation}", self._store))
        peers = PeerConnections(rank, chunks, transport, link_options, self._pending.clock)
        silence = link_options.silence if own else 0.0
        keywords: Any = {"silence_seconds": silence, "names": link_options.names}
        keywords |= {"peers": peers}
        groups: GroupOperations = GroupOperations(
            rank, store, options.device, seconds, own, connect_seconds, **keywords
        )
        if name == "hierarchical":
            local = self._local_session(roster, topology, introductions)
            groups = HierarchicalOperations(
                topology, store, local, seconds, own, connect_seconds, **keywords
            )
        return C10dBackend(
            groups,
            self._sets,
            self._pending,
            connect,
            name,
            start_seconds=seconds,
            news_seconds=link_options.news_seconds,
            has_failed=has_failed,
            # Speakers carry no tensors.
            riding_bytes=options.riding_bytes if self._size <= options.speaker_fan_in else 0,
        )

    def _local_session(
        self, roster: StaticRoster, topology: Topology, introductions: IntroductionListener
    ) -> Session:
        """A session of the ranks of this host among themselves."""
        if topology.local_size == 1:
            return LocalSessions(1)[0]
        local = Topology(topology.local_rank, (0,) * topology.local_size)
        names = RankNames([self._pending.names.number(rank) for rank in topology.local_ranks])
        pending = PendingOperations(topology.local_rank, self._pending.clock, names=names)
        backend = self._share_memory(roster, topology, introductions, pending)
        return Session(local, backend, pending, ProcessSets(local.size))


class GiveUpNotice:
    """Why a rank gives up on its way in, once all have met: in the store, for those who wait for
    it. Only the first such word is kept."""

    def __init__(self, store: Store, generation: int) -> None:
        self._store = another_client(store)
        self._key = f"given up/{generation}"

    def post(self, rank: int, error: Exception) -> str | None:
        """This rank does; returns what another one has said before."""
        mine = f"rank {rank} gave up: {error}"
        with contextlib.suppress(RuntimeError):  # the store has gone with rank 0
            first = bytes(self._store.compare_set(self._key, "", mine)).decode()
            return None if first == mine else first
        return None

    def read(self, timeout_seconds: float = 0.0) -> str | None:
        """Returns what is posted, by then."""
        # Where the store has gone with rank 0, the end of rank 0 is seen as well.
        with contextlib.suppress(RuntimeError):
            if timeout_seconds:
                missing_keys(self._store, [self._key], timeout_seconds)
            if self._store.check([self._key]):
                return bytes(self._store.get(self._key)).decode()
        return None


def _raise_if(failure: str | None) -> None:
    if failure is not None:
        raise RankLostError(failure)


def _bootstrap_alone(
    options: SessionOptions,
) -> Callable[[Topology, ProcessSets, PendingOperations], NcclBootstrap]:
    """Returns the bootstrap of a single rank, whose tensors on devices go by NCCL only where that
    is demanded."""
    return lambda topology, sets, pending: NcclBootstrap(
        topology, HashStore(), options, None, sets, pending
    )


def _chosen_backend(topology: Topology, options: SessionOptions) -> BackendName:
    if options.backend != "auto":
        return options.backend
    if options.device != "cpu":
        return "c10d"
    if topology.host_count == 1:
        return "shared_memory"
    return "hierarchical" if topology.size > topology.host_count else "c10d"


def _opened_store(store: str | Store, rank: int, size: int, timeout_seconds: float) -> Store:
    if isinstance(store, Store):
        return open_store(store, rank, size, timeout_seconds)
    place = tuple(
        os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "LOCKSTITCH_STORE")
    )
    return _kept_store(os.getpid(), place, store, rank, size, timeout_seconds)


@functools.lru_cache(maxsize=8)
def _kept_store(
    _pid: int, _place: tuple[str | None, ...], url: str, rank: int, size: int, timeout: float
) -> Store:
    return open_store(url, rank, size, timeout)
