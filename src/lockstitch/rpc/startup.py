"""Builds a worker on the default backend: it listens, finds the others, and gets its services.

    listen ─► publish the address, learn those of the others ─► plug in services ─► serve

Peers may call before the last step: their connections wait until then in the listener's queue. A
worker that has no secret listens on a unix socket only: it runs what it is told to, and there the
kernel proves that a caller is the same user. Over TCP the job's secret has to (`link.handshake`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from typing import TYPE_CHECKING, Any

from torch.distributed.distributed_c10d import Store

from lockstitch.attach.logs import ProcessLog
from lockstitch.autograd.service import AutogradService
from lockstitch.link.addresses import LOOPBACK, is_loopback, own_address
from lockstitch.link.ports import find_ports
from lockstitch.memory import mapping
from lockstitch.memory.segments import SegmentPool
from lockstitch.observe.wait_reports import WaitReports
from lockstitch.rendezvous import check_name, host_identity, sealed_by
from lockstitch.rendezvous.store import host_of
from lockstitch.rpc.admission import Invitation, JoinRequest
from lockstitch.rpc.agents import TensorPipeAgent
from lockstitch.rpc.backend_registry import BackendType, register_backend
from lockstitch.rpc.device_maps import DeviceUse, check_alone
from lockstitch.rpc.joining import JoinedGroup, join_dynamic_group, join_static_group
from lockstitch.rpc.options import TensorPipeRpcBackendOptions, to_join_seconds
from lockstitch.rpc.quiescence import Quiescence
from lockstitch.rref.service import ReferenceService
from lockstitch.runtime.agent import AgentOptions
from lockstitch.runtime.freed_memory import keep_freed_memory
from lockstitch.runtime.functions import name_of
from lockstitch.runtime.switching import SWITCH_INTERVAL
from lockstitch.runtime.worker import Worker
from lockstitch.transport.several import SeveralTransports
from lockstitch.transport.tcp import TcpTransport
from lockstitch.transport.tls import TlsTransport
from lockstitch.transport.unix import UnixTransport
from lockstitch.trust.tls import TlsContexts, TlsFiles, contexts_of_files, contexts_of_job
from lockstitch.wire.frames import DEFAULT_LIMITS, FrameLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.rpc.membership import Membership
    from lockstitch.rpc.options import RpcBackendOptions
    from lockstitch.runtime.agent import Agent, SendFilter
    from lockstitch.transport.base import Transport

_log = ProcessLog(__name__)
_LEAST_JOIN_SECONDS = 60.0
_ENDLESS_JOIN_SECONDS = 24 * 3600.0


def join_seconds(options: RpcBackendOptions) -> float:
    """Returns how long to wait for the others: as the options or the environment say, or else as
    for a call, but a minute at least, since processes start at their own pace."""
    given = to_join_seconds(getattr(options, "join_timeout", None))
    if given is not None:
        return given or _ENDLESS_JOIN_SECONDS
    return max(options.rpc_timeout or _ENDLESS_JOIN_SECONDS, _LEAST_JOIN_SECONDS)


def plug_services(worker: Worker, membership: Membership) -> None:
    """Gives `worker` the services that programs use: references, autograd, quiescence, and an
    answer to what it waits for."""
    worker.plug(membership)
    worker.plug(Quiescence(worker))
    worker.plug(ReferenceService(worker))
    worker.plug(AutogradService(worker))
    worker.plug(WaitReports(worker))


def check_address(options: TensorPipeRpcBackendOptions) -> None:
    """Raises `ValueError` where the options, or the environment, name an address or an interface
    that this host does not have. Others need not wait for a worker that cannot come."""
    _tcp_address(options, None, has_another=True)


def start_worker(
    store: Store | Invitation,
    name: str,
    rank: int,
    world_size: int | None,
    options: TensorPipeRpcBackendOptions,
    mishaps: Callable[[Agent], SendFilter] | None = None,
) -> Worker:
    """Joins the group in `store`, or that of the member which an invitation names, and returns the
    worker, which serves already.

    `mishaps` makes what stands in the way of the messages that it sends. Raises `RuntimeError` for
    names that are taken or ill-formed and ranks that did not come, `ValueError` for device maps
    that cannot be.
    """
    check_name(name)
    if not world_size:
        check_alone(name, DeviceUse.of(options))
    segments = make_segments(options)
    place = host_of(store) if isinstance(store, Store) else store.host
    transport = make_transport(options, segments, place)
    agent_options = make_agent_options(options, is_faulty=mishaps is not None)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(transport.close)
        listeners = transport.listen_on_each()
        for listener in listeners:
            on_failure.callback(listener.close)
        addresses = tuple(each.address for each in listeners)
        device_use = DeviceUse.of(options).encode()
        join_request = JoinRequest(name, rank, addresses, host_identity(), device_use)
        group = _join(store, join_request, world_size, transport, options, agent_options)
        on_failure.pop_all()
    worker = Worker(group.me, group.directory, transport, options=agent_options)
    if mishaps is not None:
        worker.agent.core.send_filter = mishaps(worker.agent)
    membership = group.make_membership(worker)
    plug_services(worker, membership)
    _plug_pools(worker, segments)
    worker.agent.on_close(membership.close)
    worker.agent.on_close(transport.close)
    _settle_in_process(worker, options)
    for listener in listeners:
        worker.agent.accept_at(listener)
    worker.start()
    membership.begin()
    _log.info(
        "worker %r begins as rank %d of %s, at %s, with %d threads and a timeout of %g s",
        worker.name,
        worker.id.rank,
        world_size or "a dynamic group",
        ", ".join(addresses),
        agent_options.num_threads,
        agent_options.default_timeout,
    )
    if _log.isEnabledFor(logging.DEBUG):
        worker.agent.outgoing.tell_calls(_tell_call)
    return worker


def _tell_call(to: str, function: object) -> None:
    _log.debug("calls %s on %s", name_of(function), to)


def _join(
    store: Store | Invitation,
    join_request: JoinRequest,
    world_size: int | None,
    transport: Transport,
    options: TensorPipeRpcBackendOptions,
    agent_options: AgentOptions,
) -> JoinedGroup:
    """Joins a static group of `world_size` workers, or a dynamic one where there is none."""
    if not isinstance(store, Invitation):
        store = sealed_by(options.secret, store)
    seconds = join_seconds(options)
    if world_size:
        return join_static_group(
            store, join_request, world_size, transport, seconds, options.secret
        )
    return join_dynamic_group(store, join_request, transport, agent_options, seconds)


def _plug_pools(worker: Worker, segments: SegmentPool | None) -> None:
    """Gives `worker` the pools that keep memory for large tensors, and give it back when they are
    rare."""
    worker.plug(worker.agent.buffers)
    if segments is not None:
        worker.plug(segments)
        segments.trim_by(worker.agent.call_later)


def _settle_in_process(worker: Worker, options: TensorPipeRpcBackendOptions) -> None:
    """Sets what the worker wants of the whole process: threads take turns as short as the options
    say, while the worker lives, and the memory of gradients is kept for the next ones."""
    keep_freed_memory()
    if options.switch_interval is not None:
        worker.agent.on_close(SWITCH_INTERVAL.shorten(options.switch_interval))


def make_agent_options(
    options: TensorPipeRpcBackendOptions, *, is_faulty: bool = False
) -> AgentOptions:
    """Returns those of the options that are for the agent; with `is_faulty` its messages may be
    lost."""
    agent_options = AgentOptions(
        options.num_worker_threads,
        options.rpc_timeout,
        options.heartbeat_timeout,
        buffer_pool_bytes=options.buffer_pool_bytes,
        secret=options.secret,
        registry=options.registry,
        handshake_seconds=options.handshake_timeout,
        unproved_connections=options.max_unproved_connections,
        limits=limits_of(options),
        bytes_in_flight=options.max_bytes_in_flight,
        calls_in_flight=options.max_calls_in_flight,
        device_maps=options.device_maps,
    )
    if is_faulty:
        agent_options = dataclasses.replace(agent_options, interned_functions=0)
    return agent_options


def limits_of(options: TensorPipeRpcBackendOptions) -> FrameLimits:
    """Returns the limits of what one message may hold."""
    inline = min(DEFAULT_LIMITS.inline_bytes, options.max_frame_bytes)
    return FrameLimits(inline, options.max_frame_bytes, options.max_tensors, options.max_nesting)


def make_segments(options: TensorPipeRpcBackendOptions) -> SegmentPool | None:
    """Makes the shared memory that the worker lends to its peers on this host; None where the
    options or the system have none."""
    wanted = "segments" in options.transports and options.segment_pool_bytes > 0
    return SegmentPool(options.segment_pool_bytes) if wanted and mapping.IS_AVAILABLE else None


def make_transport(
    options: TensorPipeRpcBackendOptions,
    segments: SegmentPool | None = None,
    place: str | None = LOOPBACK,
) -> SeveralTransports:
    """Makes the transports: unix sockets, and TCP where the options give an address, or a secret.
    `place`: the host where the workers meet, None where it is none.

    Raises `ValueError` for an address where callers could prove nothing, unless the options say
    that they need not, for one that is not here, and where the options leave no transport at all.
    """
    transports: dict[str, Transport] = {}
    if "unix" in options.transports:
        transports["unix"] = UnixTransport(segments)
    address = _tcp_address(options, place, has_another=bool(transports))
    if address is not None:
        if options.secret is None and not options.tls and not options.insecure:
            raise ValueError(
                f"address {options.address!r} asks to listen over TCP, where only a secret that "
                "all workers of the job have proves who calls, and a worker runs whatever a caller "
                "asks for. `lockstitch run` makes one; for other launchers let `lockstitch secret` "
                "make one and give it to every worker in LOCKSTITCH_SECRET, or its file in "
                "LOCKSTITCH_SECRET_FILE. If everybody who can reach that address is trusted, say "
                "so with insecure=True or LOCKSTITCH_INSECURE=1. Without an address workers of one "
                "host use unix sockets."
            )
        ports = find_ports(options.port_range, os.environ)
        if options.tls:
            transports["tls"] = TlsTransport(_tls_contexts(options), address, ports)
        else:
            transports["tcp"] = TcpTransport(address, ports)
    if not transports:
        raise ValueError(
            f"with transports={options.transports} and address={options.address!r} nobody can "
            'reach this worker: name "unix", or "tcp" and an address'
        )
    return SeveralTransports(transports)


def _tcp_address(
    options: TensorPipeRpcBackendOptions, place: str | None, *, has_another: bool
) -> str | None:
    """Returns where to listen over TCP; None where nobody asks for it. Without a word about it a
    worker that has a secret does, unless that is loopback, where unix sockets lead anyway."""
    if "tcp" not in options.transports:
        return None
    if options.address is not None:
        return own_address(place, options.address)
    if options.secret is None:
        return None
    address = own_address(place)
    return None if has_another and is_loopback(address) else address


def _tls_contexts(options: TensorPipeRpcBackendOptions) -> TlsContexts:
    if isinstance(options.tls, TlsFiles):
        return contexts_of_files(options.tls)
    if options.secret is None:
        raise ValueError(
            "tls=True makes certificates out of the job's secret: give all workers the same one "
            "(`lockstitch secret` makes it), or certificates of your own (tls=TlsFiles(...))"
        )
    return contexts_of_job(options.secret)


def _make_options(rpc_timeout: float, init_method: str, **kwargs: Any) -> RpcBackendOptions:
    return TensorPipeRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method, **kwargs)


def _init_backend(
    store: Store | Invitation,
    name: str,
    rank: int,
    world_size: int | None,
    rpc_backend_options: RpcBackendOptions,
) -> TensorPipeAgent:
    if not isinstance(store, (Store, Invitation)):
        raise TypeError(f"`store` must be a c10d::Store. {store}")
    if not isinstance(rpc_backend_options, TensorPipeRpcBackendOptions):
        raise TypeError(
            f"`rpc_backend_options` must be a `TensorPipeRpcBackendOptions`. {rpc_backend_options}"
        )
    return TensorPipeAgent(start_worker(store, name, rank, world_size, rpc_backend_options))


BackendType.PROCESS_GROUP = register_backend("TENSORPIPE", _make_options, _init_backend)
