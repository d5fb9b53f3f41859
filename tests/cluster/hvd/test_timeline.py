from __future__ import annotations

import json
import os
import signal

import pytest
import torch

from lockstitch import hvd
from lockstitch.collectives import LocalSessions
from lockstitch.hvd.job import PROCESS, active
from lockstitch.hvd.timeline import begin_timeline_of
from tests.cluster.hvd.ranks import on_ranks


def phases(path):
    """The phases of each operation, in order, with how often each ended."""
    events = json.loads(path.read_text())
    named = [event for event in events if event.get("name") == "process_name"]
    rows = {event["pid"]: event["args"]["name"] for event in named}
    found = {name: [] for name in rows.values()}
    for event in events:
        if event["ph"] in "BE":
            found[rows[event["pid"]]].append(event.get("name", "end"))
    return found


def test_each_operation_is_negotiated_then_done(tmp_path):
    path = tmp_path / "timeline.json"

    def program():
        hvd.start_timeline(str(path))
        for _ in range(2):
            hvd.allreduce(torch.ones(2), name="a")
        hvd.broadcast(torch.ones(2), root_rank=1, name="b")
        hvd.stop_timeline()
        hvd.allreduce(torch.ones(2), name="c")

    on_ranks(2, program)
    once = ["NEGOTIATE_ALLREDUCE", "end", "ALLREDUCE", "end"]
    assert phases(path) == {
        "allreduce.a": once * 2,
        "broadcast.b": ["NEGOTIATE_BROADCAST", "end", "BROADCAST", "end"],
    }


def test_times_grow_from_a_known_beginning(tmp_path):
    path = tmp_path / "timeline.json"

    def program():
        hvd.start_timeline(str(path), mark_cycles=True)
        hvd.allreduce(torch.ones(2), name="a")
        hvd.stop_timeline()

    on_ranks(1, program)
    events = json.loads(path.read_text())
    assert events[0]["args"]["start_time_since_epoch_in_micros"] > 1.7e15
    times = [event["ts"] for event in events if "ts" in event]
    assert len(times) == 5
    assert [event["ts"] for event in events if event.get("name") == "CYCLE_START"] == [times[2]]
    assert times == sorted(times)
    assert times[0] >= 0


def test_the_file_is_whole_at_every_moment(tmp_path):
    path = tmp_path / "timeline.json"

    def program():
        hvd.start_timeline(str(path))
        assert len(json.loads(path.read_text())) == 1
        hvd.allreduce(torch.ones(2), name="a")
        json.loads(path.read_text())
        handle = hvd.allreduce_async(torch.ones(2), name="b")
        json.loads(path.read_text())
        hvd.synchronize(handle)
        hvd.stop_timeline()

    on_ranks(1, program)


def test_the_file_is_whole_after_a_kill(tmp_path):
    path = tmp_path / "timeline.json"
    pid = os.fork()
    if pid == 0:
        with LocalSessions(1) as (session,), active(session):
            hvd.start_timeline(str(path))
            for _ in range(3):
                hvd.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    (found,) = phases(path).values()
    assert found == ["NEGOTIATE_BARRIER", "end", "BARRIER", "end"] * 3


def test_every_rank_writes_a_file_of_its_own_if_asked(tmp_path):
    def program():
        hvd.start_timeline(str(tmp_path / "{rank}.json"))
        hvd.barrier()
        hvd.stop_timeline()

    on_ranks(3, program)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0.json", "1.json", "2.json"]
    assert all(len(phases(file)) == 1 for file in tmp_path.iterdir())


def test_the_environment_names_a_timeline_that_goes_on_in_the_next_session(tmp_path, monkeypatch):
    path = tmp_path / "timeline.json"
    monkeypatch.setenv("HOROVOD_TIMELINE", str(path))
    for name in "ab":
        hvd.init()
        hvd.allreduce(torch.ones(1), name=name)
        hvd.shutdown()
    assert set(phases(path)) == {"allreduce.a", "allreduce.b"}
    monkeypatch.setenv("HOROVOD_TIMELINE", "DYNAMIC")
    before = path.read_bytes()
    hvd.init()
    hvd.barrier()
    hvd.shutdown()
    assert path.read_bytes() == before


def test_another_process_goes_on_where_a_former_rank_0_was_killed(tmp_path, monkeypatch):
    path = tmp_path / "timeline.json"
    monkeypatch.setenv("HOROVOD_TIMELINE", str(path))

    def world(name, *, is_first):
        with LocalSessions(2) as sessions:
            begin_timeline_of(sessions[0], os.environ, is_first_world=is_first)
            for session in sessions:
                session.allreduce(torch.ones(1), name=name)
            sessions[0].allreduce(torch.ones(1), name="unfinished")

    world("stale", is_first=False)
    PROCESS.timelines.clear()  # as another process
    world("a", is_first=True)
    PROCESS.timelines.clear()
    world("b", is_first=False)
    once = ["NEGOTIATE_ALLREDUCE", "end", "ALLREDUCE", "end"]
    found = phases(path)
    assert "stale" not in found  # of an earlier job
    assert [found["a"], found["b"]] == [once, once]
    assert found["unfinished"][:3] == ["NEGOTIATE_ALLREDUCE", "end", "NEGOTIATE_ALLREDUCE"]
    times = [event["ts"] for event in json.loads(path.read_text()) if "ts" in event]
    assert times == sorted(times)


def test_an_operation_that_fails_ends_too(tmp_path):
    path = tmp_path / "timeline.json"

    def program():
        hvd.start_timeline(str(path))
        with pytest.raises(hvd.HorovodInternalError):
            hvd.allreduce(torch.ones(1 + hvd.rank()), name="odd")
        hvd.stop_timeline()

    on_ranks(2, program)
    assert phases(path) == {"allreduce.odd": ["NEGOTIATE_ALLREDUCE", "end"]}


def test_before_init_there_is_nothing_to_record():
    with pytest.raises(ValueError, match="hvd.init"):
        hvd.start_timeline("nowhere")
