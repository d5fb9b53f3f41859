from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from unittest.mock import Mock

from lockstitch.launch import process_loop
from lockstitch.launch.process import WorkerProcess
from lockstitch.launch.process_loop import ProcessLoop

WAITS = "import signal; print('ready', flush=True); signal.pause()"


class Loop(ProcessLoop):
    """Runs `program` as two workers; `look` is called when something happens."""

    def __init__(self, program, look=lambda _loop: None):
        super().__init__(0.1)
        self.program, self.look = program, look
        self.outputs, self.ends, self.signals = {}, {}, []

    def begin(self):
        for worker in range(2):
            self.follow(WorkerProcess(worker, [sys.executable, "-c", self.program], os.environ))

    def take_output(self, worker, stream, chunk):
        self.outputs[worker, stream] = self.outputs.get((worker, stream), b"") + chunk
        self.look(self)

    def take_end(self, process):
        self.ends[process.rank] = process.exit_code
        self.look(self)

    def obey(self, number):
        self.signals.append(number)
        self.look(self)

    def ready(self):
        return [worker for worker, _ in self.outputs]


def test_workers_are_followed_to_their_end():
    loop = Loop("import os, sys; print('out'); sys.stderr.write('err'); os._exit(3)")
    loop.run_loop()
    assert loop.ends == {0: 3, 1: 3}
    assert {loop.outputs[worker, "stderr"] for worker in range(2)} == {b"err"}
    assert not loop.is_busy()


def test_other_children_of_this_process_are_left_alone():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        loop = Loop("import os; os._exit(3)")
        loop.run_loop()
        assert loop.ends == {0: 3, 1: 3}
        assert other.poll() is None
        other.communicate(b"end\n")
    assert other.returncode == 0


def test_a_child_whose_end_somebody_else_has_noted_is_not_the_last(monkeypatch):
    children, gone = process_loop.child_pids, []
    monkeypatch.setattr(process_loop, "child_pids", lambda: [*gone, *children()])
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        loop = Loop("import os; os._exit(3)")
        begin = loop.begin
        loop.begin = lambda: [begin(), gone.append(os.getpid())]
        loop.run_loop()
        other.communicate(b"end\n")
    assert loop.ends == {0: 3, 1: 3}


def test_an_orphan_that_writes_for_ever_does_not_keep_a_worker_from_ending():
    loop = Loop(
        "import os, subprocess\nsubprocess.Popen(['yes'], start_new_session=True); os._exit(3)",
        lambda _loop: threading.Event().wait(0.01),  # so that more is there by the next look
    )
    loop.run_loop()
    assert loop.ends == {0: 3, 1: 3}


def test_all_get_the_signal_that_is_due():
    def look(loop):
        if loop.ready() == [0, 1] or loop.ready() == [1, 0]:
            loop.escalation.begin(signal.SIGTERM, 0)

    loop = Loop(WAITS, look)
    loop.run_loop()
    assert loop.ends == {0: -15, 1: -15}


def test_signals_to_this_process_are_handled_in_the_loop():
    def look(loop):
        if len(loop.ready()) == 2 and not loop.signals:
            os.kill(os.getpid(), signal.SIGHUP)
        if signal.SIGHUP in loop.signals:
            loop.escalation.begin(signal.SIGTERM, 0)

    loop = Loop(WAITS, look)
    loop.run_loop()
    assert signal.SIGHUP in loop.signals
    assert loop.ends == {0: -15, 1: -15}


def test_what_is_held_waits_and_comes_whole_later():
    def look(loop):
        if not loop.ends:
            loop.pipes.hold(True)
            loop.pipes.hold(False)

    size = 1 << 18
    loop = Loop(f"import sys; sys.stdout.write('x' * {size})", look)
    loop.run_loop()
    assert [len(loop.outputs[worker, "stdout"]) for worker in range(2)] == [size, size]


def test_workers_that_wait_for_a_reader_end_all_the_same():
    loop = Loop("import sys; sys.stdout.write('x' * (1 << 20))")
    held = []

    def look(loop):
        if not held:
            held.append(True)
            loop.pipes.hold(True)
            loop.escalation.begin(signal.SIGKILL, 0)

    loop.look = look
    loop.run_loop()
    assert loop.ends == {0: -9, 1: -9}


def test_orphans_are_ended_when_no_worker_is_left():
    loop = Loop(
        "import os, subprocess\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(child.pid, flush=True); os._exit(0)"
    )
    loop.run_loop()
    for worker in range(2):
        pid = int(loop.outputs[worker, "stdout"])
        assert not os.path.exists(f"/proc/{pid}")


def test_an_orphan_of_another_user_is_not_waited_for(monkeypatch):
    loop = Loop(
        "import os, subprocess\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(child.pid, flush=True); os._exit(0)"
    )
    kill = os.kill
    monkeypatch.setattr(process_loop.os, "kill", Mock(side_effect=PermissionError))
    loop.run_loop()
    for worker in range(2):
        pid = int(loop.outputs[worker, "stdout"])
        kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_the_ends_of_other_children_are_told_to_who_has_asked():
    loop = Loop("")
    told = []

    def begin():
        child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(5)"])

        def end(status):
            child.returncode = os.waitstatus_to_exitcode(status)
            told.append(child.returncode)

        loop.call_at_end(child.pid, end)

    loop.begin = begin
    loop.run_loop()
    assert told == [5]
