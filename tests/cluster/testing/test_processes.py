"""Processes run what they are told, tell what went wrong, and are gone when the block is over."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch import rpc
from lockstitch.errors import PeerDiedError, RemoteError
from lockstitch.testing import ProcessCluster, no_leaks

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def shared() -> Iterator[ProcessCluster]:
    with ProcessCluster(2, start_method="fork", num_worker_threads=3) as cluster:
        yield cluster


def who() -> tuple[str, int]:
    return rpc.get_worker_info().name, os.getpid()


def fail(error: BaseException) -> None:
    raise error


def wait_for_ever() -> None:
    threading.Event().wait()


def test_functions_run_in_the_processes(shared: ProcessCluster) -> None:
    assert shared.run("worker0", who) == ("worker0", shared.pid(0))
    assert shared.run(1, who) == ("worker1", shared.pid("worker1"))
    assert shared.run_all(who) == [(name, shared.pid(name)) for name in shared]
    assert len({os.getpid(), shared.pid(0), shared.pid(1)}) == 3
    assert repr(shared) == "<ProcessCluster of 2 · 2 alive>"


def test_values_closures_and_calls_between_the_processes(shared: ProcessCluster) -> None:
    tensor = torch.randn(1000)
    assert torch.equal(shared.run(0, lambda: tensor * 2), tensor * 2)
    assert shared.run(0, rpc.rpc_sync, "worker1", who) == ("worker1", shared.pid(1))


def test_exceptions_arrive_as_themselves(shared: ProcessCluster) -> None:
    with pytest.raises(KeyError, match="k"):
        shared.run(0, fail, KeyError("k"))
    with pytest.raises(RemoteError, match="SystemExit"):
        shared.run(0, fail, SystemExit(3))
    with pytest.raises(TypeError, match="cannot pickle"):
        shared.run(0, threading.Lock)
    assert shared.run(0, who)[0] == "worker0"


def test_worker_runs_one_function_at_a_time(shared: ProcessCluster) -> None:
    task = shared.start(0, who)
    with pytest.raises(RuntimeError, match="worker0 is busy"):
        shared.start(0, who)
    assert task.result()[0] == "worker0"


def test_function_that_takes_too_long_can_be_interrupted(shared: ProcessCluster) -> None:
    task = shared.start(0, wait_for_ever)
    with pytest.raises(TimeoutError, match="worker0 is not done within"):
        task.result(timeout_seconds=0.2)
    shared.interrupt(0)
    with pytest.raises(RemoteError, match="KeyboardInterrupt"):
        task.result()
    assert shared.run(0, who)[0] == "worker0"


def test_interrupt_of_an_idle_worker_is_ignored(shared: ProcessCluster) -> None:
    shared.interrupt(0)
    assert shared.run(0, who)[0] == "worker0"


def test_killed_and_crashed_workers() -> None:
    with ProcessCluster(["a", "b", "c"], start_method="fork") as cluster:
        cluster.kill("b")
        with pytest.raises(PeerDiedError, match=f"'b' died.*exit code {-signal.SIGKILL}"):
            cluster.run("b", who)
        with pytest.raises(PeerDiedError, match="'c' died.*exit code 7"):
            cluster.run("c", os._exit, 7)
        assert cluster.run("a", who)[0] == "a"


def test_crash_that_nobody_asked_about_is_raised_in_the_end() -> None:
    with (
        pytest.raises(PeerDiedError, match="exit code 7"),
        ProcessCluster(2, start_method="fork") as cluster,
    ):
        cluster.start(1, os._exit, 7)


def test_failed_start_is_raised_and_leaves_nothing() -> None:
    with (
        no_leaks(),
        pytest.raises(RuntimeError, match="Worker name must match"),
        ProcessCluster(["fine", "not fine"], start_method="fork"),
    ):
        pass


def test_failed_block_leaves_nothing_although_workers_are_busy() -> None:
    def block() -> None:
        with ProcessCluster(2, start_method="fork") as cluster:
            cluster.start(0, wait_for_ever)
            raise KeyError

    with no_leaks(), pytest.raises(KeyError):
        block()


@pytest.mark.slow
def test_processes_that_begin_afresh() -> None:
    with no_leaks(), ProcessCluster(2) as cluster:
        assert cluster.run(0, rpc.rpc_sync, "worker1", who) == ("worker1", cluster.pid(1))
