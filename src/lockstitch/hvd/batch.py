"""Where a batch system or MPI has put a process: its rank, and where the ranks can meet.

Slurm tells each process of a step its place and the nodes of the step. MPI tells the place only;
if all ranks are on one host they meet there. The port follows from the name of the job, so that all
come to the same without a word. MASTER_ADDR and MASTER_PORT, where they are set, come first.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Final

from lockstitch.link.sockets import peer_process

if TYPE_CHECKING:
    from collections.abc import Mapping

RANK_AND_SIZE: Final = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
    # Only `srun` sets the number of a step's tasks: the batch script itself is no rank.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""The environment's names, by family."""

# Below those that a system gives away by itself.
_FIRST_PORT, _PORTS = 20_000, 12_000
_FIRST_NODE = re.compile(r"([^\[,]+)(?:\[(\d+))?")


def meeting_place(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Host and port at which rank 0 can await the others; None where nothing tells."""
    nodes = environment.get("SLURM_STEP_NODELIST")
    if nodes is not None:
        job = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
        return first_node(nodes), _port(".".join(job))
    size = environment.get("OMPI_COMM_WORLD_SIZE") or environment.get("PMI_SIZE")
    here = environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") or environment.get("MPI_LOCALNRANKS")
    job_name = environment.get("PMIX_NAMESPACE") or _starter(environment)
    if size is not None and size == here and job_name is not None:
        return "127.0.0.1", _port(job_name)
    return None


def _starter(environment: Mapping[str, str]) -> str | None:
    """Returns what tells the jobs of MPICH on one host apart: the process at the other end of the
    socket that each rank is given to speak with it."""
    given = environment.get("PMI_FD", "")
    if not given.isdecimal():
        return None
    try:
        return f"started by {peer_process(int(given))}"
    except OSError:  # closed on the way here, by a process in between
        return None


def first_node(nodes: str) -> str:
    """The first of a list such as `node[03-05,7],login1`."""
    match = _FIRST_NODE.match(nodes)
    if match is None:
        raise ValueError(f"SLURM_STEP_NODELIST={nodes!r} is no list of nodes")
    return match[1] + (match[2] or "")


def _port(job: str) -> int:
    return _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS
