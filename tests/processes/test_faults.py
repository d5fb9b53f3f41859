"""Processes that are killed, or stand still: whoever waits for them hears so, long before any
timeout of its own, and what they held is free again."""

from __future__ import annotations

import contextlib
import gc
import threading
import time

import pytest
import torch

from lockstitch import rpc
from lockstitch.errors import OwnerDiedError, PeerDiedError
from lockstitch.rref.service import ReferenceService
from lockstitch.runtime.worker import current_worker
from lockstitch.testing.processes import ProcessCluster
from lockstitch.testing.time_limits import ActiveTimeLimit

HEARTBEAT_SECONDS = 2.0
KEPT: list[object] = []


def wait_long() -> None:
    threading.Event().wait(600)


def error_of(to: str) -> str:
    """What a call that would last for ever ends in."""
    with pytest.raises(PeerDiedError) as caught:
        rpc.rpc_sync(to, wait_long, timeout=0)
    return str(caught.value)


def hold_value_of(owner: str) -> None:
    KEPT.append(rpc.remote(owner, torch.ones, (3,)))
    KEPT[-1].to_here()  # type: ignore[attr-defined]


def owned_values() -> int:
    return current_worker().service(ReferenceService).statistics().owned


def wait_until_nothing_is_owned() -> bool:
    time_limit = ActiveTimeLimit(60)
    while owned_values():
        if time_limit.is_over():
            return False
        threading.Event().wait(0.05)
    return True


def error_of_use() -> str:
    with pytest.raises(OwnerDiedError) as caught:
        KEPT[0].to_here(timeout=0)  # type: ignore[attr-defined]
    KEPT.clear()
    gc.collect()
    return str(caught.value)


def test_whoever_waits_for_one_who_is_stopped_or_killed_hears_so() -> None:
    with ProcessCluster(3, start_method="fork", heartbeat_timeout=HEARTBEAT_SECONDS) as cluster:
        cluster.run(2, hold_value_of, "worker1")
        waiting = [cluster.start(rank, error_of, "worker1") for rank in (0, 2)]
        cluster.stop(1)
        for task in waiting:
            error = task.result()
            assert "worker 'worker1' died: " in error
            assert "it has been silent for 2 s" in error
        assert "its owner 'worker1' died" in cluster.run(2, error_of_use)
        waiting = [cluster.start(0, error_of, "worker2")]
        cluster.kill(2)
        assert "worker 'worker2' died" in waiting[0].result()
        cluster.go_on(1)
        with pytest.raises(PeerDiedError):  # the others have done with it
            cluster.run(1, rpc.rpc_sync, "worker0", torch.add, (1, 2))


@pytest.mark.slow
def test_what_a_silent_user_held_is_free_again() -> None:
    with ProcessCluster(2, heartbeat_timeout=HEARTBEAT_SECONDS) as cluster:
        cluster.run(1, hold_value_of, "worker0")
        assert cluster.run(0, owned_values) == 1
        cluster.stop(1)
        try:
            assert cluster.run(0, wait_until_nothing_is_owned)
        finally:
            cluster.kill(1)  # the other has done with it, and would say so at the end


def shut_down(timeout: float) -> tuple[str, float]:
    started = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        rpc.shutdown(timeout=timeout)
    return str(caught.value), time.monotonic() - started


@pytest.mark.slow
def test_shutdown_keeps_to_its_timeout_although_a_worker_stands_still() -> None:
    with ProcessCluster(3) as cluster:
        cluster.run(0, rpc.rpc_sync, "worker1", torch.add, (1, 2))
        cluster.stop(1)
        tasks = [cluster.start(rank, shut_down, 2.0) for rank in (0, 2)]
        (error, seconds), (_, other_seconds) = [task.result() for task in tasks]
        cluster.kill(1)
        assert "worker1" in error
        assert max(seconds, other_seconds) < 10  # three, on a machine that does nothing else
        print(f"{seconds:.2f} s, {other_seconds:.2f} s: {error}")


def echo(value: object) -> object:
    return value


def flood(others: list[str]) -> None:
    """Calls the others without waiting for an answer, until nobody can be called any more."""
    kept: list[object] = []
    with contextlib.suppress(RuntimeError):
        while True:
            kept += [rpc.rpc_async(other, echo, (1,), timeout=0) for other in others]
            kept = kept[-4000:]


def shut_down_in_a_flood(others: list[str], timeout: float) -> tuple[str, float]:
    flooding = [threading.Thread(target=flood, args=(others,)) for _ in range(2)]
    for each in flooding:
        each.start()
    threading.Event().wait(0.2)
    started, error = time.monotonic(), ""
    try:
        rpc.shutdown(timeout=timeout)
    except RuntimeError as raised:
        error = str(raised)
    seconds = time.monotonic() - started
    rpc.shutdown(timeout=timeout)  # does nothing
    for each in flooding:
        each.join()
    return error, seconds


@pytest.mark.slow
def test_shutdown_keeps_to_its_timeout_although_calls_pour_in() -> None:
    with ProcessCluster(3, timeout_seconds=120) as cluster:
        tasks = [
            cluster.start(
                name, shut_down_in_a_flood, [each for each in cluster.names if each != name], 2.0
            )
            for name in cluster.names
        ]
        outcomes = [task.result() for task in tasks]
        print(outcomes)
        assert max(seconds for _, seconds in outcomes) < 30  # three, on an idle machine
        for name, (error, _) in zip(cluster.names, outcomes, strict=True):
            others = [each for each in cluster.names if each != name]
            assert not error or any(other in error for other in others), error
