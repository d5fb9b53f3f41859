from __future__ import annotations

import os

import pytest

from lockstitch import hvd
from lockstitch.collectives import LocalSessions
from lockstitch.hvd.job import PROCESS, active, current_session, has_session
from tests.cluster.hvd.ranks import in_job


def test_without_a_session_everything_says_to_begin_with_init():
    assert not has_session()
    for question in (hvd.rank, hvd.size, hvd.local_rank, hvd.cross_size, hvd.is_homogeneous):
        with pytest.raises(ValueError, match="use hvd.init"):
            question()


def test_each_thread_may_be_a_rank():
    with LocalSessions(3) as sessions:
        assert sessions.run(in_job(hvd.rank)) == [0, 1, 2]


def test_sessions_nest():
    with LocalSessions(1) as (outer,), LocalSessions(1) as (inner,), active(outer):
        with active(inner):
            assert current_session() is inner
        assert current_session() is outer


def test_a_forked_child_is_no_rank():
    hvd.init()
    reader, writer = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            try:
                hvd.rank()
            except ValueError as error:
                os.write(writer, str(error).encode())
            os._exit(int(hvd.is_initialized()))
        assert os.waitpid(pid, 0)[1] == 0
        assert b"use hvd.init(). This process" in (said := os.read(reader, 1000))
        assert b"forked from rank 0" in said
        assert PROCESS.session is not None
        assert PROCESS.parents is None
    finally:
        os.close(reader)
        os.close(writer)
        hvd.shutdown()
