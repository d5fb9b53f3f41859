from __future__ import annotations

import pytest
import torch

from lockstitch import hvd
from lockstitch.collectives import LocalSessions
from lockstitch.hvd.handles import Operation
from tests.cluster.hvd.ranks import in_job, on_ranks


def test_a_handle_is_done_when_all_have_submitted():
    with LocalSessions(2) as sessions:
        first = in_job(lambda: hvd.allreduce_async(torch.ones(1), name="x"))(sessions[0])
        assert not hvd.poll(first)
        assert "under way" in repr(first)
        second = in_job(lambda: hvd.allreduce_async(torch.ones(1), name="x"))(sessions[1])
        assert hvd.poll(first)
        assert hvd.synchronize(second) is hvd.synchronize(second)


def test_what_is_begun_is_done_later_also_where_nobody_else_takes_part():
    def program():
        tensor = torch.tensor([2.0])
        handle = hvd.allreduce_async_(tensor, op=hvd.Sum, postscale_factor=3.0)
        assert tensor.item() == 2.0
        assert not hvd.poll(handle)
        assert hvd.poll(handle)
        return tensor.item()

    assert on_ranks(1, program) == [6.0]


def test_a_result_is_finished_once():
    finished = []

    def finish(value):
        finished.append(value)
        return len(finished)

    with LocalSessions(1) as (session,):
        operation = Operation(session, session.allreduce(torch.ones(1)), finish)
        assert [operation(), operation.wait(), hvd.synchronize(operation)] == [1, 1, 1]


def test_join_contributes_zeros_and_names_the_last():
    def program():
        if hvd.rank() == 0:
            return hvd.join()
        total = hvd.allreduce(torch.tensor([4.0]), op=hvd.Average).item()
        assert total == 2.0  # divided by two all the same
        with pytest.raises(hvd.HorovodInternalError):
            hvd.allgather(torch.ones(1))
        return hvd.join()

    with LocalSessions(2) as sessions:
        first = in_job(lambda: hvd.allreduce_async(torch.ones(1), name="before"))
        for session in sessions:
            first(session)
        assert sessions.run(in_job(program)) == [1, 1]


def test_barrier_waits_for_all():
    assert on_ranks(3, hvd.barrier) == [None] * 3


@pytest.mark.parametrize("use", [hvd.poll, hvd.synchronize])
@pytest.mark.parametrize("what", [77, None, torch.ones(2)], ids=["number", "None", "tensor"])
def test_what_is_no_handle_is_refused(use, what):
    with pytest.raises(ValueError, match="is not a handle: pass what allreduce_async_"):
        use(what)
