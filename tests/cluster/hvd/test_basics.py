from __future__ import annotations

import logging

import pytest
import torch

from lockstitch import hvd
from lockstitch.collectives import LocalSessions
from lockstitch.collectives.events import Stall
from lockstitch.collectives.requests import Kind
from lockstitch.hvd.job import PROCESS
from tests.cluster.hvd.ranks import in_job


def test_a_plain_process_is_a_job_of_size_one_as_often_as_one_likes():
    for _ in range(3):
        assert not hvd.is_initialized()
        hvd.init()
        hvd.init()  # harmless
        assert hvd.is_initialized()
        assert (hvd.rank(), hvd.size()) == (0, 1)
        assert (hvd.local_rank(), hvd.local_size()) == (0, 1)
        assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
        assert hvd.is_homogeneous()
        assert hvd.allreduce(torch.tensor([2.0])).tolist() == [2.0]
        hvd.shutdown()
        hvd.shutdown()


def test_ranks_know_where_they_stand():
    def where():
        return hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()

    with LocalSessions(3, hosts=["a", "a", "b"]) as sessions:
        assert sessions.run(in_job(where)) == [(0, 2, 0, 2), (1, 2, 0, 1), (0, 1, 1, 2)]
        assert sessions.run(in_job(hvd.is_homogeneous)) == [False] * 3


def test_what_is_built_in():
    assert hvd.gloo_built() == hvd.gloo_enabled() == torch.distributed.is_gloo_available()
    assert hvd.nccl_built() == int(torch.distributed.is_nccl_available())
    assert not any([hvd.mpi_built(), hvd.mpi_enabled(), hvd.ddl_built(), hvd.ccl_built()])
    assert hvd.cuda_built() == (torch.version.cuda is not None)
    assert hvd.rocm_built() == (torch.version.hip is not None)


@pytest.mark.parametrize("comm", [[0, 1], [0, 0], [-1]])
def test_init_takes_ranks_that_exist(comm):
    with pytest.raises(ValueError, match="different ranks from 0 to 0"):
        hvd.init(comm=comm)
    assert not hvd.is_initialized()
    hvd.init(comm=[0], process_sets="dynamic")
    hvd.shutdown()


def test_a_process_that_is_not_in_comm_is_told(monkeypatch):
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setenv("HOROVOD_SIZE", "3")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(ValueError, match="rank 1, which is not in comm"):
        hvd.init(comm=[0, 2])


def test_init_that_fails_leaves_nothing():
    for wrong in ([hvd.ProcessSet([5])], [hvd.ProcessSet([0])], "static"):
        with pytest.raises(ValueError, match="ranks|duplicate|dynamic"):
            hvd.init(process_sets=wrong)
        assert not hvd.is_initialized()
    hvd.init(process_sets="Dynamic")
    hvd.shutdown()


def test_stall_is_reported_with_names(caplog):
    hvd.init()
    try:
        report = PROCESS.session.observers.stall
        with caplog.at_level(logging.WARNING):
            report(Stall("allreduce.w", Kind.ALLREDUCE, 61.0, (2, 3), 0))
    finally:
        hvd.shutdown()
    assert "'allreduce.w' has waited for 61 s: ranks [2, 3]" in caplog.text
