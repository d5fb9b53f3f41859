from __future__ import annotations

import pytest
import torch

from lockstitch import hvd
from lockstitch.collectives import LocalSessions
from lockstitch.hvd.job import in_job
from lockstitch.hvd.process_sets import add_first_sets
from tests.cluster.hvd.test_communicators import FakeCommunicator, Ring


def test_operations_among_some_of_the_ranks():
    def program():
        odd = hvd.add_process_set([3, 1])
        even = hvd.add_process_set(hvd.ProcessSet([0, 2]))
        mine = odd if odd.included() else even
        assert (mine.size(), mine.rank()) == (2, hvd.rank() // 2)
        total = hvd.allreduce(torch.tensor([hvd.rank()]), op=hvd.Sum, process_set=mine)
        root = hvd.broadcast(torch.tensor([hvd.rank()]), mine.ranks[-1], process_set=mine)
        hvd.barrier(process_set=mine)
        return total.item(), root.item()

    with LocalSessions(4) as sessions:
        assert sessions.run(in_job(program)) == [(2, 2), (4, 3), (2, 2), (4, 3)]


def test_a_set_ends_and_may_be_made_again():
    def program():
        some = hvd.add_process_set([0])
        assert hvd.remove_process_set(some)
        assert some.process_set_id is None
        assert not hvd.remove_process_set(some)
        with pytest.raises(ValueError, match="is not known"):
            hvd.barrier(process_set=some)
        hvd.add_process_set(some)
        return some.size()

    with LocalSessions(2) as sessions:
        assert sessions.run(in_job(program)) == [1, 1]


def test_the_set_of_all_ranks_stays():
    def program():
        everybody = hvd.global_process_set
        assert not hvd.remove_process_set(everybody)
        with pytest.raises(ValueError, match="already"):
            hvd.add_process_set([0, 1])
        return everybody.ranks, everybody.size(), everybody.rank(), everybody.included()

    with LocalSessions(2) as sessions:
        assert sessions.run(in_job(program)) == [([0, 1], 2, 0, True), ([0, 1], 2, 1, True)]


def test_who_is_no_member_is_told():
    def program():
        first = hvd.add_process_set([0])
        if hvd.rank() == 1:
            with pytest.raises(ValueError, match="rank 1 is not in process set"):
                hvd.allreduce(torch.ones(1), process_set=first)
            with pytest.raises(ValueError, match="rank 1"):
                first.rank()
        return first != hvd.ProcessSet([0]) and first != 1

    with LocalSessions(2) as sessions:
        assert sessions.run(in_job(program)) == [True, True]


def test_each_part_of_a_split_communicator_becomes_a_set():
    rings = Ring(2), Ring(1)

    def program():
        rank = hvd.rank()
        comm = FakeCommunicator(rings[rank % 2], rank // 2)
        part = hvd.add_process_set(hvd.ProcessSet(comm))
        total = hvd.allreduce(torch.tensor([10 + rank]), op=hvd.Sum, process_set=part)
        again = hvd.add_process_set(hvd.ProcessSet(comm))  # the same ranks: the same sets
        return part.ranks, part.process_set_id, again.process_set_id, total.item()

    with LocalSessions(3) as sessions:
        even, odd = ([0, 2], 1, 1, 22), ([1], 2, 2, 11)
        assert sessions.run(in_job(program)) == [even, odd, even]


def test_at_the_beginning_sets_that_repeat_others_are_passed_over():
    def program():
        sets = [hvd.ProcessSet(ranks) for ranks in ([0], [1, 0], [0], [1])]
        add_first_sets([*sets, [1]])
        return [each.process_set_id for each in sets]

    with LocalSessions(2) as sessions:
        assert sessions.run(in_job(program)) == [[1, None, None, 2]] * 2


def test_what_is_no_rank_is_refused():
    with pytest.raises(ValueError, match="must be numbers"):
        hvd.ProcessSet(["0", "1"])


def test_what_is_no_set_is_refused_with_advice():
    def program():
        for wrong in ([0], 1):
            with pytest.raises(TypeError, match=r"is a hvd\.ProcessSet, not .*add_process_set"):
                hvd.allreduce(torch.ones(1), process_set=wrong)

    with LocalSessions(1) as sessions:
        sessions.run(in_job(program))
