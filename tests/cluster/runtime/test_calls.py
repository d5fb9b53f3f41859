"""Calls between workers: values, functions, nesting, errors."""

from __future__ import annotations

import re
import threading
import traceback

import pytest
import torch

from lockstitch.errors import LocalProtocolError, RemoteError, SerializationError
from lockstitch.rpc.functions import async_execution
from lockstitch.runtime.agent import AgentOptions
from lockstitch.runtime.worker import current_worker
from lockstitch.testing.cluster import LocalCluster
from lockstitch.wire.frames import FrameLimits
from tests.cluster.runtime.programs import (
    Gate,
    add,
    apply,
    call,
    call_async,
    call_self,
    defer,
    defer_nothing,
    defer_to,
    descend,
    fail,
    fail_further_on,
    here,
    leave_the_process,
    length,
    of_size,
    unsendable,
    unsendable_because_of,
    wait_at_gate,
)
from tests.unit.runtime.stage import Background, wait_until

SOMEBODY = ["worker1", "worker0"]  # another, and oneself


@pytest.mark.parametrize("to", SOMEBODY)
def test_function_runs_at_the_worker_on_a_thread_of_its_pool(
    cluster: LocalCluster, to: str
) -> None:
    name, thread = call(cluster[0], to, here)
    assert name == to
    assert thread.startswith(to)


@pytest.mark.parametrize("to", SOMEBODY)
def test_arguments_and_keywords(cluster: LocalCluster, to: str) -> None:
    me = cluster[0]
    assert call(me, to, add, 1) == 11
    assert call(me, to, add, 1, 2, kwargs={"scale": 3}) == 9
    assert call(me, to, add, kwargs={"x": 1, "y": 1}) == 2
    assert call(me, to, add, torch.ones(2), torch.ones(2)).tolist() == [2, 2]
    assert call(me, to, add, "a", "b") == "ab"
    assert call(me, to, print) is None


@pytest.mark.parametrize("to", SOMEBODY)
def test_builtins_operators_methods_classes_and_closures(cluster: LocalCluster, to: str) -> None:
    me, factor = cluster[0], 3
    assert call(me, to, min, 3, 2) == 2
    assert call(me, to, torch.add, torch.ones(1), 1).item() == 2
    assert call(me, to, "text".upper) == "TEXT"
    assert call(me, to, torch.nn.Linear, 2, 3).weight.shape == (3, 2)
    assert call(me, to, torch.Tensor.sum, torch.ones(3)).item() == 3
    assert call(me, to, lambda x: factor * x, 5) == 15
    assert call(me, to, apply, lambda x: x + factor, 1) == 4


@pytest.mark.parametrize("to", SOMEBODY)
def test_values_are_copied_on_the_way(cluster: LocalCluster, to: str) -> None:
    tensor = torch.zeros(3)
    arrived = call(cluster[0], to, apply, torch.Tensor.add_, tensor, 1)
    assert arrived.tolist() == [1, 1, 1]
    assert tensor.tolist() == [0, 0, 0]


