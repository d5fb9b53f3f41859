"""One rank of several whose system calls fail: `strace` has the nth call of a kind return an error,
or kills the process there.

    with Faulty(3, "several") as ranks:
        outcomes = ranks.run(victim=1, call="sendto", fault="error=ECONNRESET", when=2)

The ranks are forked from the test and reduce a few tensors. Whatever becomes of one, it stays alive
until all have told, so that nobody is told by the end of a process but where that is the fault.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from lockstitch import hvd

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

STRACE = shutil.which("strace") or ""
START_SECONDS = 6
# What a rank may take until it has its result or its error, on a machine that is busy.
BOUND_SECONDS = 40
Hosts = Literal["one", "several", "two of two"]


@dataclass(frozen=True)
class Outcome:
    """What became of a rank: `right`, `wrong`, `error`, `killed` or `hangs`."""

    kind: str
    text: str = ""


def can_inject() -> bool:
    """Whether there is `strace`, and may trace."""
    if not STRACE:
        return False
    tried = subprocess.run([STRACE, "-o", os.devnull, "true"], capture_output=True, check=False)
    return tried.returncode == 0


class Faulty:
    """A context manager; no process is left when the block is over."""

    def __init__(self, size: int, hosts: Hosts, store: Literal["tcp", "file"] = "file") -> None:
        self.size = size
        self._hosts = hosts
        self._store = store
        self._members: list[tuple[Any, Connection]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="lockstitch-")

    def __enter__(self) -> Faulty:
        context = multiprocessing.get_context("fork")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for rank in range(self.size):
            near, far = context.Pipe()
            environment = self._environment(rank, port)
            process = context.Process(target=_live, args=(rank, self.size, environment, far))
            process.start()
            far.close()
            self._members.append((process, near))
        return self

    def __exit__(self, *_error: object) -> None:
        for process, pipe in self._members:
            process.kill()
            process.join()
            process.close()
            pipe.close()
        self._folder.cleanup()

    def run(self, victim: int, call: str, fault: str, when: int) -> list[Outcome]:
        """All ranks' outcomes; those of the victim's calls that are injected count from here on."""
        for _, pipe in self._members:
            assert pipe.poll(60)
            pipe.recv()
        traced = self._members[victim][0].pid
        log = Path(self._folder.name) / "trace"
        tracer = subprocess.Popen(
            [
                STRACE,
                *("-f", "-o", str(log), "-p", str(traced)),
                *("-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={when}"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert tracer.stderr is not None
            assert "attached" in tracer.stderr.readline()
            for _, pipe in self._members:
                pipe.send("go")
            deadline = time.monotonic() + BOUND_SECONDS
            return [self._outcome(pipe, deadline) for _, pipe in self._members]
        finally:
            for process, _ in self._members:
                process.kill()
            tracer.kill()
            tracer.communicate()

    def _outcome(self, pipe: Connection, deadline: float) -> Outcome:
        try:
            if pipe.poll(max(0.0, deadline - time.monotonic())):
                return Outcome(*pipe.recv())
        except (EOFError, ConnectionError):
            return Outcome("killed")
        return Outcome("hangs")

    def _environment(self, rank: int, port: int) -> dict[str, str]:
        environment = {
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(self.size),
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(START_SECONDS),
        }
        if self._hosts != "one":
            of = rank if self._hosts == "several" else rank * 2 // self.size
            environment["HOROVOD_HOSTNAME"] = f"host{of}"
        if self._store == "file":
            environment["LOCKSTITCH_STORE"] = str(Path(self._folder.name) / str(port))
            environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        else:
            environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = "127.0.0.1"
            environment["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(port)
        return environment


def _live(rank: int, size: int, environment: dict[str, str], pipe: Connection) -> None:
    torch.set_num_threads(1)  # after a fork, torch may abort otherwise
    os.environ.update(environment)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    pipe.send("ready")
    pipe.recv()
    outcome = ("right", "")
    try:
        _reduce(rank, size)
    except AssertionError as error:
        outcome = ("wrong", repr(error))
    except BaseException as error:  # noqa: BLE001 - told to the test
        outcome = ("error", f"{type(error).__name__}: {error}")
        if hvd.is_initialized():
            with contextlib.suppress(RuntimeError, OSError):
                hvd.allreduce(torch.ones(1), name="after it")
                outcome = ("wrong", f"goes on after {outcome[1]}")
            if outcome[0] == "error":
                hvd.shutdown()
    with contextlib.suppress(OSError):
        pipe.send(outcome)
        pipe.recv()  # until the test is over
    os._exit(0)


def _reduce(rank: int, size: int) -> None:
    hvd.init()
    parameters = {"w": torch.full((300,), float(rank)), "b": torch.full((3,), float(rank))}
    hvd.broadcast_parameters(parameters, root_rank=0)
    assert parameters["w"].sum() == parameters["b"].sum() == 0
    everybody = size * (size - 1) / 2
    assert hvd.allreduce(torch.full((5,), float(rank)), op=hvd.Sum, name="s")[4] == everybody
    for turn in range(2):
        big = torch.full((700_000,), float(rank))
        hvd.allreduce_(big, op=hvd.Sum, name=f"big{turn}")
        assert (big == everybody).all()
    gathered = hvd.allgather(torch.full((rank + 1, 2), float(rank)), name="g")
    assert gathered[:, 0].tolist() == [float(each) for each in range(size) for _ in range(each + 1)]
    hvd.barrier()
    hvd.shutdown()
