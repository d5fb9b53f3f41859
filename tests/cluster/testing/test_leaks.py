"""The leak check itself must be able to fail."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

from lockstitch import autograd, rpc
from lockstitch.memory.mapping import create
from lockstitch.testing import LocalCluster, no_leaks
from lockstitch.testing.leaks import Inventory


def test_nothing_new_is_reported_when_nothing_was_made() -> None:
    assert Inventory.take().wait_until_nothing_new(timeout_seconds=0) == []


def test_running_thread_is_named() -> None:
    before = Inventory.take()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="straggler")
    thread.start()
    try:
        assert before.wait_until_nothing_new(timeout_seconds=0) == ["thread 'straggler'"]
    finally:
        stop.set()
        thread.join()


def test_thread_about_to_end_is_waited_for() -> None:
    before = Inventory.take()
    stop = threading.Event()
    threading.Thread(target=stop.wait).start()
    threading.Timer(0.05, stop.set).start()
    assert before.wait_until_nothing_new(timeout_seconds=60) == []


def test_open_sockets_are_named() -> None:
    before = Inventory.take()
    one, other = socket.socketpair()
    with one, other:
        left = before.wait_until_nothing_new(timeout_seconds=0)
    assert len(left) == 2
    assert all("socket:" in name for name in left)


def test_child_process_is_named_with_its_command_and_so_is_a_zombie() -> None:
    before = Inventory.take()
    command = [sys.executable, "-c", "print('ready', flush=True); input()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes) as child:
        child.stdout.readline()
        running = before.wait_until_nothing_new(timeout_seconds=0)
        assert any(f"child process {child.pid}" in name and "input()" in name for name in running)
        child.kill()
        zombie = before.wait_until_nothing_new(timeout_seconds=0.5)
        assert any("a zombie" in name for name in zombie)


def test_shared_memory_is_named() -> None:
    before = Inventory.take()
    memory, descriptor = create(1 << 16)
    os.close(descriptor)
    (left,) = before.wait_until_nothing_new(timeout_seconds=0)
    assert left.startswith(f"shared memory at {memory.address:x}-")
    del memory


def test_worker_that_was_not_closed_is_named() -> None:
    cluster = LocalCluster(1)
    with pytest.raises(AssertionError, match="not closed: <Worker 'worker0'"), no_leaks(0.1):
        cluster.__enter__()
    cluster.__exit__()


def make() -> list[int]:
    return [1, 2]


def test_reference_that_others_hold_is_named_until_it_is_dropped() -> None:
    with LocalCluster(2) as cluster, cluster[0].active():
        kept = []

        def keep_one() -> None:
            with no_leaks(0.1):
                kept.append(rpc.remote("worker1", make))
                kept[0].to_here()

        with pytest.raises(AssertionError, match="Leaking RRef"):
            keep_one()
        kept.clear()
        with no_leaks():
            assert rpc.remote("worker1", make).to_here() == [1, 2]


def test_context_that_was_not_released_is_named() -> None:
    with LocalCluster(1) as cluster, cluster[0].active():
        context = autograd.context()
        with pytest.raises(AssertionError, match="not released by 'worker0'"), no_leaks(0.1):
            context.__enter__()
        context.__exit__(None, None, None)
        with no_leaks(), autograd.context():
            pass


def test_block_without_leaks_passes_and_errors_pass_through() -> None:
    with no_leaks(), LocalCluster(2) as cluster, cluster[0].active():
        assert rpc.rpc_sync("worker1", make) == [1, 2]
    with pytest.raises(KeyError), no_leaks():
        raise KeyError
