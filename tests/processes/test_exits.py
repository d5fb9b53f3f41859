"""A program may end without `shutdown`: it neither hangs nor crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("rounds", [3, pytest.param(27, marks=pytest.mark.slow)])
def test_exits_while_something_is_under_way(rounds: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.processes.exits", str(rounds)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


ENDED_IN_TORCH = """
import threading
import torch
from lockstitch.runtime import ending

def compute(_future):
    ones = torch.ones(1000)
    while True:
        ones = ones * 1.0000001

def run():
    future = torch.futures.Future()
    future.add_done_callback(compute)
    started.set()
    future.set_result(1)

started = threading.Event()
for _ in range(3):
    threading.Thread(target=run, daemon=True).start()
started.wait()
threading.Event().wait(0.1)
ending.stand_still_instead_of_aborting()
"""


def ends_well(program: str, timeout_seconds: float) -> None:
    """A process that runs `program` ends, in time and without an error."""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the C++ library has another name elsewhere")
def test_a_thread_that_ends_inside_torch_does_not_abort_the_process() -> None:
    ends_well(ENDED_IN_TORCH, timeout_seconds=280)


WAKES_TOO_LATE = """
import signal
import sys
import threading
import time
import torch
from lockstitch.runtime import ending

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return tensor * 2

    @staticmethod
    def backward(ctx, gradient):
        started.set()
        threading.Event().wait(0.7)
        return gradient

class Last:
    def __del__(self, sleep=time.sleep):
        sleep(1.5)

def train():
    Slow.apply(torch.ones(3, requires_grad=True)).sum().backward()

started = threading.Event()
thread = threading.Thread(target=train, daemon=True)
thread.start()
started.wait()
ending.keep_asleep(ending.end_threads([thread]))
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.pthread_kill(thread.ident, signal.SIGUSR1)  # does not wake it either
sys.last = Last()  # deleted when the interpreter is taken down
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are kept asleep by a signal of Linux")
def test_a_thread_that_would_wake_inside_torch_while_the_interpreter_ends_sleeps_on() -> None:
    ends_well(WAKES_TOO_LATE, timeout_seconds=60)


@pytest.mark.parametrize(
    "arguments", [["-i", "-q"], pytest.param(["-"], marks=pytest.mark.slow)], ids=str
)
def test_what_is_left_open_in_an_interactive_session_does_not_keep_it_from_ending(
    arguments: list[str],
) -> None:
    script = """
import time, torch
from lockstitch import hvd, rpc
from lockstitch.nn import DataParallel
from lockstitch.testing import LocalCluster
from lockstitch.testing.processes import ProcessCluster

cluster = ProcessCluster(2, start_method="fork").__enter__()
task = cluster.start(0, time.sleep, 1000)
cluster.stop(1)
print(*[each.process.pid for each in cluster._members.values()])
local = LocalCluster(2).__enter__()
hvd.init()
state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0)
parallel = DataParallel(torch.nn.Linear(2, 2), ["fork", "thread"])
out = parallel(torch.ones(4, 2))
"""
    done = subprocess.run(
        [sys.executable, *arguments],
        input=script, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    pids = done.stdout.split()
    assert len(pids) == 2, done.stderr
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert "Traceback" not in done.stderr
