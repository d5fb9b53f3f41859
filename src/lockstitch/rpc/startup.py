"""Builds a worker on the default backend: it listens, finds the others, and gets its services.

    listen ─► publish the address, learn those of the others ─► plug in services ─► serve

Peers may call before the last step: their connections wait until then in the listener's queue. By
default the worker listens on a unix socket only: it runs what it is told to, and there the kernel
proves that a caller is the same user. Over TCP the job's secret has to (`transport.handshake`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.distributed.distributed_c10d import Store

from lockstitch.autograd.service import AutogradService
from lockstitch.observe.waits import WaitReports, WaitSignal
from lockstitch.rendezvous import Roster, choose_address, host_identity, join, sealed_by
from lockstitch.rpc.agents import TensorPipeAgent
from lockstitch.rpc.backend_registry import register_backend
from lockstitch.rpc.meetings import Meetings
from lockstitch.rpc.options import TensorPipeRpcBackendOptions
from lockstitch.rref.service import ReferenceService
from lockstitch.runtime.agent import AgentOptions
from lockstitch.runtime.switching import SWITCH_INTERVAL
from lockstitch.runtime.worker import Worker
from lockstitch.transport import mapping
from lockstitch.transport.segments import SegmentPool
from lockstitch.transport.several import SeveralTransports
from lockstitch.transport.tcp import TcpTransport
from lockstitch.transport.unix import UnixTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.ids import WorkerId, WorkerInfo
    from lockstitch.rpc.options import RpcBackendOptions
    from lockstitch.runtime.agent import Agent, SendFilter
    from lockstitch.transport.base import Connection, Listener, Transport

_LEAST_JOIN_SECONDS = 60.0
_STORE_SECONDS = 0.5
_ENDLESS_JOIN_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class Membership:
    """How a worker belongs to its group; a service of the worker.

    A static group comes and goes as one; in a dynamic one everybody comes and goes alone.
    """

    is_static: bool
    roster: Roster | None = None

    def leave(self) -> None:
        """Strikes the worker out of the store, if the store is still there, and answers soon."""
        if self.roster is not None:
            leaving = threading.Thread(target=self._leave, name="leaving-the-store", daemon=True)
            leaving.start()
            leaving.join(_STORE_SECONDS)

    def _leave(self) -> None:
        assert self.roster is not None
        with contextlib.suppress(RuntimeError):  # the store may have gone with its host
            self.roster.leave()

    def strike_out(self, lost: WorkerId) -> None:
        """A member died, and cannot leave by itself: its name and rank are free for another. In a
        static group nobody takes its place."""
        member = None if self.roster is None or self.is_static else self.roster.find(lost)
        if member is not None and self.roster is not None:
            with contextlib.suppress(RuntimeError):  # the store may have gone with its host
                self.roster.evict(member)


class RosterDirectory:
    """The agent's `Directory`: members from the roster, connections from the transport."""

    def __init__(self, roster: Roster, transport: Transport) -> None:
        self._roster = roster
        self._transport = transport

    def find(self, key: str | int | WorkerId) -> WorkerInfo | None:
        member = self._roster.find(key)
        return None if member is None else member.info

    def members(self) -> Sequence[WorkerInfo]:
        return [member.info for member in self._roster.members()]

    def connect(self, peer: WorkerInfo, timeout_seconds: float) -> Connection:
        member = self._roster.find(peer.worker)
        if member is None:
            raise ConnectionError(f"worker {peer.name!r} is not in the group any more")
        address = choose_address(member.addresses, member.host == host_identity())
        try:
            return self._transport.connect(address, timeout_seconds)
        except ConnectionError:
            self._roster.forget(member)
            raise


def join_seconds(options: RpcBackendOptions) -> float:
    """How long to wait for the others: as for a call, but a minute at least, since processes start
    at their own pace."""
    return max(options.rpc_timeout or _ENDLESS_JOIN_SECONDS, _LEAST_JOIN_SECONDS)


def plug_services(worker: Worker, membership: Membership) -> None:
    """Gives `worker` what the face needs: references, autograd, meetings, and an
    answer to what it waits for."""
    worker.plug(membership)
    worker.plug(Meetings(worker))
    worker.plug(ReferenceService(worker))
    worker.plug(AutogradService(worker))
    worker.plug(WaitReports(worker))


