"""What peers send is served in its order; what makes no sense ends their connection, not ours."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest

from lockstitch.errors import RemoteProtocolError
from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.runtime.functions import QUICK_STREAK, KnownFunction
from lockstitch.wire.encodings import PicklingRegistry
from lockstitch.wire.messages import ChildNoted, Reply
from lockstitch.wire.pickling import pack
from tests.unit.runtime.stage import PATIENCE_SECONDS, Background, Caller, Stage, wait_until

HERE = __name__
gate = threading.Event()


def who_runs_this() -> str:
    return threading.current_thread().name


def sometimes_waits(waits: bool) -> bool:
    return not waits or gate.wait(PATIENCE_SECONDS)


def test_calls_are_answered() -> None:
    with Stage() as stage:
        caller = stage.caller()
        caller.send(caller.call("builtins:max", 2, 3), caller.call("builtins:abs", -1))
        assert sorted([caller.answer(), caller.answer()]) == [1, 3]


def test_function_is_named_once_and_then_by_number() -> None:
    with Stage() as stage:
        caller = stage.caller()
        caller.send(caller.call("builtins:abs", -1, function=5))
        assert caller.answer() == 1
        caller.send(caller.call("", -2, function=5))
        assert caller.answer() == 2
        caller.send(caller.call("builtins:len", "abc", function=5))  # the number is taken over
        assert caller.answer() == 3
        caller.send(caller.call("", "abcd", function=5))
        assert caller.answer() == 4


def test_numbers_of_one_caller_mean_nothing_to_another() -> None:
    with Stage(peers=2) as stage:
        one, other = stage.caller(1), stage.caller(2)
        one.send(one.call("builtins:abs", -1, function=5))
        other.send(other.call("builtins:len", "abc", function=5))
        assert (one.answer(), other.answer()) == (1, 3)


def test_quick_function_runs_on_the_reading_thread_until_it_is_slow_once() -> None:
    gate.clear()
    with Stage() as stage:
        caller = stage.caller()
        caller.send(caller.call(f"{HERE}:sometimes_waits", False, function=1))
        assert caller.answer() is True
        known = next(iter(stage.agent.peers._incoming))._functions[1]
        known.streak = QUICK_STREAK
        caller.send(caller.call("", True, function=1), caller.call("builtins:abs", -1))
        assert caller.answer() == 1  # it lost the reading right
        gate.set()
        assert caller.answer() is True
        wait_until(lambda: known.streak == 0)


@pytest.fixture
def abs_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    is_abs = property(lambda known: "abs" in known.qualified)
    monkeypatch.setattr(KnownFunction, "is_quick", is_abs)


@pytest.mark.usefixtures("abs_is_quick")
def test_answers_of_quick_functions_leave_together() -> None:
    with Stage() as stage:
        caller = stage.caller()
        caller.send(caller.call("builtins:abs", -1, function=1))
        assert caller.answer() == 1
        served = next(iter(stage.agent.peers._incoming))
        sends: list[int] = []
        send = served.connection.send
        served.connection.send = lambda buffers: (sends.append(1), send(buffers))[1]  # type: ignore[method-assign]
        caller.send(*(caller.call("", -number, function=1) for number in range(10)))
        assert [caller.answer() for _ in range(10)] == list(range(10))
        assert len(sends) < 10


@pytest.mark.usefixtures("abs_is_quick")
def test_no_answer_is_held_while_a_slow_function_runs() -> None:
    gate.clear()
    with Stage() as stage:
        caller = stage.caller()
        caller.send(caller.call("builtins:abs", -1, function=1))
        assert caller.answer() == 1
        slow = caller.call(f"{HERE}:sometimes_waits", True, function=2)
        caller.send(caller.call("", -5, function=1), slow, caller.call("", -6, function=1))
        assert sorted([caller.answer(), caller.answer()]) == [5, 6]
        gate.set()
        assert caller.answer() is True


@pytest.mark.usefixtures("abs_is_quick")
def test_caller_that_reads_no_answers_keeps_nobody_else_waiting() -> None:
    with Stage(peers=2) as stage:
        stage.network._capacity_bytes = 2000
        idle = stage.caller(1)
        (incoming,) = stage.agent.peers._incoming
        calls = [idle.call("builtins:abs", -1, function=1)]
        calls += [idle.call("", -number, function=1) for number in range(500)]
        sending = Background(idle.send, *calls)
        wait_until(
            lambda: not incoming.connection.has_room(0), "its answers are in each other's way"
        )
        other = stage.caller(2)
        other.send(other.call("builtins:abs", -2))
        assert other.answer() == 2
        assert sorted(idle.answer() for _ in calls) == [0, 1, *range(1, 500)]
        sending.result()


def test_control_messages_are_handled_in_order_by_one_thread() -> None:
    with Stage() as stage:
        handled: list[tuple[WorkerId, Any, str]] = []

        def handle(sender: WorkerId, message: ChildNoted) -> None:
            handled.append((sender, message.fork.counter, threading.current_thread().name))

        stage.agent.handle(ChildNoted, handle)
        caller = stage.caller()
        caller.send(*(ChildNoted((1, 0, number)) for number in range(50)))  # type: ignore[arg-type]
        wait_until(lambda: len(handled) == 50)
        assert [counter for _, counter, _ in handled] == list(range(50))
        assert {(sender, thread) for sender, _, thread in handled} == {
            (WorkerId(1, 0), handled[0][2])
        }


def test_failing_handler_is_reported_and_the_next_message_handled() -> None:
    with Stage() as stage:
        reports: list[BaseException] = []
        stage.agent.core.report = reports.append  # type: ignore[method-assign]
        stage.agent.thread_pool._report = reports.append
        stage.agent.handle(ChildNoted, lambda sender, message: 1 / 0)
        caller = stage.caller()
        caller.send(ChildNoted((1, 0, 0)), caller.call("builtins:abs", -1))  # type: ignore[arg-type]
        assert caller.answer() == 1
        assert [type(error) for error in reports] == [ZeroDivisionError]


@pytest.mark.parametrize(
    "nonsense",
    [
        Reply(1, None, pack(1, PicklingRegistry())[0]),
        ChildNoted((1, 0, 0)),  # type: ignore[arg-type] - nobody handles it
        Caller.call,
        b"\xff" * 100,
    ],
    ids=["reply", "unhandled", "unknown number", "bytes"],
)
def test_nonsense_ends_the_connection_and_is_reported(nonsense: Any) -> None:
    with Stage(peers=2) as stage:
        reports: list[BaseException] = []
        stage.agent.core.report = reports.append  # type: ignore[method-assign]
        innocent, guilty = stage.caller(1), stage.caller(2)
        if nonsense is Caller.call:
            guilty.send(guilty.call("", 1, function=99))
        elif isinstance(nonsense, bytes):
            guilty.send_bytes(nonsense)
        else:
            guilty.send(nonsense)
        assert guilty.receive() is None
        innocent.send(innocent.call("builtins:abs", -1))
        assert innocent.answer() == 1
        assert [type(error) for error in reports] == [RemoteProtocolError]
        assert stage.agent.peers.caller(WorkerId(2, 0)) is None


def test_message_with_a_field_of_the_wrong_type_does_not_wedge_the_connection() -> None:
    with Stage() as stage:
        stage.agent.core.report = lambda error: None  # type: ignore[method-assign]
        caller = stage.caller()
        caller.send(caller.call("builtins:abs", 1, timeout="soon"))  # type: ignore[arg-type]
        assert caller.receive() is None


# ---------------------------------------------------------------- greeting


def test_many_callers_at_once() -> None:
    with Stage(peers=30) as stage:
        callers = [stage.caller(rank) for rank in range(1, 31)]
        for caller in callers:
            caller.send(caller.call("builtins:abs", -1))
        assert [caller.answer() for caller in callers] == [1] * 30


def test_callers_wait_while_no_more_files_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    with Stage() as stage:
        listener = stage.agent._acceptors[0]._listener
        accept, tried = listener.accept, threading.Event()

        def none_left() -> None:
            tried.set()
            raise OSError(errno.EMFILE, "too many open files")

        monkeypatch.setattr(listener, "accept", none_left)
        caller = Caller(stage, WorkerInfo("peer1", 1))
        assert tried.wait(PATIENCE_SECONDS)
        monkeypatch.setattr(listener, "accept", accept)
        assert caller.receive_welcome() is not None
        assert any("too many open files" in each for each in stage.agent.statistics().failures)
