"""An allocation of Slurm as the hosts of a job: read from its variables, and `srun` to start there.

On each node an agent (`agent`) is a step of one task, which may use all that the job has on that
node and overlaps with others. The workers that it starts take their part by their local rank, as on
any host. `srun` goes on as ssh would (`remote`): it hands on what the launcher and the agent say to
each other.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from lockstitch.launch.remote import RemoteShell
from lockstitch.link.node_lists import counts, node_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstitch.launch.hosts import Slots

_NODES: Final = "SLURM_JOB_NODELIST"
_TASKS: Final = "SLURM_TASKS_PER_NODE"
_CPUS: Final = "SLURM_JOB_CPUS_PER_NODE"
_ASKING_SECONDS: Final = 20.0
_NODE_ADDRESS: Final = re.compile(r"NodeAddr=(\S+)")

_SRUN: Final = (
    "srun",
    "--overlap",
    "--nodes=1",
    "--ntasks=1",
    "--mem=0",  # all of the job's on that node, and no part of it for this step alone
    "--cpu-bind=none",  # no worker is tied to one core, or all to the same one
    "--mpi=none",
    "--export=ALL",
    "--nodelist",
)

# What `salloc` and `sbatch` leave for `srun` is about steps of all tasks of the job, and would
# change the place, the shape or the streams of a step of one.
_OF_OTHER_STEPS: Final = re.compile(
    r"SLURM_(NTASKS\w*|NPROCS|NNODES|TASKS_PER_NODE|TRES_PER_TASK|DISTRIBUTION|ARBITRARY_NODELIST"
    r"|GPUS|GPUS_PER_(TASK|SOCKET)|GPU_BIND|CPU_BIND\w*|MEM_\w+|HINT|EXACT|EXCLUSIVE"
    r"|CPUS_PER_\w+|CORES_PER_SOCKET|THREADS_PER_CORE|RELATIVE|LABELIO|STD(IN|OUT|ERR)MODE"
    r"|MULTI_PROG|EXPORT_ENV)"
    r"|SRUN_CPUS_PER_\w+"
)


# What a worker is told, the secret and its ranks among it, its agent tells alone.
_OF_WORKERS: Final = re.compile(
    r"(LOCKSTITCH|HOROVOD)_\w+|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_(ADDR|PORT)"
)


@dataclass(frozen=True)
class Allocation:
    """The nodes of a job of Slurm, with a slot for each of its tasks."""

    job: str
    slots: Slots
    cpus_per_worker: int
    """Processors for each worker where all slots are taken."""

    @staticmethod
    def read(environment: Mapping[str, str]) -> Allocation | None:
        """Returns the allocation that this process may start steps in. None outside of one, and in
        one of several tasks of a step, each of which is started for a part of the job. Raises
        `ValueError` where the variables say what cannot be."""
        job = environment.get("SLURM_JOB_ID")
        if job is None or _NODES not in environment:
            return None
        if environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
            return None
        names = list(node_names(environment[_NODES], _NODES))
        tasks = _tasks_per_node(environment, len(names))
        if len(tasks) != len(names):
            raise ValueError(
                f"{_TASKS}={environment[_TASKS]!r} counts the tasks of {len(tasks)} nodes, "
                f"but {_NODES}={environment[_NODES]!r} names {len(names)}"
            )
        slots = tuple(zip(names, tasks, strict=True))
        return Allocation(job, slots, _cpus_per_worker(environment, tasks))

    def check(self) -> None:
        """Asks Slurm whether the allocation still stands. Raises `ValueError` where it has ended,
        or where the controller does not answer."""
        if shutil.which("squeue") is None:  # then `srun` will tell
            return
        asked = ["squeue", "--noheader", f"--jobs={self.job}", "--format=%T"]
        try:
            done = subprocess.run(
                asked, capture_output=True, text=True, timeout=_ASKING_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise ValueError(
                f"the controller of Slurm does not answer {socket.gethostname()}: squeue says "
                f"nothing of allocation {self.job} within {_ASKING_SECONDS:g} seconds"
            ) from None
        state = done.stdout.strip()
        if state == "RUNNING":
            return
        said = state or done.stderr.strip() or "it is not in the queue any more"
        raise ValueError(
            f"allocation {self.job} of Slurm ({self.described()}) has ended or cannot be used from "
            f"{socket.gethostname()}: {said}"
        )

    def described(self) -> str:
        """Returns its nodes and their slots as `-H` takes them."""
        return ",".join(f"{name}:{count}" for name, count in self.slots)


class StepShell(RemoteShell):
    """`srun` in the place of ssh: it starts the workers of all nodes, this one included, so that
    each is a step that Slurm knows, limits and accounts for."""

    def __init__(self) -> None:
        # The variables of the step would tell each worker that it is the only one.
        super().__init__(_SRUN, ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"))

    def starts_on(self, host: str) -> bool:
        del host
        return True

    def address_of(self, host: str) -> str:
        return _address_of_node(host)

    def environment(self) -> dict[str, str]:
        """Returns the variables of `srun`, which it passes on through Slurm: not the secret."""
        kept_back = (_OF_OTHER_STEPS, _OF_WORKERS)
        return {
            name: value
            for name, value in os.environ.items()
            if not any(names.fullmatch(name) for names in kept_back)
        }


def _tasks_per_node(environment: Mapping[str, str], nodes: int) -> list[int]:
    if _TASKS in environment:
        return counts(environment[_TASKS], _TASKS)
    each = counts(environment.get("SLURM_NTASKS_PER_NODE", "1"), "SLURM_NTASKS_PER_NODE")
    return each * nodes if len(each) == 1 else each


def _cpus_per_worker(environment: Mapping[str, str], tasks: list[int]) -> int:
    if "SLURM_CPUS_PER_TASK" in environment:
        return max(1, *counts(environment["SLURM_CPUS_PER_TASK"], "SLURM_CPUS_PER_TASK"))
    if _CPUS not in environment:
        return 1
    found = zip(counts(environment[_CPUS], _CPUS), tasks, strict=False)
    return max(1, min(cpus // max(1, count) for cpus, count in found))


@cache
def _address_of_node(node: str) -> str:
    """Returns the name of a node, or, where only Slurm knows that, the address it has for it."""
    try:
        socket.getaddrinfo(node, None)
    except OSError:
        asked = ["scontrol", "--oneliner", "show", "node", node]
        try:
            done = subprocess.run(
                asked, capture_output=True, text=True, timeout=_ASKING_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return node
        match = _NODE_ADDRESS.search(done.stdout)
        return match[1] if match else node
    return node