def start_worker(
    store: Store,
    name: str,
    rank: int,
    world_size: int | None,
    options: TensorPipeRpcBackendOptions,
    mishaps: Callable[[Agent], SendFilter] | None = None,
) -> Worker:
    """Joins the group in `store` and returns the worker, which serves already.

    `mishaps` makes what stands in the way of the messages that it sends. Raises what
    `rendezvous.join` raises: names that are taken or ill-formed, ranks that did not come.
    """
    check_devices(options)
    segments = make_segments(options)
    transport = make_transport(options, segments)
    listeners: list[Listener] = []
    try:
        listeners = transport.listen_on_each()
        addresses = [listener.address for listener in listeners]
        store = sealed_by(options.secret, store)
        roster = join(store, name, rank, world_size, addresses, join_seconds(options))
    except BaseException:
        for listener in listeners:
            listener.close()
        transport.close()
        raise
    agent_options = AgentOptions(
        options.num_worker_threads,
        options.rpc_timeout,
        options.heartbeat_timeout,
        buffer_pool_bytes=options.buffer_pool_bytes,
        secret=options.secret,
        registry=options.registry,
    )
    if mishaps is not None:
        agent_options = dataclasses.replace(agent_options, interned_functions=0)
    directory = RosterDirectory(roster, transport)
    worker = Worker(roster.me, directory, transport, options=agent_options)
    if mishaps is not None:
        worker.agent.send_filter = mishaps(worker.agent)
    membership = Membership(is_static=bool(world_size), roster=roster)
    plug_services(worker, membership)
    worker.plug(worker.agent.buffers)
    if segments is not None:
        worker.plug(segments)
        segments.trim_by(worker.agent.call_later)
    worker.agent.on_close(membership.leave)
    worker.agent.on_peer_lost(lambda lost, _error: membership.strike_out(lost))
    worker.agent.on_close(transport.close)
    signal = WaitSignal(worker)
    signal.install()
    worker.agent.on_close(signal.remove)
    if options.switch_interval is not None:
        worker.agent.on_close(SWITCH_INTERVAL.shorten(options.switch_interval))
    for listener in listeners:
        worker.agent.accept_at(listener)
    worker.start()
    return worker


def make_segments(options: TensorPipeRpcBackendOptions) -> SegmentPool | None:
    """The shared memory that the worker lends to its peers on this host, if it may and can."""
    wanted = "segments" in options.transports and options.segment_pool_bytes > 0
    return SegmentPool(options.segment_pool_bytes) if wanted and mapping.IS_AVAILABLE else None


def make_transport(
    options: TensorPipeRpcBackendOptions, segments: SegmentPool | None = None
) -> SeveralTransports:
    """Unix sockets, and TCP where the options give an address for other hosts.

    Raises `ValueError` for an address where callers could prove nothing, unless the options say
    that they need not, and where the options leave no road at all.
    """
    transports: dict[str, Transport] = {}
    if "unix" in options.transports:
        transports["unix"] = UnixTransport(segments)
    if options.address is not None and "tcp" in options.transports:
        if options.secret is None and not options.insecure:
            raise ValueError(
                f"address {options.address!r} asks to listen over TCP, where only a secret that "
                "all workers of the job have proves who calls, and a worker runs whatever a caller "
                "asks for. `lockstitch run` makes one; for other launchers let `lockstitch secret` "
                "make one and give it to every worker in LOCKSTITCH_SECRET, or its file in "
                "LOCKSTITCH_SECRET_FILE. If everybody who can reach that address is trusted, say "
                "so with insecure=True or LOCKSTITCH_INSECURE=1. Without an address workers of one "
                "host use unix sockets."
            )
        transports["tcp"] = TcpTransport(options.address)
    if not transports:
        raise ValueError(
            f"with transports={options.transports} and address={options.address!r} nobody can "
            'reach this worker: name "unix", or "tcp" and an address'
        )
    return SeveralTransports(transports)


def check_devices(options: TensorPipeRpcBackendOptions) -> None:
    """Raises `NotImplementedError` where the options ask for CUDA."""
    maps = [
        device for map_ in options.device_maps.values() for pair in map_.items() for device in pair
    ]
    for device in (*options.devices, *maps):
        if device.type != "cpu":
            raise NotImplementedError(
                f"{device} in device maps or devices: tensors on accelerators cannot be sent yet; "
                "move them to the CPU first"
            )


def _make_options(rpc_timeout: float, init_method: str, **kwargs: Any) -> RpcBackendOptions:
    return TensorPipeRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method, **kwargs)


def _init_backend(
    store: Store,
    name: str,
    rank: int,
    world_size: int | None,
    rpc_backend_options: RpcBackendOptions,
) -> TensorPipeAgent:
    if not isinstance(store, Store):
        raise TypeError(f"`store` must be a c10d::Store. {store}")
    if not isinstance(rpc_backend_options, TensorPipeRpcBackendOptions):
        raise TypeError(
            f"`rpc_backend_options` must be a `TensorPipeRpcBackendOptions`. {rpc_backend_options}"
        )
    return TensorPipeAgent(start_worker(store, name, rank, world_size, rpc_backend_options))


register_backend("TENSORPIPE", _make_options, _init_backend)
