"""What becomes of a job, look by look."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

from lockstitch.attach.values import (
    CallTraffic,
    ContextReport,
    Counter,
    LaunchedWorker,
    StepReport,
    WorkerReport,
)
from lockstitch.dashboard.history import POINTS, History
from lockstitch.dashboard.values import Edge
from lockstitch.observe.grouping import Job
from tests.unit.attach.cards import process
from tests.unit.observe.jobs import caller, idle, job


def launched_by(*workers: LaunchedWorker) -> Job:
    launcher = replace(process(9, kind="launcher"), launched=workers)
    return Job("train", 9, launcher, (idle(0),), ())


def states(history: History) -> dict[str, tuple[str, str]]:
    assert history.state is not None
    return {each.name: (each.state, each.why) for each in history.state.rows}


def test_a_worker_that_is_gone_stays_with_when_and_why() -> None:
    history = History()
    history.note(job(idle(0), idle(1)), 100.0)
    history.note(job(idle(0)), 101.0)
    assert states(history)["worker1"] == ("gone", "its process is gone")
    # The launcher may tell later how it has ended.
    history.note(launched_by(LaunchedWorker(1, 11, "", 1.0, 100.5, "killed by SIGKILL")), 102.0)
    assert states(history)["worker1"] == ("gone", "killed by SIGKILL")
    assert history.state is not None
    (gone,) = [each for each in history.state.rows if each.state == "gone"]
    assert (gone.since, gone.numbers) == (100.5, {})


def test_a_worker_that_ended_well_is_no_fault_and_one_of_another_host_is_found_by_its_rank() -> (
    None
):
    history = History()
    history.note(job(idle(0), idle(1)), 100.0)
    far = LaunchedWorker(1, 777, "far", 1.0, 100.5, "exit code 0 on host far")
    history.note(launched_by(far), 101.0)
    assert states(history) == {
        "worker0": ("ok", "sleeps"), "worker1": ("ended", "exit code 0 on host far"),
    }  # fmt: skip


def test_those_that_only_the_launcher_knows_are_there_too() -> None:
    history = History()
    history.note(
        launched_by(
            LaunchedWorker(0, 10, "", 1.0),
            LaunchedWorker(1, 11, "", 1.0),
            LaunchedWorker(2, 12, "", 1.0, 99.0, "exit code 1"),
        ),
        100.0,
    )
    assert {name: state for name, (state, _) in states(history).items()} == {
        "worker0": "ok", "worker 1": "starting", "worker 2": "gone",
    }  # fmt: skip


def test_hosts_that_could_not_be_reached_are_told() -> None:
    history = History()
    state = history.note(replace(job(idle(0)), unreached=("beta:1 cannot be asked: no",)), 1.0)
    assert state.unreached == ("of another host nothing is known: beta:1 cannot be asked: no",)
    assert history.note(job(idle(0)), 2.0).unreached == ()


def test_the_end_of_the_job_is_told_with_its_last_state() -> None:
    history = History()
    assert history.note_end(1.0) is None
    history.note(job(idle(0), idle(1)), 100.0)
    history.note(job(idle(0)), 101.0)
    state = history.note_end(103.0)
    assert state is not None
    assert (state.ended_at, state.job_state) == (103.0, "has ended")
    assert states(history) == {
        "worker0": ("ended", "it ended with the job"), "worker1": ("gone", "its process is gone"),
    }  # fmt: skip


def test_who_waits_for_whom_and_which_contexts_are_open() -> None:
    history = History()
    first = caller(0, 1, of=1)
    with_context = replace(first.workers[0], contexts=(ContextReport(7, ()), ContextReport(3, ())))
    state = history.note(job(replace(first, workers=(with_context,)), caller(1, 0, of=0)), 1.0)
    assert {(each.caller, each.callee, each.pending) for each in state.edges} == {
        ("worker0", "worker1", 1), ("worker1", "worker0", 1),
    }  # fmt: skip
    assert {each.calls for each in state.edges} == {0.0}
    assert [each.kind for each in state.waits] == ["cycle", "worker", "worker"]
    assert state.contexts == (3, 7)
    json.dumps(dataclasses.asdict(state))


def test_calls_by_pair_and_by_function_are_those_since_the_look_before() -> None:
    history = History()

    def told(at: float, count: int) -> Job:
        traffic = CallTraffic("made", "m:ask", "worker1", count, 0, 1.0, 10 * count, 0, (0, count))
        worker = WorkerReport("worker0", 0, traffic=(traffic,))
        return job(replace(idle(0), workers=(worker,), told_at=at), replace(idle(1), told_at=at))

    assert history.note(told(1.0, 3), 1.0).functions == ()
    state = history.note(told(3.0, 7), 3.0)
    assert state.edges == (Edge("worker0", "worker1", 2.0, 20.0, 0),)
    assert [(each.function, each.calls) for each in state.functions] == [("m:ask", 4)]
    assert set(history.points[-1].values["p99"]) == {"m:ask"}
    # A look in which nothing has ended has no latency.
    history.note(told(4.0, 7), 4.0)
    assert "p99" not in history.points[-1].values


def test_charts_have_a_line_for_each_worker_or_three_for_many() -> None:
    history = History()
    step = StepReport(7, 99.9, 2.0, (("loss", 0.5),))
    few = job(replace(idle(0), step=step), idle(1))
    history.note(few, 100.0)
    values = history.points[-1].values
    assert values["value: loss"] == {"worker0": 0.5}
    assert values["step_seconds"] == {"worker0": 0.5}
    assert set(values["memory"]) == {"worker0", "worker1"}
    history.note(few, 110.0)  # it has not told of a step for long
    assert round(history.points[-1].values["step_seconds"]["worker0"], 1) == 10.1

    def told(calls: int) -> Job:
        counted = (Counter("lockstitch_rpc_calls_total", calls),)
        return job(
            *(
                replace(idle(n), workers=(WorkerReport(f"worker{n}", n, counters=counted),))
                if n
                else idle(n)
                for n in range(10)
            )
        )

    history.note(told(0), 111.0)
    history.note(told(5), 112.0)
    values = history.points[-1].values
    assert values["memory"] == dict.fromkeys(("greatest", "middle", "least"), float(1 << 20))
    assert values["calls"] == dict.fromkeys(("greatest", "middle", "least"), 5.0)


def test_what_is_kept_is_bounded() -> None:
    history = History()
    for look in range(POINTS + 10):
        history.note(job(process(100 + look, rank=str(look))), float(look))
    assert len(history.points) == POINTS
    assert len(states(history)) == 65
