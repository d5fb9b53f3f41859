"""Where a launcher has put this process: its rank, the number of ranks, and where they can meet.

This is the one place where the variables of launchers are read, for rpc and for reductions. Those
of Horovod come first, then those of torchrun and `lockstitch run`, of MPI, and of Slurm, which are
also set where another launcher runs within a step.

Slurm tells each process of a step the nodes of the step; the ranks meet on the first, which has
rank 0. Open MPI tells where `mpirun` runs, which is where its first rank runs unless the user's
list of hosts begins with another. Others tell no host: then all ranks have to be on one. The port
follows from the name of the job, so that all come to the same without a word. MASTER_ADDR and
MASTER_PORT, where they are set, come first.
"""

from __future__ import annotations

import contextlib
import re
import socket
import zlib
from typing import TYPE_CHECKING, Final

from lockstitch.link.addresses import LOOPBACK, with_port
from lockstitch.link.node_lists import node_names
from lockstitch.link.ports import find_ports
from lockstitch.link.sockets import peer_process

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIXED: Final = (("HOROVOD_RANK", "HOROVOD_SIZE"), ("RANK", "WORLD_SIZE"))
"""Names of ranks and sizes of which neither means anything alone."""
_OTHERS: Final = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI, and what else starts by PMI
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),  # MVAPICH
    # Only `srun` sets the number of a step's tasks: the batch script itself is no rank.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
_LOCAL_SIZES: Final = (
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_LOCAL_SIZE",
)
_TOGETHER: Final = ("MASTER_ADDR", "MASTER_PORT")
_OF_HOROVOD: Final = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")

# Below those that a system gives away by itself.
_PORTS: Final = range(20_000, 32_000)
_FIRST_HOST = re.compile(r"tcp://([^,:;]+)")


def rank_and_size(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Returns this process's rank and the number of ranks; None where no launcher has said any.
    Raises `ValueError` where one has said something that cannot be."""
    for of_rank, of_size in _FIXED:
        given = [name for name in (of_rank, of_size) if name in environment]
        if len(given) == 1:
            raise ValueError(f"{given[0]} is set, but not both of {of_rank} and {of_size}")
        if given:
            return _checked(environment, of_rank, of_size)
    for of_rank, of_size in _OTHERS:
        if of_rank in environment and of_size in environment:
            return _checked(environment, of_rank, of_size)
    return None


def rank_alone(environment: Mapping[str, str]) -> int | None:
    """Returns this process's rank for a program that says the number of ranks itself; None where no
    launcher has said any."""
    for of_rank, _ in _FIXED:
        if of_rank in environment:
            return whole_number(environment, of_rank)
    known = rank_and_size(environment)
    return None if known is None else known[0]


def meeting_url(environment: Mapping[str, str]) -> str | None:
    """Returns the URL of the store where the ranks of a launcher meet: `env://` where that is in
    MASTER_ADDR and MASTER_PORT; None where nothing tells."""
    if all(name in environment for name in _TOGETHER):
        return "env://"
    if all(name in environment for name in _OF_HOROVOD):
        address, port = (environment[name] for name in _OF_HOROVOD)
        return f"tcp://{with_port(address, port)}"
    place = meeting_place(environment)
    return None if place is None else f"tcp://{with_port(*place)}"


def meeting_place(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Returns host and port at which rank 0 can await the others, as a batch system or MPI tells
    it; None where nothing tells."""
    of_mpi = next((of for of in _OTHERS[:-1] if all(name in environment for name in of)), None)
    if of_mpi is None and "SLURM_STEP_NODELIST" in environment:
        job = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
        return _node_of_slurm(environment, "SLURM_STEP_NODELIST"), _port(".".join(job), environment)
    job_name = environment.get("PMIX_NAMESPACE") or _starter(environment)
    if of_mpi is None:
        return None
    here = next((environment[name] for name in _LOCAL_SIZES if name in environment), None)
    if environment[of_mpi[1]] == here:
        return None if job_name is None else (LOOPBACK, _port(job_name, environment))
    host = _first_host_of_mpi(environment)
    job_name = environment.get("PMIX_NAMESPACE") or environment.get("SLURM_JOB_ID")
    return None if host is None or job_name is None else (host, _port(job_name, environment))


def _first_host_of_mpi(environment: Mapping[str, str]) -> str | None:
    """Returns the host of rank 0 of a job of MPI on several hosts, as far as it is told."""
    if "SLURM_JOB_NODELIST" in environment:
        return _node_of_slurm(environment, "SLURM_JOB_NODELIST")
    for variable in ("OMPI_MCA_orte_hnp_uri", "PRTE_MCA_prte_hnp_uri"):
        if match := _FIRST_HOST.search(environment.get(variable, "")):
            return match[1]
    return None


def _node_of_slurm(environment: Mapping[str, str], variable: str) -> str:
    """Returns the first node, or, where its name is known to Slurm alone, the address of the one
    where the step was launched, which is the first where a batch script has done it."""
    node = next(node_names(environment[variable], variable))
    launched_at = environment.get("SLURM_LAUNCH_NODE_IPADDR")
    with contextlib.suppress(OSError):
        socket.getaddrinfo(node, None)
        return node
    return launched_at or node


def whole_number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Returns the number in a variable. Raises `ValueError` for anything else."""
    value = environment.get(name)
    if value is None and default is not None:
        return default
    try:
        return int(value or "")
    except ValueError:
        raise ValueError(f"{name}={value!r} is not a whole number") from None


def _checked(environment: Mapping[str, str], of_rank: str, of_size: str) -> tuple[int, int]:
    rank, size = whole_number(environment, of_rank), whole_number(environment, of_size)
    if not 0 <= rank < size:
        raise ValueError(f"{of_rank}={rank} does not lie within {of_size}={size}")
    return rank, size


def _starter(environment: Mapping[str, str]) -> str | None:
    """What tells the jobs of MPICH on one host apart: the process at the other end of the socket
    that each rank is given to speak with it."""
    given = environment.get("PMI_FD", "")
    if not given.isdecimal():
        return None
    try:
        return f"started by {peer_process(int(given))}"
    except OSError:  # closed on the way here, by a process in between
        return None


def _port(job: str, environment: Mapping[str, str]) -> int:
    ports = find_ports(None, environment) or _PORTS
    return ports[zlib.crc32(job.encode()) % len(ports)]
