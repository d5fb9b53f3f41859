"""What `init_rpc` can be told: timeout, rendezvous, threads, devices, transports, limits.

The class names are the incumbent's, since programs construct them; what is behind them is ours.
"""

from __future__ import annotations

import os
from datetime import timedelta
from numbers import Integral, Real
from typing import TYPE_CHECKING, TypeVar

import torch

from lockstitch.clock import UNSET_TIMEOUT
from lockstitch.devices.kinds import gpu, is_gpu, kind_of, numbered
from lockstitch.link.ports import find_ports
from lockstitch.link.pulse import heartbeat_seconds
from lockstitch.memory.pools import default_capacity
from lockstitch.rpc.constants import (
    DEFAULT_INIT_METHOD,
    DEFAULT_NUM_WORKER_THREADS,
    DEFAULT_RPC_TIMEOUT_SEC,
)
from lockstitch.trust.registry import DECLARED
from lockstitch.trust.secret import find_secret
from lockstitch.wire.frames import DEFAULT_LIMITS

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterable, Mapping, Sequence
    from pathlib import Path

    from lockstitch.trust.registry import Registry
    from lockstitch.trust.secret import Secret
    from lockstitch.trust.tls import TlsFiles

    Device = int | str | torch.device
    DeviceMap = Mapping[Device, Device]


K = TypeVar("K")
V = TypeVar("V")

TRANSPORTS = ("segments", "unix", "tcp")
_IN_WORDS: dict[type, str] = {Real: "a number", Integral: "an integer", str: "a text"}


class RpcBackendOptions:
    """Options that every backend has; the base of all others. Attributes may be changed until
    `init_rpc` reads them.

    `rpc_timeout`: default timeout of a call in seconds, 0 for none. `init_method`: URL of the
    rendezvous, as for `torch.distributed.init_process_group`. Raises `TypeError` for other types,
    `ValueError` for times below 0.
    """

    rpc_timeout: float
    init_method: str

    def __init__(
        self,
        rpc_timeout: float = DEFAULT_RPC_TIMEOUT_SEC,
        init_method: str = DEFAULT_INIT_METHOD,
    ) -> None:
        self._check("rpc_timeout", rpc_timeout, Real)
        self._check("init_method", init_method, str)
        if not rpc_timeout >= 0:
            raise ValueError(f"rpc_timeout is a number of seconds, 0 for none, not {rpc_timeout!r}")
        self.rpc_timeout = float(rpc_timeout)
        self.init_method = init_method

    def _check(self, name: str, value: object, kind: type) -> None:
        if not isinstance(value, kind):
            raise TypeError(
                f"{type(self).__name__}(): incompatible constructor arguments: {name} must be "
                f"{_IN_WORDS[kind]}, not {value!r}"
            )


