"""A worker or rank that gets SIGTERM leaves: it answers what it serves, and the others are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

WORKER = """
import os, sys, threading, time
from lockstitch import rpc

def half_a_second():
    threading.Event().wait(0.5)
    return "answered"

told = threading.Event()
events = []

def note(event):
    events.append((event.kind, event.worker.name))
    if event.kind != "joined":
        told.set()

rpc.add_membership_callback(note)
name, store, rank = sys.argv[1:]
options = rpc.TensorPipeRpcBackendOptions(init_method=store)
rpc.init_rpc(name, rank=int(rank), rpc_backend_options=options)
if name == "asks":
    rpc.wait_for_worker("serves", timeout=60)
    answer = rpc.rpc_async("serves", half_a_second)
    print("calls", flush=True)
    print(answer.wait(), flush=True)
    assert told.wait(30)
    print(*events[-1], flush=True)
    rpc.shutdown()
else:
    print("in", flush=True)
    threading.Event().wait()
"""

RANK = """
import os, sys
import torch
import lockstitch.hvd as hvd

hvd.init()
try:
    for step in range(1000000):
        hvd.allreduce(torch.ones(2), name="x")
        if step == 10:
            print("trains", flush=True)
except RuntimeError as error:
    print(type(error).__name__, flush=True)
finally:
    print("cleans up", flush=True)
"""


def start(stack: ExitStack, program: str, *arguments: str, **told: str) -> subprocess.Popen[str]:
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env={**os.environ, **told},
            stdout=subprocess.PIPE,
            text=True,
        )
    )
    stack.callback(process.kill)
    return process


def test_worker_of_a_dynamic_group_answers_and_leaves(tmp_path: Path) -> None:
    with ExitStack() as stack:
        store = f"file://{tmp_path}/store"
        serves = start(stack, WORKER, "serves", store, "0")
        assert serves.stdout.readline() == "in\n"
        asks = start(stack, WORKER, "asks", store, "1")
        assert asks.stdout.readline() == "calls\n"
        serves.send_signal(signal.SIGTERM)
        assert asks.communicate(timeout=60)[0] == "answered\nleft serves\n"
        assert (asks.returncode, serves.wait(60)) == (0, 143)


def test_rank_cleans_up_and_the_others_hear_of_its_end(tmp_path: Path) -> None:
    with ExitStack() as stack:
        meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29733"}
        ranks = [start(stack, RANK, RANK=str(rank), **meeting) for rank in range(2)]
        assert [rank.stdout.readline() for rank in ranks] == ["trains\n"] * 2
        ranks[1].send_signal(signal.SIGTERM)
        assert ranks[1].communicate(timeout=60)[0] == "cleans up\n"
        assert ranks[0].communicate(timeout=60)[0].splitlines()[-1] == "cleans up"
        assert (ranks[0].returncode, ranks[1].returncode) == (0, 143)
