"""`hvd.run`: functions on ranks that are real processes."""

from __future__ import annotations

import os

import pytest
import torch

from lockstitch import hvd


def test_results_come_back_in_the_order_of_ranks():
    factor = 10

    def train(start, *, step):
        hvd.init()
        total = hvd.allreduce(torch.tensor([start + step * hvd.rank()]), op=hvd.Sum)
        return hvd.rank(), hvd.size(), factor * total.item()

    assert hvd.run(train, args=(1,), kwargs={"step": 2}, np=2) == [(0, 2, 40), (1, 2, 40)]


def fail_on_rank_1():
    hvd.init()
    if hvd.rank() == 1:
        raise LookupError("the bug")
    hvd.barrier()


@pytest.mark.slow
def test_an_error_of_a_rank_is_raised_here_with_its_traceback():
    with pytest.raises(hvd.HorovodInternalError, match="exited with non-zero status") as caught:
        hvd.run(fail_on_rank_1, num_proc=2)
    error = caught.value.__cause__
    assert isinstance(error, LookupError)
    assert "in fail_on_rank_1" in str(error.__cause__)


def end_without_a_word():
    hvd.init()
    if hvd.rank() == 0:
        os._exit(3)
    hvd.barrier()


@pytest.mark.slow
def test_a_rank_that_ends_without_an_error_is_named_and_not_who_failed_because_of_it():
    with pytest.raises(hvd.HorovodInternalError, match="worker 0 failed first: exit code 3") as it:
        hvd.run(end_without_a_word, num_proc=2)
    assert it.value.__cause__ is None


@pytest.mark.slow
def test_ranks_of_an_elastic_job_return_results_too():
    def train():
        hvd.init()
        state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0)

        @hvd.elastic.run
        def steps(state):
            while state.step < 3:
                state.step += 1
                state.commit()
            return hvd.rank(), state.step

        return steps(state)

    assert hvd.run(train, num_proc=2, min_num_proc=2) == [(0, 3), (1, 3)]


def test_a_launcher_that_refuses_is_an_error():
    with pytest.raises(hvd.HorovodInternalError, match="status 2"):
        hvd.run(print, np=2, hosts="not a host")