@pytest.mark.parametrize("size", [1 << 10, 1 << 20, 1 << 24])
def test_values_of_any_size_go_both_ways(cluster: LocalCluster, size: int) -> None:
    tensor = torch.arange(size // 4, dtype=torch.int32)
    assert torch.equal(call(cluster[0], 1, add, tensor, 1), tensor + 1)


def test_function_gets_quick_and_is_run_inline_then_blocks(cluster: LocalCluster) -> None:
    for _ in range(50):
        call(cluster[0], 1, apply, len, "abc")
    blocked = Background(call, cluster[0], 1, apply, wait_at_gate, 5)
    Gate.await_entries()
    assert call(cluster[0], 1, apply, len, "abc") == 3
    Gate.opened.set()
    assert blocked.result() == 5


# ---------------------------------------------------------------- asynchronously


@pytest.mark.parametrize("to", SOMEBODY)
def test_futures(cluster: LocalCluster, to: str) -> None:
    futures = [call_async(cluster[0], to, add, torch.full((n,), 1.0), n) for n in range(100)]
    assert all(isinstance(future, torch.futures.Future) for future in futures)
    for number, value in enumerate(torch.futures.wait_all(futures)):
        assert torch.equal(value, torch.full((number,), 1.0 + number))


@pytest.mark.parametrize("to", SOMEBODY)
def test_failed_future_raises_each_time(cluster: LocalCluster, to: str) -> None:
    future = call_async(cluster[0], to, fail, KeyError("k"))
    for _ in range(2):
        with pytest.raises(KeyError, match="k"):
            future.wait()
    with pytest.raises(KeyError):
        torch.futures.wait_all([call_async(cluster[0], to, fail, KeyError("k"))])


@pytest.mark.parametrize("to", SOMEBODY)
def test_then_chains(cluster: LocalCluster, to: str) -> None:
    chained = call_async(cluster[0], to, add, 1, 1).then(lambda done: done.wait() * 2)
    assert chained.wait() == 4


def test_thousand_calls_in_flight(cluster: LocalCluster) -> None:
    futures = [call_async(cluster[0], 1, add, n, 0) for n in range(1000)]
    assert [future.wait() for future in futures] == list(range(1000))
    # Whoever has read the last answer, perhaps another thread, strikes it out a moment later.
    wait_until(lambda: cluster[0].agent.outstanding == 0)


def test_callback_may_call_again(cluster: LocalCluster) -> None:
    me = cluster[0]
    chained = call_async(me, 1, add, 1, 1).then(lambda done: call(me, 1, add, done.wait(), 1))
    assert chained.wait() == 3


# ---------------------------------------------------------------- nesting and many threads


def test_calls_nested_to_depth_50_with_two_threads() -> None:
    with LocalCluster(3, options=AgentOptions(num_threads=2)) as cluster:
        visited = call(cluster[0], 1, descend, 50)
        assert visited == [f"worker{(n + 1) % 3}" for n in range(51)]
        descents = [Background(call, cluster[0], 1, descend, 20) for _ in range(6)]
        for descent in descents:
            assert len(descent.result()) == 21


def test_calls_to_oneself_nest_as_well() -> None:
    with LocalCluster(1, options=AgentOptions(num_threads=1)) as cluster:
        assert call(cluster[0], 0, call_self, 30) == 30


def test_twenty_threads_call_at_once(cluster: LocalCluster) -> None:
    def talk(number: int) -> None:
        me, other = cluster[number % 2], (number + 1) % 2
        for turn in range(25):
            assert call(me, other, add, number, turn) == number + turn
            tensor = torch.full((turn,), float(number))
            assert torch.equal(call(me, other, add, tensor, 0), tensor)

    for talker in [Background(talk, number) for number in range(20)]:
        talker.result()


def test_first_uses_of_functions_by_many_threads_at_once(cluster: LocalCluster) -> None:
    """Each definition must arrive before its number is used, and none be taken for another."""
    functions = [add, apply, descend, len, abs, max, min, sum, sorted, repr, torch.add, torch.zeros]
    start = threading.Barrier(8)

    def use() -> None:
        start.wait(60)
        for number in range(len(functions)):
            assert call(cluster[0], 1, repr, number) == repr(number)
            assert call(cluster[0], 1, functions[4], -number) == number
            assert call(cluster[0], 1, sorted, [2, number]) == sorted([2, number])
            assert call(cluster[0], 1, max, 2, number) == max(2, number)

    for user in [Background(use) for _ in range(8)]:
        user.result()


def test_no_more_than_num_threads_functions_run_at_once() -> None:
    with LocalCluster(2, options=AgentOptions(num_threads=3)) as cluster:
        futures = [call_async(cluster[0], 1, wait_at_gate, n) for n in range(10)]
        Gate.await_entries(3)
        wait_until(lambda: cluster[1].agent.thread_pool.backlog == 7)
        assert Gate.count == 3
        Gate.opened.set()
        assert [future.wait() for future in futures] == list(range(10))


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("to", SOMEBODY)
@pytest.mark.parametrize("error", [ValueError("v"), KeyError("k"), AssertionError("a")], ids=repr)
def test_exception_of_the_function_keeps_its_type(
    cluster: LocalCluster, to: str, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error)) as caught:
        call(cluster[0], to, fail, error)
    assert str(caught.value) == str(error)
    shown = capsys.readouterr().err
    assert f"On worker '{to}'" in shown
    for text in (str(caught.value.__cause__), shown):  # they begin where the user's code does
        assert re.search(r"most recent call last\):\n +File .*, in fail\n", text)


def test_exception_keeps_its_type_over_two_hops(cluster: LocalCluster) -> None:
    with pytest.raises(KeyError, match="far"):
        call(cluster[0], 1, fail_further_on, "worker0", KeyError("far"))


@pytest.mark.parametrize("to", SOMEBODY)
def test_exit_and_interrupt_of_the_function_do_not_end_the_caller(
    cluster: LocalCluster, to: str
) -> None:
    with pytest.raises(RemoteError, match="SystemExit: 3"):
        call(cluster[0], to, leave_the_process)
    with pytest.raises(RemoteError, match="KeyboardInterrupt"):
        call(cluster[0], to, fail, KeyboardInterrupt())
    assert call(cluster[0], to, add, 1) == 11