class TensorPipeRpcBackendOptions(RpcBackendOptions):
    """Options of the default backend.

    `num_worker_threads`: threads that run functions called by others (16); the pool grows beyond
    while they wait for calls of their own. `device_maps`: for each callee's name, which device of
    ours becomes which of its: tensors in calls arrive there, those in answers come back by the
    inverse. Without a map for a callee they arrive on the device of the same name; with one that
    does not name the device of a tensor, the call raises `RuntimeError`. `devices`: the CUDA
    devices that maps may name here; by default all. `_transports` and `_channels` are accepted from
    ported programs and ignored: the transport is chosen by itself, among `transports`.

    Beyond the original: `address`, the name, address or interface at which workers of *other hosts*
    reach this one over TCP. "auto", the default where there is a secret, is the address on the way
    to where the workers meet, or that of the interface that LOCKSTITCH_IFNAME names. Without a
    secret a worker listens on a unix socket only, where the kernel proves who calls, and `init_rpc`
    refuses a group on several hosts. `port_range`: the first and the last port at which it may
    listen; by default any that is free. On TCP the workers prove to each other that they have the
    job's `secret`: 64 hexadecimal digits, as `lockstitch secret` prints them, or in a `secret_file`
    that only its user can read. `insecure=True` does without: anybody who reaches the address may
    then run whatever it likes here. The environment variables LOCKSTITCH_ADDRESS,
    LOCKSTITCH_PORT_RANGE (20000-20009), LOCKSTITCH_SECRET, LOCKSTITCH_SECRET_FILE and
    LOCKSTITCH_INSECURE (1) are the defaults of these.

    `registry=True`: peers may call, make and use only what the program has registered
    (`lockstitch.rpc.register`), or what the given `Registry` holds; nothing else that they send is
    imported, made or run. Every worker of such a job has one.

    `tls=True` (or LOCKSTITCH_TLS=1): between hosts nobody on the way can read or change anything,
    by mutual TLS 1.3 with certificates that are made out of the secret (needs the extra
    `lockstitch[tls]`), or with those of your own (`TlsFiles`).

    `handshake_timeout`: how many seconds a caller may take to prove itself (10), and
    `max_unproved_connections`: how many may be about to (128; one more pushes the oldest out).
    `max_frame_bytes`, `max_tensors`, `max_nesting`: what one message may hold (1 TiB, 2**20, and
    values within values 64 deep); what exceeds it is refused by its sender, and before any memory
    is allocated for it by its receiver.

    `transports`: which may be used, of "segments" (shared memory for large tensors between
    workers of one host, needs "unix"), "unix" and "tcp"; all by default, or those
    in LOCKSTITCH_TRANSPORTS, separated by commas. `segment_pool_bytes`: how much shared memory this
    worker may lend to all its peers together, and `buffer_pool_bytes`: how much memory it may keep
    warm for what arrives in streams; by default 1 GiB, or a sixteenth of the machine's memory if
    that is less. What does not fit goes without. LOCKSTITCH_SEGMENT_POOL_BYTES and
    LOCKSTITCH_BUFFER_POOL_BYTES are the defaults of these.

    `heartbeat_timeout`: after how many seconds of silence a worker that this one waits for, or has
    lent something to, passes for dead (10, or LOCKSTITCH_HEARTBEAT_TIMEOUT; 0: never). A process
    that ends is noticed at once; this is for one that is stopped, or cut off. On other hosts, one
    that holds the GIL for so long passes for dead as well.

    `join_timeout`: how many seconds `init_rpc` waits for the others (or LOCKSTITCH_JOIN_TIMEOUT; 0:
    for ever). Default: `rpc_timeout`, but a minute at least, since processes start at their own
    pace. From the third second on it says on stderr whom it waits for.

    `max_bytes_in_flight`: how much the tensors in calls to one worker may hold that it has not
    answered (1 GiB); one more call waits, within its timeout, until there is room. The largest of
    all can still be sent alone. So much is kept, too, of what asynchronous calls have to say to a
    worker that takes nothing in. `max_calls_in_flight`: how many calls to one worker may be
    unanswered, of whatever size (65,536); one more waits likewise, unless a function makes it that
    another worker has called: it might be what the others wait for.

    `switch_interval`: seconds after which a thread that computes in Python lets others have the
    interpreter, while this worker lives; 0.0005 lets a worker that is busy with Python answer about
    ten times sooner. Default: LOCKSTITCH_SWITCH_INTERVAL, or else what `sys.setswitchinterval` says
    (0.005), since many threads that compute in Python at once pay for shorter turns.

    Raises `TypeError` for arguments of the wrong kind, `ValueError` for numbers out of range,
    unknown `transports`, device maps that are not one to one, and secrets that are none.
    """

    num_worker_threads: int
    device_maps: dict[str, dict[torch.device, torch.device]]
    devices: list[torch.device]
    address: str | None
    port_range: tuple[int, int] | None
    secret: Secret | None
    insecure: bool
    registry: Registry | None
    tls: bool | TlsFiles
    handshake_timeout: float
    max_unproved_connections: int
    max_frame_bytes: int
    max_tensors: int
    max_nesting: int
    transports: tuple[str, ...]
    segment_pool_bytes: int
    buffer_pool_bytes: int
    heartbeat_timeout: float
    join_timeout: float | None
    max_bytes_in_flight: int
    max_calls_in_flight: int
    switch_interval: float | None

    def __init__(  # noqa: PLR0913 - the incumbent's signature
        self,
        *,
        num_worker_threads: int = DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout: float = DEFAULT_RPC_TIMEOUT_SEC,
        init_method: str = DEFAULT_INIT_METHOD,
        device_maps: Mapping[str, DeviceMap] | None = None,
        devices: Sequence[Device] | None = None,
        _transports: Sequence[str] | None = None,
        _channels: Sequence[str] | None = None,
        address: str | None = None,
        secret: str | Secret | None = None,
        secret_file: str | Path | None = None,
        insecure: bool | None = None,
        registry: bool | Registry = False,
        tls: bool | TlsFiles | None = None,
        handshake_timeout: float = 10.0,
        max_unproved_connections: int = 128,
        max_frame_bytes: int = DEFAULT_LIMITS.bulk_bytes,
        max_tensors: int = DEFAULT_LIMITS.items,
        max_nesting: int = DEFAULT_LIMITS.nesting,
        transports: Sequence[str] | None = None,
        segment_pool_bytes: int | None = None,
        buffer_pool_bytes: int | None = None,
        heartbeat_timeout: float | None = None,
        join_timeout: float | None = None,
        max_bytes_in_flight: int = 1 << 30,
        max_calls_in_flight: int = 1 << 16,
        switch_interval: float | None = None,
        port_range: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(rpc_timeout, init_method)
        self._check("num_worker_threads", num_worker_threads, Integral)
        self.num_worker_threads = _count("num_worker_threads", num_worker_threads)
        self.device_maps = {
            to: _to_device_map(_pairs(map_)) for to, map_ in _pairs(device_maps or {})
        }
        self.devices = _to_cuda_devices(devices or ())
        self.address = os.environ.get("LOCKSTITCH_ADDRESS") if address is None else address
        ports = find_ports(port_range, os.environ)
        self.port_range = None if ports is None else (ports[0], ports[-1])
        self.secret = find_secret(secret, secret_file, os.environ)
        self.insecure = _to_flag("LOCKSTITCH_INSECURE", insecure)
        self.registry = (DECLARED if registry else None) if isinstance(registry, bool) else registry
        self.tls = _to_flag("LOCKSTITCH_TLS", tls)
        self.handshake_timeout = _positive("handshake_timeout", handshake_timeout)
        self.max_unproved_connections = _count("max_unproved_connections", max_unproved_connections)
        self.max_frame_bytes = _count("max_frame_bytes", max_frame_bytes)
        self.max_tensors = _count("max_tensors", max_tensors)
        self.max_nesting = _count("max_nesting", max_nesting)
        self.transports = _to_transports(transports)
        self.segment_pool_bytes = _to_bytes("segment_pool_bytes", segment_pool_bytes)
        self.buffer_pool_bytes = _to_bytes("buffer_pool_bytes", buffer_pool_bytes)
        self.heartbeat_timeout = heartbeat_seconds(heartbeat_timeout, os.environ)
        self.join_timeout = to_join_seconds(join_timeout)
        self.max_bytes_in_flight = _count("max_bytes_in_flight", max_bytes_in_flight)
        self.max_calls_in_flight = _count("max_calls_in_flight", max_calls_in_flight)
        self.switch_interval = _to_switch_interval(switch_interval)

    def set_device_map(self, to: str, device_map: DeviceMap) -> None:
        """Adds to the device map for the callee named `to`. Raises `ValueError` where a device gets
        a second target; that two have the same target is found out by `init_rpc`."""
        known, added = self.device_maps.get(to, {}), _to_device_map(_pairs(device_map))
        for source, target in added.items():
            if known.get(source, target) != target:
                raise ValueError(
                    "`set_device_map` only supports 1-to-1 mapping, trying to map "
                    f"{source} to {target} and {known[source]}"
                )
        self.device_maps[to] = {**known, **added}

    def set_devices(self, devices: Sequence[Device]) -> None:
        """Names the local CUDA devices in use. Raises `ValueError` for any other kind."""
        self.devices = _to_cuda_devices(devices)


class ProcessGroupRpcBackendOptions(TensorPipeRpcBackendOptions):
    """Options in the words of programs written before PyTorch 1.11, which had a backend of that
    name; here they lead to the default backend.

    `num_send_recv_threads`: threads that run functions called by others (4, as it was there).
    `rpc_timeout`: a number of seconds, or a `timedelta`. Raises `TypeError` for other types.
    """

    def __init__(
        self,
        num_send_recv_threads: int = 4,
        rpc_timeout: float | timedelta = DEFAULT_RPC_TIMEOUT_SEC,
        init_method: str = DEFAULT_INIT_METHOD,
    ) -> None:
        if isinstance(rpc_timeout, timedelta):
            rpc_timeout = rpc_timeout.total_seconds()
        super().__init__(
            num_worker_threads=num_send_recv_threads,
            rpc_timeout=rpc_timeout,
            init_method=init_method,
        )

    @property
    def num_send_recv_threads(self) -> int:
        """Another name of `num_worker_threads`."""
        return self.num_worker_threads

    @num_send_recv_threads.setter
    def num_send_recv_threads(self, number: int) -> None:
        self.num_worker_threads = number


def _positive(option: str, number: float) -> float:
    if not number > 0:
        raise ValueError(f"{option} is a number above 0, not {number!r}")
    return number


def _count(option: str, number: int) -> int:
    return int(_positive(option, number))


def _to_flag(variable: str, given: V | None) -> V | bool:
    return os.environ.get(variable) == "1" if given is None else given


def _to_transports(names: Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        named = os.environ.get("LOCKSTITCH_TRANSPORTS", ",".join(TRANSPORTS))
        names = [name.strip() for name in named.split(",") if name.strip()]
    if isinstance(names, str):
        raise ValueError(
            f"transports are some of {TRANSPORTS}, in a list, not in text: {names.split(',')}"
        )
    if any(name not in TRANSPORTS for name in names):
        raise ValueError(f"transports are some of {TRANSPORTS}, not {names!r}")
    return tuple(names)


def _to_bytes(option: str, given: int | None) -> int:
    """Returns the option, or the environment variable of that name, or the default."""
    variable = f"LOCKSTITCH_{option.upper()}"
    text = os.environ.get(variable) if given is None else given
    if text is None:
        return default_capacity()
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise ValueError(f"{option} (or {variable}) is a number of bytes, 0 for none, not {text!r}")
    return number


def to_join_seconds(given: float | None) -> float | None:
    """Returns the option, or the environment variable of that name; None where neither is given."""
    seconds = _to_seconds("join_timeout", given, UNSET_TIMEOUT)
    return None if seconds == UNSET_TIMEOUT else seconds


def _to_seconds(option: str, given: float | None, default: float) -> float:
    """Returns the option, or the environment variable of that name, or the default."""
    variable = f"LOCKSTITCH_{option.upper()}"
    text = os.environ.get(variable) if given is None else given
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError(f"{option} (or {variable}) is a number of seconds, 0 for none")
    return number


def _to_switch_interval(given: float | None) -> float | None:
    text = os.environ.get("LOCKSTITCH_SWITCH_INTERVAL") if given is None else given
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 1:
        raise ValueError(
            "switch_interval (or LOCKSTITCH_SWITCH_INTERVAL) is a number of seconds, above 0 and "
            f"at most 1, not {text!r}"
        )
    return seconds


def _to_device(device: Device) -> torch.device:
    # A bare number means a CUDA device, whether or not this machine has one.
    return gpu(device) if isinstance(device, int) else numbered(torch.device(device))


def _pairs(mapping: Mapping[K, V]) -> ItemsView[K, V]:
    try:
        return mapping.items()
    except AttributeError:
        raise TypeError(
            "device_maps is {name of a callee: {device here: device there}}, a device map "
            f"{{device here: device there}}, not {mapping!r}"
        ) from None


def _to_device_map(pairs: Iterable[tuple[Device, Device]]) -> dict[torch.device, torch.device]:
    forth: dict[torch.device, torch.device] = {}
    back: dict[torch.device, torch.device] = {}
    for key, value in pairs:
        source, target = _to_device(key), _to_device(value)
        other_target = forth.setdefault(source, target)
        other_source = back.setdefault(target, source)
        if other_target != target:
            conflict = f"{source} to {target} and {other_target}"
        elif other_source != source:
            conflict = f"{source} and {other_source} to {target}"
        else:
            continue
        raise ValueError(f"`device_map` only supports 1-to-1 mapping, trying to map {conflict}")
    return forth


def _to_cuda_devices(devices: Iterable[Device]) -> list[torch.device]:
    result = [_to_device(device) for device in devices]
    for device in result:
        if not is_gpu(device):
            raise ValueError(
                "`set_devices` expect a list of CUDA devices, but got device type "
                f"{kind_of(device)}."
            )
    return result
