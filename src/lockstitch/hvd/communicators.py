"""Ranks that know each other already, by a communicator of mpi4py: there they find out where to
meet. All that goes over MPI is one name."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

from torch.distributed import TCPStore

_TIMEOUT = timedelta(seconds=60)


@runtime_checkable
class Communicator(Protocol):
    """The part of `mpi4py.MPI.Comm` that is used."""

    def Get_rank(self) -> int: ...  # noqa: N802 - MPI's name

    def Get_size(self) -> int: ...  # noqa: N802

    def allgather(self, value: Any) -> list[Any]: ...

    def bcast(self, value: Any, root: int = 0) -> Any: ...


def meet(comm: Communicator) -> tuple[int, int, TCPStore]:
    """This process's rank, the number of ranks, and a store that all of them reach; rank 0 hosts
    it, for as long as it keeps it."""
    rank, hosts = comm.Get_rank(), comm.allgather(socket.gethostname())
    host = hosts[0] if len(set(hosts)) > 1 else "127.0.0.1"
    store = None
    if rank == 0:
        store = TCPStore(host, 0, is_master=True, timeout=_TIMEOUT, wait_for_workers=False)
    port = comm.bcast(None if store is None else store.port, root=0)
    if store is None:
        store = TCPStore(host, port, is_master=False, timeout=_TIMEOUT)
    return rank, comm.Get_size(), store
