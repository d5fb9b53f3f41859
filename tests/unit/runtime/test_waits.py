"""A worker tells what it waits for."""

from __future__ import annotations

import threading

from lockstitch.attach.values import OtherWait
from lockstitch.ids import WorkerId
from lockstitch.runtime.pending import Pending
from lockstitch.runtime.waits import WorkerWaits, look
from lockstitch.testing.clock import ManualClock
from tests.unit.runtime.stage import Background, Stage, wait_until

gate = threading.Lock()


def wait_at_gate() -> bool:
    return gate.acquire(timeout=10)


class Patient:
    def waits(self) -> list[OtherWait]:
        return [OtherWait("for better days")]


def test_worker_that_waits_for_nothing() -> None:
    with Stage() as stage:
        assert look(stage.worker) == WorkerWaits("worker", (), (), ())
        assert not look(stage.worker)


def test_calls_without_an_answer_and_lines_of_services() -> None:
    clock = ManualClock()
    with Stage(clock=clock) as stage:
        stage.worker.plug(Patient())
        stage.agent.outgoing.call_async(WorkerId(1, 0), abs, (-1,), None, 0)
        clock.advance(5)
        waits = look(stage.worker)
        assert waits.calls == (("peer1", "builtins:abs", 5.0),)
        assert waits.others == ("for better days",)
        assert waits


def test_a_thread_that_listens_passes_for_no_call() -> None:
    with Stage() as stage:
        stage.agent.outgoing.call_async(WorkerId(1, 0), abs, (-1,), None, 0)
        channel = stage.agent.peers.channel(WorkerId(1, 0))
        sleeper = Pending(None, None, None)
        sleeper.is_shared = True
        listening = Background(channel.wait_shared, sleeper)
        wait_until(lambda: channel.outstanding == 2)
        assert [what for _to, what, _seconds in look(stage.worker).calls] == ["builtins:abs"]
        sleeper.finish(None, None)
        listening.result()


def test_requests_being_served_and_the_line_they_are_at() -> None:
    with gate, Stage() as stage:
        caller = stage.caller()
        caller.send(caller.call(f"{__name__}:wait_at_gate"))
        wait_until(lambda: look(stage.worker).serving)
        wait_until(lambda: "test_waits.py" in look(stage.worker).serving[0][3])
        (who, what, _seconds, where) = look(stage.worker).serving[0]
        assert (who, what) == ("peer1", f"{__name__}:wait_at_gate")
        assert where.endswith("in wait_at_gate")
        gate.release()
        assert caller.answer() is True
