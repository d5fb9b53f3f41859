"""An agent of this machine, and the launcher that a test plays."""

from __future__ import annotations

import array
import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from lockstitch import __version__
from lockstitch.launch.agent.messages import (
    FROM_AGENT,
    HELLO,
    HELLO_CODEC,
    TO_AGENT,
    Begin,
    Closing,
    Ended,
    NotStarted,
    Output,
    Remark,
    Signal,
    Start,
    Started,
)
from lockstitch.trust import Secret

SECONDS = 60
SECRET = Secret.make()


class Agent:
    """Its workers run `program`."""

    def __init__(self, program, silence=0.0, command=(), **environment):
        bare = {name: it for name, it in os.environ.items() if name != "OMP_NUM_THREADS"}
        begin = "from lockstitch.launch.agent.host_agent import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", begin],
            env={**bare, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        hello = self.process.stdout.readline()
        assert hello.startswith(HELLO)
        self.hello = HELLO_CODEC.decode(hello[len(HELLO) :])
        command = command or (sys.executable, "-c", program)
        self.say(Begin(tuple(command), SECRET.text(), 1.0, silence))

    def say(self, message):
        self.write(TO_AGENT.encode(message) + b"\n")

    def write(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def start(self, worker, workers_here=1, **variables):
        self.say(Start(worker, tuple(variables.items()), workers_here))

    def hear(self):
        """The next message that is no output."""
        while isinstance(message := self.next(), Output):
            pass
        return message

    def next(self):
        line = b"\n"
        while line == b"\n":
            line = self.process.stdout.readline()
        return FROM_AGENT.decode(line) if line else None

    def hear_output(self, ending="\n"):
        """What workers say next, up to `ending`, and who that was."""
        text, worker = "", None
        while not text.endswith(ending):
            message = self.next()
            if isinstance(message, Output):
                text, worker = text + message.text, message.worker
        return worker, text

    def finish(self):
        """Hangs up and waits for the end; what was said on stderr."""
        self.process.stdin.close()
        with self.process.stdout, self.process.stderr:
            while self.process.stdout.readline():
                pass
            said = self.process.stderr.read().decode()
        assert self.process.wait(SECONDS) == 0
        return said


@pytest.fixture
def begin():
    agents = []

    def begin(*arguments, **options):
        agents.append(Agent(*arguments, **options))
        return agents[-1]

    yield begin
    for agent in agents:
        agent.process.kill()
        agent.process.wait()
        for pipe in (agent.process.stdin, agent.process.stdout, agent.process.stderr):
            pipe.close()


WAITS = "import signal; print('ready', flush=True); signal.pause()"
# A worker that will not hear, with a child that would not, either.
DEAF = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
"""


def has_ended(pid):
    """Ended, also where nobody takes note of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(holds):
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def test_workers_are_started_followed_and_told_of(begin):
    agent = begin(
        "import os, sys; from lockstitch.trust import find_secret\n"
        "secret = find_secret(None, None, os.environ).text()\n"
        "told = [*map(os.environ.get, 'RANK OMP_NUM_THREADS LOCKSTITCH_SECRET'.split())]\n"
        "print(os.getpid(), secret, told, repr(sys.stdin.read())); sys.exit(7)",
        LOCKSTITCH_SECRET="of another job",
    )
    assert agent.hello.version == __version__
    agent.start(3, workers_here=1 << 20, RANK="3")
    started = agent.hear()
    worker, said = agent.hear_output()
    assert isinstance(started, Started)
    assert worker == started.worker == 3
    assert said == f"{started.pid} {SECRET.text()} ['3', '1', None] ''\n"
    assert agent.hear() == Ended(3, 7)
    assert agent.finish() == ""


def test_a_worker_takes_its_share_of_the_cores_unless_somebody_has_said_something(begin):
    program = "import os; print(os.environ['OMP_NUM_THREADS'])"
    agent = begin(program)
    agent.start(0)
    assert int(agent.hear_output()[1]) == len(os.sched_getaffinity(0))
    agent = begin(program, OMP_NUM_THREADS="5")
    agent.start(0, workers_here=2)
    assert int(agent.hear_output()[1]) == 5


def test_what_cannot_be_started_is_told(begin):
    agent = begin("", command=("/no/such/program",))
    agent.start(2)
    message = agent.hear()
    assert isinstance(message, NotStarted)
    assert (message.worker, "No such file" in message.why) == (2, True)
    agent.finish()


def test_a_signal_is_for_one_worker_or_for_all(begin):
    agent = begin(
        "import signal, sys\ndef end(*_): print('last words'); sys.exit(9)\n"
        "signal.signal(signal.SIGINT, end); print('ready', flush=True); signal.pause()"
    )
    for worker in range(3):
        agent.start(worker)
        agent.hear_output()
    agent.say(Signal(signal.SIGINT, 1))
    assert agent.hear_output() == (1, "last words\n")
    assert agent.hear() == Ended(1, 9)
    agent.say(Signal(signal.SIGTERM))
    assert {agent.hear() for _ in range(2)} == {Ended(0, -15), Ended(2, -15)}
    agent.say(Signal(signal.SIGTERM, 0))  # harmless by now
    agent.finish()


def test_a_worker_that_cannot_be_asked_is_named(begin):
    agent = begin("", command=("sleep", "600"))
    agent.start(4)
    agent.hear()
    agent.say(Signal(signal.SIGUSR1, 4))
    assert agent.hear() == Remark("worker 4 has not begun to listen")
    agent.say(Signal(signal.SIGKILL, 4))
    ended = agent.hear()
    assert (ended.worker, ended.code) == (4, -9)


def test_workers_end_with_the_launcher(begin):
    agent = begin(WAITS)
    agent.start(0)
    pid = agent.hear().pid
    agent.hear_output()
    agent.process.stdin.close()
    assert agent.hear() == Ended(0, -15)
    assert agent.process.wait(SECONDS) == 0
    assert has_ended(pid)


@pytest.mark.parametrize(("ending", "code"), [("signal.pause()", -9), ("sys.exit(3)", 3)])
def test_nothing_survives_the_launcher_for_long(ending, code, begin):
    agent = begin(DEAF + ending)
    agent.start(0)
    child = int(agent.hear_output()[1])
    agent.process.stdin.close()
    assert agent.hear().code == code
    assert agent.process.wait(SECONDS) == 0
    wait_until(lambda: has_ended(child))


def test_workers_end_when_the_launcher_falls_silent(begin):
    agent = begin(WAITS, silence=0.5)
    agent.start(0)
    pid = agent.hear().pid
    agent.hear_output()
    assert agent.process.wait(SECONDS) == 0  # though nobody has hung up
    assert has_ended(pid)
    assert b"the launcher has said nothing for 0.5 s" in agent.process.stderr.read()


def test_a_sign_of_life_is_answered(begin):
    agent = begin("")
    agent.write(b"\n")
    assert agent.process.stdout.readline() == b"\n"


def test_a_worker_whose_start_nobody_hears_of_is_ended(begin):
    agent = begin(WAITS)
    agent.process.send_signal(signal.SIGSTOP)
    agent.start(0)
    agent.process.stdin.close()
    agent.process.stdout.close()
    agent.process.send_signal(signal.SIGCONT)
    assert agent.process.wait(SECONDS) == 0


# Writes until nothing is taken any more, then tidies up when it is told to end, which it says, too.
TIDY = """
import os, pathlib, select, signal, sys
def tidy_up(*_):
    print("x" * 300_000, flush=True)
    pathlib.Path(os.environ["PLACE"], "tidy").touch()
    sys.exit()
signal.signal(signal.SIGTERM, tidy_up)
os.write(1, b"ready\\n")
while os.environ["IS_FULL"] and select.select([], [1], [], 0.3)[1]:
    os.write(1, b"y" * 4096)
pathlib.Path(os.environ["PLACE"], "waits").touch()
signal.pause()
"""


@pytest.mark.parametrize("is_full", ["", "yes"])
def test_workers_tidy_up_though_nobody_reads_what_is_said(is_full, begin, tmp_path):
    agent = begin(TIDY)
    agent.start(0, PLACE=str(tmp_path), IS_FULL=is_full)
    wait_until((tmp_path / "waits").exists)
    agent.process.send_signal(signal.SIGSTOP)
    agent.write(b"\n")  # a sign of life, and the last
    agent.process.stdin.close()
    agent.process.stdout.close()
    agent.process.send_signal(signal.SIGCONT)
    assert agent.process.wait(SECONDS) == 0
    assert (tmp_path / "tidy").exists()


def test_an_agent_that_is_told_to_end_stays_with_its_workers_and_starts_no_more(begin):
    agent = begin(WAITS)
    agent.start(0)
    agent.hear_output()
    agent.process.terminate()
    assert agent.hear() == Closing()
    agent.start(1)
    assert isinstance(agent.hear(), NotStarted)
    agent.say(Signal(signal.SIGKILL, 0))
    assert agent.hear().code == -9
    assert agent.hear() is None
    assert agent.process.wait(SECONDS) == 0


def test_workers_wait_while_the_launcher_does_not_read(begin):
    size = 8 << 20
    agent = begin(f"import sys; sys.stdout.write('x' * {size}); sys.stderr.write('!')")
    agent.start(0)
    wait_until(lambda: queued_in(agent.process.stdout) > 32 << 10)
    threading.Event().wait(0.2)
    assert memory_of(agent.process.pid) < 64 << 20
    texts = {"stdout": "", "stderr": ""}
    while not isinstance(message := agent.next(), Ended):
        if isinstance(message, Output):
            texts[message.stream] += message.text
    assert len(texts["stdout"]) == size
    assert texts["stderr"].startswith("!")


def queued_in(pipe):
    queued = array.array("i", [0])
    fcntl.ioctl(pipe.fileno(), termios.FIONREAD, queued)
    return queued[0]


def memory_of(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_is_no_message_is_told_without_repeating_it(begin):
    agent = begin("")
    agent.write(b'["Begin","' + SECRET.text().encode() + b'"]\n')
    message = agent.hear()
    assert isinstance(message, Remark)
    assert SECRET.text() not in message.text
