from __future__ import annotations

import threading

from torch.distributed import TCPStore

from lockstitch.hvd.communicators import Communicator, meet
from tests.cluster.collectives.ranks import in_threads

# The first one of a process makes a pipe that torch keeps.
TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


class Ring:
    """What ranks of MPI know of each other, among the threads of a test."""

    def __init__(self, size):
        self.size = size
        self.values = [None] * size
        self.barrier = threading.Barrier(size, timeout=50)


class FakeCommunicator:
    def __init__(self, ring, rank):
        self._ring, self._rank = ring, rank

    def Get_rank(self):  # noqa: N802
        return self._rank

    def Get_size(self):  # noqa: N802
        return self._ring.size

    def allgather(self, value):
        self._ring.values[self._rank] = value
        self._ring.barrier.wait()
        gathered = list(self._ring.values)
        self._ring.barrier.wait()
        return gathered

    def bcast(self, value, root=0):
        return self.allgather(value)[root]


def test_ranks_of_a_communicator_meet():
    ring = Ring(2)

    def run(rank):
        comm = FakeCommunicator(ring, rank)
        assert isinstance(comm, Communicator)
        mine, size, store = meet(comm)
        store.set(f"rank{mine}", "here")
        ring.barrier.wait()
        found = [store.get(f"rank{other}") for other in range(size)]
        ring.barrier.wait()  # rank 0 has the store
        return mine, found

    assert in_threads(2, run) == [(0, [b"here"] * 2), (1, [b"here"] * 2)]


def test_a_list_of_ranks_is_no_communicator():
    assert not isinstance([0, 1], Communicator)
