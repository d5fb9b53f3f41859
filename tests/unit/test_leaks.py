"""The leak check itself must be able to fail."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

from tests.leaks import Inventory


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
    assert before.wait_until_nothing_new(timeout_seconds=10) == []


def test_open_sockets_are_named() -> None:
    before = Inventory.take()
    one, other = socket.socketpair()
    with one, other:
        left = before.wait_until_nothing_new(timeout_seconds=0)
    assert len(left) == 2
    assert all("socket:" in name for name in left)


def test_child_process_is_named_with_its_command_and_so_is_a_zombie() -> None:
    before = Inventory.take()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        running = before.wait_until_nothing_new(timeout_seconds=0)
        assert any(f"child process {child.pid}" in name and "input()" in name for name in running)
        child.kill()
        zombie = before.wait_until_nothing_new(timeout_seconds=0.5)
        assert any("a zombie" in name for name in zombie)
