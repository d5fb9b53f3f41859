from __future__ import annotations

import copy
import pickle

import pytest
import torch

from lockstitch import hvd
from lockstitch.collectives import LocalSessions
from lockstitch.hvd.process_sets import add_first_sets
from tests.cluster.hvd.ranks import in_job
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


def test_at_the_beginning_sets_are_numbered_in_their_order_whatever_that_of_their_ranks():
    def program():
        orders = (range(1, 3), reversed(range(1, 3)))
        sets = [hvd.ProcessSet([0]), hvd.ProcessSet(orders[hvd.rank() % 2])]
        add_first_sets([*sets, [0, 1]])
        assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {
            0: [0, 1, 2],
            1: [0],
            2: [1, 2],
            3: [0, 1],
        }
        assert str(sets[1]) == "ProcessSet(process_set_id=2, ranks=[1, 2], mpi_comm=None)"
        return [each.process_set_id for each in sets]

    with LocalSessions(3) as sessions:
        assert sessions.run(in_job(program)) == [[1, 2]] * 3


@pytest.mark.parametrize("repeated", [[0], [1, 0]])
def test_at_the_beginning_a_set_that_repeats_another_or_has_all_ranks_is_refused(repeated):
    def program():
        sets = [hvd.ProcessSet([0]), hvd.ProcessSet([1]), hvd.ProcessSet(repeated)]
        with pytest.raises(ValueError, match="entry number 2 of process_sets is a duplicate: Proc"):
            add_first_sets(sets)
        return [each.process_set_id for each in sets]

    with LocalSessions(2) as sessions:
        assert sessions.run(in_job(program)) == [[1, 2, None]] * 2


def test_at_the_beginning_a_communicator_that_repeats_a_set_is_refused_on_all_ranks():
    rings = Ring(2), Ring(1)

    def program():
        rank = hvd.rank()
        comm = FakeCommunicator(rings[rank % 2], rank // 2)
        with pytest.raises(ValueError, match="entry number 1 of process_sets is a duplicate"):
            add_first_sets([[1], hvd.ProcessSet(comm)])

    with LocalSessions(3) as sessions:
        sessions.run(in_job(program))


def test_a_set_that_is_not_known_has_no_size_and_no_rank():
    unknown = hvd.ProcessSet([0])
    assert hvd.global_process_set.ranks == []
    with pytest.raises(ValueError, match="not been initialized"):
        hvd.global_process_set.size()

    def program():
        assert (unknown.size(), unknown.rank(), unknown.included()) == (None, None, True)
        split = hvd.ProcessSet(FakeCommunicator(Ring(1), 0))
        assert (split.size(), split.rank(), split.included()) == (None, None, None)
        for kind in (hvd.Average, hvd.Adasum):
            with pytest.raises(ValueError, match="is not known"):
                hvd.allreduce(torch.ones(2), op=kind, process_set=unknown)

    with LocalSessions(1) as sessions:
        sessions.run(in_job(program))


def test_a_set_of_an_earlier_job_is_not_taken_for_another_of_the_same_number():
    def begin(ranks):
        made = hvd.add_process_set(ranks)
        assert made.process_set_id == 1
        return made

    with LocalSessions(2) as sessions:
        earlier = sessions.run(in_job(lambda: begin([0, 1][:1])))

    def program():
        begin([1])
        again = earlier[hvd.rank()]
        with pytest.raises(ValueError, match="belongs to an earlier job"):
            hvd.barrier(process_set=again)
        return hvd.add_process_set(again).process_set_id

    with LocalSessions(2) as sessions:
        assert sessions.run(in_job(program)) == [2, 2]


def test_a_set_that_another_object_has_ended_is_not_ended_again():
    def program():
        some = hvd.add_process_set([0])
        same = copy.copy(some)
        assert pickle.loads(pickle.dumps(some)) == some
        assert hvd.remove_process_set(some)
        assert not hvd.remove_process_set(same)
        return same.process_set_id

    with LocalSessions(2) as sessions:
        assert sessions.run(in_job(program)) == [None, None]


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