@pytest.mark.parametrize("to", SOMEBODY)
def test_function_that_cannot_be_found(
    cluster: LocalCluster, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> None: ...

    absent.__module__, absent.__qualname__ = "tests.cluster.runtime.programs", "absent"
    monkeypatch.setattr("tests.cluster.runtime.programs.absent", absent, raising=False)
    cluster[0].agent.peers.channel(cluster[0].agent.resolve(to).worker)
    channel = cluster[0].agent.peers.channel(cluster[0].agent.resolve(to).worker)
    number, definition = channel.functions.define(absent)
    assert definition is not None
    monkeypatch.delattr("tests.cluster.runtime.programs.absent")
    monkeypatch.setattr(channel.functions, "define", lambda _function: (number, definition))
    with pytest.raises(SerializationError, match="RPC pickler does not serialize") as caught:
        call(cluster[0], to, absent)
    assert "in resolve" in str(
        caught.value.__cause__
    )  # there is no code of the user's to begin with


@pytest.mark.parametrize("to", SOMEBODY)
def test_result_that_cannot_be_sent(cluster: LocalCluster, to: str) -> None:
    with pytest.raises(SerializationError, match="cannot send"):
        call(cluster[0], to, unsendable)
    with pytest.raises(RemoteError, match="SystemExit: even this"):
        call(cluster[0], to, unsendable_because_of, SystemExit("even this"))
    with pytest.raises(ConnectionResetError, match="no reply was sent"):
        call(cluster[0], to, unsendable_because_of, ConnectionResetError("no reply was sent"))
    with pytest.raises(RuntimeError, match=r"Can not pickle torch\.futures\.Future"):
        call(cluster[0], to, torch.futures.Future)
    assert call(cluster[0], to, add, 1) == 11


@pytest.mark.parametrize("to", SOMEBODY)
def test_argument_that_cannot_be_sent(cluster: LocalCluster, to: str) -> None:
    with pytest.raises(SerializationError, match="cannot send"):
        call(cluster[0], to, add, threading.Lock())
    with pytest.raises(SerializationError, match="cannot send"):
        call_async(cluster[0], to, add, threading.Lock())
    assert cluster[0].agent.outstanding == 0
    assert call(cluster[0], to, add, 1) == 11


@pytest.mark.parametrize("to", SOMEBODY)
def test_messages_beyond_the_limits_fail_alone(to: str) -> None:
    limits = FrameLimits(inline_bytes=1 << 20, bulk_bytes=1 << 20)
    with LocalCluster(2, options=AgentOptions(limits=limits)) as cluster:
        with pytest.raises(LocalProtocolError, match="send less at a time"):
            call(cluster[0], to, length, bytes(2 << 20))
        with pytest.raises(LocalProtocolError, match="send less at a time"):
            call(cluster[0], to, of_size, 2 << 20)
        assert call(cluster[0], to, length, bytes(1000)) == 1000
        assert cluster[0].agent.outstanding == 0


@pytest.mark.parametrize("to", SOMEBODY)
def test_error_too_long_to_be_sent_still_ends_the_call(to: str) -> None:
    limits = FrameLimits(inline_bytes=1 << 18, bulk_bytes=1 << 18)
    with (
        LocalCluster(2, options=AgentOptions(limits=limits)) as cluster,
        pytest.raises(RemoteError, match="was ValueError: xxx"),
    ):
        call(cluster[0], to, fail, ValueError("x" * 100_000), timeout=5)


# ---------------------------------------------------------------- async_execution


@pytest.mark.parametrize("to", SOMEBODY)
def test_function_that_returns_a_future_holds_no_thread(to: str) -> None:
    with LocalCluster(2, options=AgentOptions(num_threads=1)) as cluster:
        futures = [call_async(cluster[0], to, defer) for _ in range(10)]
        Gate.await_entries(10)
        assert call(cluster[0], to, add, 1) == 11
        for number, open_one in enumerate(Gate.futures):
            open_one.set_result(number)
        assert sorted(future.wait() for future in futures) == list(range(10))


@pytest.mark.parametrize("to", SOMEBODY)
def test_deferred_error_keeps_its_type(cluster: LocalCluster, to: str) -> None:
    future = call_async(cluster[0], to, defer)
    Gate.await_entries()
    Gate.futures[0].set_exception(KeyError("later"))
    with pytest.raises(KeyError, match="later"):
        future.wait()


@pytest.mark.parametrize("to", SOMEBODY)
def test_what_a_callback_of_a_deferred_function_raises_keeps_its_type(
    cluster: LocalCluster, to: str
) -> None:
    with pytest.raises(KeyError, match="in the callback"):
        call(cluster[0], to, defer_and_fail, "worker1")


@async_execution
def defer_and_fail(to: str) -> torch.futures.Future[int]:
    def fail(_done: object) -> int:
        raise KeyError("in the callback")

    agent = current_worker().agent
    return agent.outgoing.call_async(agent.resolve(to).worker, add, (1, 2)).then(fail)


def test_deferred_function_that_returns_no_future(cluster: LocalCluster) -> None:
    with pytest.raises(RuntimeError, match=r"must return a torch\.futures\.Future object"):
        call(cluster[0], 1, defer_nothing)


def test_deferred_to_a_third_worker() -> None:
    with LocalCluster(3, options=AgentOptions(num_threads=1)) as cluster:
        assert call(cluster[0], 1, defer_to, "worker2") == 3
        assert call(cluster[0], 1, defer_to, "worker1") == 3


class Keeper:
    def __init__(self) -> None:
        self.parts = {"lock": threading.Lock()}


@pytest.mark.parametrize("to", SOMEBODY)
def test_what_cannot_be_sent_is_named_with_the_function_and_the_worker(
    cluster: LocalCluster, to: str
) -> None:
    for send in (call, call_async):
        with pytest.raises(SerializationError) as caught:
            send(cluster[0], to, add, Keeper())
        text = str(caught.value)
        assert f"cannot send a call of add to worker '{to}': cannot pickle" in text
        assert re.search(r"args\[0\]\.parts\['lock'\] is <unlocked", text)
        assert "RRef" in text
        assert caught.value.__cause__ is None
    with pytest.raises(SerializationError) as caught:
        call(cluster[0], to, unsendable)
    text = "".join(traceback.format_exception(caught.value))
    assert ":unsendable to worker 'worker0': cannot pickle" in text
    assert text.count("cannot pickle") == 1


def test_an_error_in_a_users_getstate_shows_where(cluster: LocalCluster) -> None:
    with pytest.raises(SerializationError, match="cannot send a call of add") as caught:
        call(cluster[0], "worker1", add, unsendable_because_of(TypeError("not today")))
    assert "in __reduce__" in "".join(traceback.format_exception(caught.value))


def test_a_timeout_that_is_no_number_is_refused(cluster: LocalCluster) -> None:
    with pytest.raises(TypeError, match="timeout is a number of seconds, not '3'"):
        call(cluster[0], "worker1", add, 1, timeout="3")


def notes_of(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


@pytest.mark.parametrize("to", SOMEBODY)
def test_what_a_users_own_pickling_raises_stays_and_is_said_where(
    cluster: LocalCluster, to: str
) -> None:
    for send in (call, call_async):
        with pytest.raises(ValueError, match="not today") as caught:
            send(cluster[0], to, add, 1, [unsendable_because_of(ValueError("not today"))])
        *_, note = notes_of(caught.value)  # Python 3.14 says before that where in the list it was
        assert re.match(rf"cannot send a call of add to worker '{to}': args\[1\]\[0\] is <", note)


def test_what_a_results_pickling_raises_stays_and_is_said_where(cluster: LocalCluster) -> None:
    with pytest.raises(ValueError, match="not today") as caught:
        call(cluster[0], "worker1", unsendable_because_of, ValueError("not today"))
    sending, raised = notes_of(caught.value)
    assert "the result of tests.cluster.runtime.programs:unsendable_because_of" in sending
    assert "to worker 'worker0': value is <" in sending
    assert raised == "raised on worker 'worker1'"


class Unreadable:
    """Can be sent, but not be read."""

    def __reduce__(self) -> tuple[object, ...]:
        return float, ("nonsense",)


def test_what_reading_raises_is_said_to_come_from_there(cluster: LocalCluster) -> None:
    with pytest.raises(ValueError, match="could not convert") as caught:
        call(cluster[0], "worker1", add, Unreadable())
    assert notes_of(caught.value) == [
        "on reading a call of tests.cluster.runtime.programs:add, which has not run",
        "raised on worker 'worker1'",
    ]
    for send in (call, lambda *args: call_async(*args).wait()):
        with pytest.raises(ValueError, match="could not convert") as caught:
            send(cluster[0], "worker1", Unreadable)
        (note,) = notes_of(caught.value)
        assert note.startswith("on reading what worker 'worker1' has answered to a call of ")
        assert note.endswith("Unreadable")


def test_a_call_that_does_not_begin_shows_no_frames_of_ours(cluster: LocalCluster) -> None:
    for function, args in [(add, (1, 2, 3, 4)), (no_future, ()), (torch.relu, ("x",))]:
        with pytest.raises((TypeError, RuntimeError)) as caught:
            call(cluster[0], "worker1", function, *args)
        shown = "".join(traceback.format_exception(caught.value.__cause__))
        assert ("invocation.py" in shown) == (function is no_future)


@async_execution
def no_future() -> int:
    return 3


def test_a_function_that_gives_no_future_is_named(cluster: LocalCluster) -> None:
    with pytest.raises(RuntimeError, match=r"got 3 of type <class 'int'> from .*:no_future"):
        call(cluster[0], "worker1", no_future)
