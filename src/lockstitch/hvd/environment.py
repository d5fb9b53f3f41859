"""What a launcher tells a process: its rank, where the ranks meet, and what is to be tuned.

Rank and meeting place are read by `rendezvous.launchers`, for rpc too. A process that nobody
launched is a job of size 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockstitch.collectives import SessionOptions
from lockstitch.rendezvous.launchers import meeting_url, rank_and_size, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstitch.collectives.placement import DeviceOperations

_FUSION_BYTES: Final = 128 << 20
_GPU_OPERATIONS: Final[Mapping[str, DeviceOperations]] = {
    "": "auto",
    "NCCL": "nccl",
    "HOST": "host",
    "MPI": "host",
}


@dataclass(frozen=True, slots=True)
class LauncherSettings:
    """The rank of this process, the number of ranks and where they meet, as a launcher has told
    it."""

    rank: int
    size: int
    store: str
    options: SessionOptions

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> LauncherSettings:
        """Raises `ValueError` where the environment contradicts itself or lacks something."""
        rank, size = rank_and_size(environment) or (0, 1)
        store = "env://" if size == 1 else _store(environment)
        return cls(rank, size, store, options_of(environment))


def _store(environment: Mapping[str, str]) -> str:
    url = meeting_url(environment)
    if url is None:
        raise ValueError(
            "the ranks do not know where to meet: set MASTER_ADDR and MASTER_PORT, or "
            "HOROVOD_GLOO_RENDEZVOUS_ADDR and HOROVOD_GLOO_RENDEZVOUS_PORT, as launchers do"
        )
    return url


def options_of(environment: Mapping[str, str]) -> SessionOptions:
    """Returns the options of a session that the environment asks for."""
    stall_warning = float(whole_number(environment, "HOROVOD_STALL_CHECK_TIME_SECONDS", 60))
    stall_failure = float(whole_number(environment, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0))
    if environment.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0"):
        stall_warning = stall_failure = 0.0
    return SessionOptions(
        timeout_seconds=float(whole_number(environment, "HOROVOD_GLOO_TIMEOUT_SECONDS", 60)),
        stall_warning_seconds=stall_warning,
        stall_failure_seconds=stall_failure,
        fusion_bytes=whole_number(environment, "HOROVOD_FUSION_THRESHOLD", _FUSION_BYTES),
        host=_host(environment),
        device_operations=_device_operations(environment),
    )


def _device_operations(environment: Mapping[str, str]) -> DeviceOperations:
    """Returns how tensors on GPUs are reduced. The original is told so when it is built, and the
    variable often stays in an image."""
    name = "HOROVOD_GPU_OPERATIONS"
    wish = _GPU_OPERATIONS.get(environment.get(name, "").upper())
    if wish is None:
        known = ", ".join(filter(None, _GPU_OPERATIONS))
        raise ValueError(f"{name}={environment[name]!r} must be one of {known}, or not be set")
    return wish


def _host(environment: Mapping[str, str]) -> str | None:
    """Returns the name of the host where this process runs, if the launcher has said it in a way
    that tells hosts apart."""
    name = environment.get("HOROVOD_HOSTNAME")
    return None if name == "localhost" else name
