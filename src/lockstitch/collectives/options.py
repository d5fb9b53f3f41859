"""What can be chosen when a session begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lockstitch.collectives.placement import DeviceOperations

BackendName = Literal["auto", "shared_memory", "c10d", "hierarchical"]


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """All ranks of a session must choose alike."""

    backend: BackendName = "auto"
    """`auto` takes shared memory where all ranks are on one host, `hierarchical` where several
    hosts have several ranks, else `c10d`; and always `c10d` for a device that is not the CPU."""
    device: str = "cpu"
    """Where all tensors live: chooses what `c10d` reduces with (Gloo or NCCL)."""
    device_operations: DeviceOperations = "auto"
    """How tensors on GPUs are reduced where `device` is the CPU. `auto`: by NCCL, in those process
    sets of which each rank has a GPU of its own, else through host memory; `nccl`: by NCCL, or an
    error; `host`: through host memory."""
    timeout_seconds: float = 60.0
    """How long the ranks may take to find each other; and, between hosts, how long an operation
    that all have begun may stand still. Ranks that have found each other connect within that time
    too, and within twice `heartbeat_seconds`, but 20 at least."""
    heartbeat_seconds: float | None = None
    """After how many seconds of silence a rank passes for lost, between hosts: it is stopped, cut
    off, or holds the GIL; 0: never. Default: LOCKSTITCH_HEARTBEAT_TIMEOUT, or else 10."""
    stall_warning_seconds: float = 60.0
    """After how long the wait for other ranks is reported; 0: never."""
    stall_failure_seconds: float = 0.0
    """After how long such a wait ends the session with an error; 0: never."""
    fusion_bytes: int = 128 << 20
    """Up to how many bytes `c10d` joins operations that are ready together."""
    riding_bytes: int = 16 << 10
    """Between hosts, up to how many bytes an allreduce's tensors ride on the messages to and from
    rank 0 instead of going by the process group; 0: none. Of this rank only."""
    speaker_fan_in: int = 64
    """Between hosts, up to how many ranks talk to rank 0 themselves. Of more ranks one of each host
    speaks for the others, and so many speakers talk to one at most."""
    arena_bytes: int = 1 << 36
    """How much memory a rank may share with the others of its host. Only what is used is taken."""
    address: str | None = None
    """Of this rank's host, for the ranks of others; default: LOCKSTITCH_ADDRESS, that of the
    interface that LOCKSTITCH_IFNAME names, or else that of the way to the host where they meet (the
    store's, or MASTER_ADDR)."""
    port_range: tuple[int, int] | None = None
    """The first and the last port at which ranks may await others; default:
    LOCKSTITCH_PORT_RANGE, or else any that is free. For chunks of reductions a rank takes any other
    where none of them is."""
    rank_numbers: tuple[int, ...] = ()
    """By which numbers errors call the ranks, where people know them by others than their own."""
    host: str | None = None
    """The name of this rank's host, where that is not to be found out."""
