"""How a forked slot's end is told, and that it is ended once. Real ones: tests/parity."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from lockstitch.attach.values import OtherWait, Question
from lockstitch.nn.slots import fork
from lockstitch.nn.slots.answers import BACKWARD
from lockstitch.nn.slots.fork import ForkSlot, _awaited, _ChildProcess, _description_of


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
    monkeypatch.setattr(fork, "_crash_report", lambda descriptor: f"\nwords in {descriptor}")
    monkeypatch.setattr(fork.os, "close", lambda descriptor: None)
    return system


def test_it_is_told_which_slots_are_waited_for():
    class Answers:
        def __init__(self):
            self.comes = threading.Event()

        def is_expected(self, _key):
            return True

        def wait(self, _key):
            self.comes.wait()
            raise KeyError

    class Slot:
        name, _answers = "slot 1 (process 7)", Answers()

    def wait():
        with pytest.raises(KeyError):
            ForkSlot._wait(Slot, (BACKWARD, 3))

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not (told := _awaited(Question())):
        pass
    Slot._answers.comes.set()
    waiting.join()
    assert told == [OtherWait("waits for backward in slot 1 (process 7)", (Slot.name,))]
    assert _awaited(Question()) == []


@pytest.mark.parametrize(
    ("status", "description"),
    [
        (signal.SIGSEGV.value, "its process was ended by signal 11 (SIGSEGV)"),
        (3 << 8, "its process ended with exit code 3"),
    ],
)
def test_an_end_is_told_by_its_signal_or_exit_code(status, description):
    assert os.WIFSIGNALED(status) == ("signal" in description)
    assert _description_of(status) == description


def test_a_process_is_ended_once_and_its_crash_report_is_told(system):
    connection = Connection()
    process = _ChildProcess(4711, connection, [5, 6])
    assert process.is_running
    process.end()
    process.end()
    assert not process.is_running
    assert system.killed == [(4711, signal.SIGKILL)]
    assert connection.closed == 1
    assert process.end_described == "its process was ended by signal 9 (SIGKILL)\nwords in 6"


def test_a_child_of_the_program_leaves_its_parents_slot_alone(system):
    process = _ChildProcess(4711, Connection(), [5, 6])
    process.abandon()
    process.end()
    assert system.killed == []
    assert "belongs to the process that this one was forked from" in process.end_described
