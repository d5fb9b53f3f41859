"""How a forked slot's end is told, and that it is ended once. Real ones: tests/parity."""

from __future__ import annotations

import os
import signal

import pytest

from lockstitch.nn.slots import fork
from lockstitch.nn.slots.fork import _Life, _story


class Connection:
    def __init__(self):
        self.closed = 0

    def close(self):
        self.closed += 1


class System:
    """Notes what would happen to processes."""

    def __init__(self):
        self.killed = []

    def kill(self, pid, number):
        self.killed.append((pid, number))

    def waitpid(self, pid, _options):
        return pid, signal.SIGKILL.value


@pytest.fixture
def system(monkeypatch):
    system = System()
    monkeypatch.setattr(fork.os, "kill", system.kill)
    monkeypatch.setattr(fork.os, "waitpid", system.waitpid)
    monkeypatch.setattr(fork, "_last_words", lambda descriptor: f"\nwords in {descriptor}")
    monkeypatch.setattr(fork.os, "close", lambda descriptor: None)
    return system


@pytest.mark.parametrize(
    ("status", "story"),
    [
        (signal.SIGSEGV.value, "its process was ended by signal 11 (SIGSEGV)"),
        (3 << 8, "its process ended with exit code 3"),
    ],
)
def test_an_end_is_told_by_its_signal_or_exit_code(status, story):
    assert os.WIFSIGNALED(status) == ("signal" in story)
    assert _story(status) == story


def test_a_process_is_ended_once_and_its_last_words_are_told(system):
    connection = Connection()
    life = _Life(4711, connection, [5, 6])
    assert life.is_running
    life.end()
    life.end()
    assert not life.is_running
    assert system.killed == [(4711, signal.SIGKILL)]
    assert connection.closed == 1
    assert life.story == "its process was ended by signal 9 (SIGKILL)\nwords in 6"


def test_a_child_of_the_program_leaves_its_parents_slot_alone(system):
    life = _Life(4711, Connection(), [5, 6])
    life.abandon()
    life.end()
    assert system.killed == []
    assert "belongs to the process that this one was forked from" in life.story
