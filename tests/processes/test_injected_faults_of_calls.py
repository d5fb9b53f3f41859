"""Calls and backward passes between processes of which one has a call of the system fail, or dies
in it: each run ends, right or in an error that names a worker. `strace` does the mischief."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import torch

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.errors import LockstitchError
from lockstitch.testing import ProcessCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

STRACE = shutil.which("strace") or ""
HEARTBEAT_SECONDS = 3.0
BOUND_SECONDS = 40.0
"""What a machine that is busy may make of that."""

SIZES = (4, 100_000)


def _may_trace() -> bool:
    tried = subprocess.run([STRACE, "-o", os.devnull, "true"], capture_output=True, check=False)
    return tried.returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not STRACE or not _may_trace(), reason="needs strace, and may trace"),
]


def times_three(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 3


def through_caller(tensor: torch.Tensor) -> torch.Tensor:
    return rpc.rpc_sync("worker0", times_three, (tensor * 2,)) + tensor


def drive() -> str:
    """Calls, values left there and backward passes, small ones and large ones; on worker0."""
    for size in SIZES:
        tensor = torch.arange(float(size))
        assert rpc.rpc_sync("worker1", times_three, (tensor,)).equal(3 * tensor)
        assert rpc.remote("worker1", times_three, (tensor,)).to_here().equal(3 * tensor)
        with dist_autograd.context() as context:
            leaf = torch.ones(size, requires_grad=True)
            loss = rpc.rpc_sync("worker1", through_caller, (leaf,)).sum()
            dist_autograd.backward(context, [loss])
            assert dist_autograd.get_gradients(context)[leaf].equal(torch.full((size,), 7.0))
    return "right"


@contextlib.contextmanager
def injected(pid: int, call: str, fault: str, when: int) -> Iterator[None]:
    """Within, the call number `when` of that kind, by any thread of the process, fails so."""
    inject = f"inject={call}:{fault}:when={when}"
    command = [STRACE, "-f", "-p", str(pid), "-o", os.devnull, "-e", f"trace={call}", "-e", inject]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracing:
        try:
            assert tracing.stderr is not None
            assert "attached" in tracing.stderr.readline()
            yield
        finally:
            tracing.terminate()
            tracing.communicate()


def run_with(call: str, fault: str, when: int) -> str:
    """`right`, or the error in which it ends on worker0; the fault is worker1's."""
    cluster = ProcessCluster(
        2,
        start_method="fork",
        rpc_timeout=0,
        heartbeat_timeout=HEARTBEAT_SECONDS,
        timeout_seconds=BOUND_SECONDS,
    )
    with cluster:
        with injected(cluster.pid(1), call, fault, when):
            try:
                outcome: Any = cluster.run(0, drive)
            except LockstitchError as error:
                outcome = f"{type(error).__name__}: {error}"
        for name in cluster:  # how they part is another matter
            cluster.kill(name)
    return str(outcome)


def check(call: str, fault: str, whens: range) -> None:
    for when in whens:
        outcome = run_with(call, fault, when)
        assert outcome == "right" or "worker" in outcome, (call, fault, when, outcome)


@pytest.mark.parametrize("call", ["sendto", "sendmsg", "recvfrom", "recvmsg"])
@pytest.mark.parametrize("error", ["ECONNRESET", "ENOBUFS", "EAGAIN", "EINTR"])
def test_a_message_is_not_sent_or_not_received(call: str, error: str) -> None:
    check(call, f"error={error}", range(1, 5))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("connect", "ECONNREFUSED"),
        ("connect", "EAGAIN"),
        ("socket", "EMFILE"),
        ("memfd_create", "EMFILE"),
        ("ftruncate", "ENOSPC"),
        ("fallocate", "ENOSPC"),
    ],
)
def test_there_is_no_room_or_nobody_there(call: str, error: str) -> None:
    check(call, f"error={error}", range(1, 4))


def test_memory_cannot_be_mapped() -> None:
    """The first mappings of a thread are its own: where they fail, `Thread.start` of Python never
    returns."""
    check("mmap", "error=ENOMEM", range(5, 9))


@pytest.mark.parametrize("call", ["sendto", "sendmsg", "recvfrom", "recvmsg", "mmap"])
def test_a_worker_dies_in_a_call(call: str) -> None:
    check(call, "signal=KILL", range(1, 4))
