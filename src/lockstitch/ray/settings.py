"""What a job on Ray is told: how long to wait, and what each worker needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass
class Settings:
    """Settings of a job, as `RayExecutor.create_settings` makes them."""

    timeout_s: float = 30
    """Seconds for the ranks to meet."""
    placement_group_timeout_s: float | None = None
    """Seconds to wait for room in the cluster. None: 100 while others only use it at present, 10
    where the nodes that there are could never have enough."""
    ssh_identity_file: str | None = None
    nics: Iterable[str] | None = None
    verbose: int = 1
    elastic: bool = False
    """Whether the executor that has them lets workers come and go; it says so itself."""
    min_num_proc: int = 1
    max_num_proc: int | None = None
    reset_limit: int | None = None
    elastic_timeout: float = 600
    cooldown_range: tuple[float, float] | None = None
    discovery: Any = None
    """What finds the hosts, where it is not Ray's list of nodes: an object with the method
    `find_available_hosts_and_slots`, which returns slots by node."""


def write_identity(text: str | None, path: str | None) -> None:
    """Writes a key of ssh into a new file of mode 0600, as the original does where it is given
    one; a file that is there already stays as it is."""
    if text and path and not Path(path).exists():
        file = Path(path)
        file.touch(mode=0o600)
        file.write_text(text)


@dataclass(frozen=True)
class WorkerResources:
    """What one worker takes. Raises `ValueError` for numbers that make no sense."""

    cpus: float = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        if self.cpus < 0 or self.gpus < 0 or not (self.cpus or self.gpus):
            raise ValueError(f"a worker needs some CPUs or GPUs, not {self.bundle()}")

    @classmethod
    def of_hvd(cls, cpus: float, use_gpu: bool, gpus: float | None, name: str) -> WorkerResources:
        """Makes it of the parameters of executors; `name` is that of the one for GPUs. Raises
        `ValueError` where they contradict each other."""
        if gpus and not use_gpu:
            raise ValueError(f"{name}={gpus} asks for GPUs, but use_gpu is False")
        if use_gpu and gpus is not None and gpus < 1:
            raise ValueError(f"{name} must be at least 1 where use_gpu is True, not {gpus}")
        return cls(cpus, (gpus or 1) if use_gpu else 0)

    def bundle(self, workers: int = 1) -> dict[str, float]:
        """Returns what so many workers need together, in Ray's words."""
        needed = {"CPU": self.cpus * workers, "GPU": self.gpus * workers}
        return {name: amount for name, amount in needed.items() if amount}

    def slots_of(self, available: dict[str, float]) -> int:
        """Returns how many workers fit into the resources of a node."""
        bundle = self.bundle()
        return min(int(available.get(name, 0.0) // amount) for name, amount in bundle.items())
