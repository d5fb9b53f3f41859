"""A hang explained: what every worker of a cluster waits for, and a signal that prints it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch

import lockstitch
from lockstitch import rpc
from lockstitch.errors import NotInitializedError, RpcTimeoutError
from lockstitch.inquiry import INQUIRY
from lockstitch.observe.wait_reports import WaitReports
from lockstitch.runtime.agent import AgentOptions
from lockstitch.testing.cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstitch.runtime.worker import Worker

_entered = threading.Semaphore(0)
_leave = threading.Event()


def _wait_for_the_test() -> int:
    _entered.release()
    _leave.wait(60)
    return 1


def _ask_the_next() -> int:
    return rpc.rpc_sync("worker2", _wait_for_the_test)


class _Patient:
    def rest(self) -> int:
        return _wait_for_the_test()


@rpc.functions.async_execution
def _promise() -> torch.futures.Future[int]:
    future: torch.futures.Future[int] = torch.futures.Future()
    threading.Thread(target=lambda: (_leave.wait(60), future.set_result(2))).start()
    _entered.release()
    return future


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    _leave.clear()
    # One thread for functions: all that a worker has is taken while it serves one call.
    with LocalCluster(3, options=AgentOptions(num_threads=1)) as cluster:
        yield cluster
        _leave.set()


def _explain(worker: Worker) -> str:
    with worker.active():
        return lockstitch.explain_waits()


def test_idle_workers_wait_for_nothing(cluster: LocalCluster) -> None:
    assert _explain(cluster["worker0"]) == "\n".join(
        f"worker{rank}: waits for nothing" for rank in range(3)
    )


def test_a_chain_of_calls_is_told_from_its_beginning_to_the_line_where_it_stands(
    cluster: LocalCluster,
) -> None:
    with cluster["worker0"].active():
        answer = rpc.rpc_async("worker1", _ask_the_next)
        assert _entered.acquire(timeout=60)
        text = lockstitch.explain_waits()
        _leave.set()
        assert answer.wait() == 1
    first, second, third = text.split("\nworker")
    assert "_ask_the_next on worker1" in first
    assert "for worker0" in second
    assert "_wait_for_the_test on worker2" in second
    assert "for worker1" in third
    assert "in _wait_for_the_test" in third


def test_a_parked_request_says_that_it_is_parked(cluster: LocalCluster) -> None:
    with cluster["worker0"].active():
        answers = [rpc.rpc_async("worker1", _promise) for _ in range(2)]
        for _ in answers:
            assert _entered.acquire(timeout=60)
        text = lockstitch.explain_waits()
        _leave.set()
        assert [each.wait() for each in answers] == [2, 2]
    (line,) = [each for each in text.splitlines() if "it waits for a future" in each]
    assert "(2 times)" in line  # once for both


def test_a_worker_that_does_not_answer_is_named(cluster: LocalCluster) -> None:
    with cluster.partition("worker0", "worker2"):
        answers, silent = cluster["worker0"].service(WaitReports).ask(0.2)
    assert [each.name for each in answers] == ["worker0", "worker1"]
    assert silent == ["worker2"]


def test_who_is_in_no_group_is_told_so() -> None:
    with pytest.raises(NotInitializedError):
        lockstitch.explain_waits()


def test_a_rank_that_is_no_worker_tells_of_its_reductions() -> None:
    told = ["rank 0 of 2: allreduce 'w', submitted 1.0 s ago: rank 1 has not submitted it"]
    INQUIRY.waits.append(lambda: told)
    try:
        state, line, where = lockstitch.explain_waits().split("\n")
        told = []
        idle, _ = lockstitch.explain_waits().split("\n")
    finally:
        INQUIRY.waits.pop()
    assert state.endswith(": waits")
    assert "rank 1 has not submitted it" in line
    assert "its main thread is at" in where
    assert idle.endswith(": waits for nothing")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_whose_time_is_over_says_what_the_callee_does(
    cluster: LocalCluster, is_async: bool
) -> None:
    with cluster["worker0"].active():
        wait = rpc.rpc_async("worker1", _wait_for_the_test, timeout=0.3).wait if is_async else None
        with pytest.raises(RpcTimeoutError) as caught:
            wait() if wait else rpc.rpc_sync("worker1", _wait_for_the_test, timeout=0.3)
    assert "worker 'worker1' did not answer in time; it has been running " in str(caught.value)
    assert str(caught.value).endswith("in _wait_for_the_test: _leave.wait(60)")


def test_a_method_whose_time_is_over_is_named(cluster: LocalCluster) -> None:
    with cluster["worker0"].active(), pytest.raises(RpcTimeoutError) as caught:
        rpc.remote("worker1", _Patient).rpc_sync(timeout=0.3).rest()
    assert "it has been running the method rest for" in str(caught.value)


def test_a_call_that_has_not_begun_in_time_says_what_keeps_the_callee(
    cluster: LocalCluster,
) -> None:
    with cluster["worker2"].active():
        before = rpc.rpc_async("worker1", _wait_for_the_test)
        assert _entered.acquire(timeout=60)
    with cluster["worker0"].active(), pytest.raises(RpcTimeoutError) as caught:
        rpc.rpc_sync("worker1", max, (1, 2), timeout=0.3)
    assert "it does not run builtins:max now; it serves 1 others" in str(caught.value)
    _leave.set()
    assert before.wait() == 1
