"""References passed along a pipeline while workers stand still and go on, at any moment of it.

Three workers meet, hand references on to each other, run backward passes and part, again and again.
Meanwhile one of them, or all, are stopped for up to three seconds (SIGSTOP, SIGCONT), as schedulers
and debuggers do. Every step ends, with the right gradients, and no reference is left.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest
import torch

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.rref.service import ReferenceService
from lockstitch.runtime.worker import current_worker
from lockstitch.testing import ProcessCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORKERS = 3
LONGEST_STOP_SECONDS = 3.0
MEAN_STOP_SECONDS = 0.15
MEAN_RUN_SECONDS = 0.08
WORLD_SECONDS = 120.0
"""Within which a world comes and goes; some seconds are usual, where nobody is stopped for long."""


# ---------------------------------------------------------------- the program


class Stage:
    """Scales what it is given a reference to, wherever that lives."""

    def __init__(self, factor: float) -> None:
        self.factor = torch.nn.Parameter(torch.tensor(factor))

    def forward(self, rref: rpc.RRef[torch.Tensor]) -> torch.Tensor:
        return rref.to_here() * self.factor

    def gradient(self, context_id: int) -> float:
        return float(dist_autograd.get_gradients(context_id)[self.factor])


def run_steps(stages: list[rpc.RRef[Stage]], steps: int) -> None:
    first, second, third = stages
    for step in range(steps):
        size = (4, 20_000)[step % 2]
        with dist_autograd.context() as context_id:
            results = []
            for number in range(4):
                hidden = first.remote().forward(rpc.RRef(torch.full((size,), float(number))))
                hidden = second.remote().forward(hidden)
                results.append(third.rpc_async().forward(hidden))
            loss = torch.cat(torch.futures.wait_all(results)).sum()
            assert loss.item() == size * 6 * 2 * 3 * 5
            dist_autograd.backward(context_id, [loss])
            gradients = [stage.rpc_sync().gradient(context_id) for stage in stages]
            assert gradients == [size * 6 * each for each in (3 * 5, 2 * 5, 2 * 3)]


def live(meeting_place: str, names: list[str], steps: int) -> None:
    """Parts with those of the last world, and meets them in a new one."""
    rank = rpc.get_worker_info().id
    rpc.shutdown()
    options = rpc.TensorPipeRpcBackendOptions(init_method=meeting_place)
    rpc.init_rpc(names[rank], rank=rank, world_size=len(names), rpc_backend_options=options)
    if rank == 0:
        factors = (2.0, 3.0, 5.0)
        stages = [
            rpc.remote(name, Stage, (factor,)) for name, factor in zip(names, factors, strict=True)
        ]
        run_steps(stages, steps)


def references_left() -> str:
    deadline, pause = time.monotonic() + 20, threading.Event()
    while time.monotonic() < deadline:
        found = current_worker().service(ReferenceService).statistics()
        if not (found.owned or found.forks or found.used or found.pending):
            return ""
        pause.wait(0.05)
    return repr(found)


# ---------------------------------------------------------------- who stops them


class Stopper(threading.Thread):
    """Until `end`: stops some of the processes, and lets them go on."""

    def __init__(self, pids: list[int], seed: int) -> None:
        super().__init__(name="stopper", daemon=True)
        self.stops = 0
        self._pids = pids
        self._random = random.Random(seed)
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(self._random.expovariate(1 / MEAN_RUN_SECONDS)):
            count = self._random.choice([1, 1, 1, 2, WORKERS])
            chosen = self._random.sample(self._pids, count)
            is_long = self._random.random() < 0.03
            seconds = LONGEST_STOP_SECONDS if is_long else self._short()
            try:
                for pid in chosen:
                    os.kill(pid, signal.SIGSTOP)
                self._end.wait(seconds)
            finally:
                for pid in chosen:
                    os.kill(pid, signal.SIGCONT)
            self.stops += 1

    def _short(self) -> float:
        return min(self._random.expovariate(1 / MEAN_STOP_SECONDS), LONGEST_STOP_SECONDS)

    def end(self) -> None:
        self._end.set()
        self.join()


@contextlib.contextmanager
def stopping(cluster: ProcessCluster, seed: int) -> Iterator[Stopper]:
    stopper = Stopper([cluster.pid(name) for name in cluster], seed)
    stopper.start()
    try:
        yield stopper
    finally:
        stopper.end()


# ---------------------------------------------------------------- the test


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_pipelines_go_on_when_workers_were_stopped(request, tmp_path: Path) -> None:
    seconds = request.config.getoption("--soak-seconds") / 2
    seed = request.config.getoption("--soak-seed")
    end, worlds = time.monotonic() + seconds, 0
    with ProcessCluster(WORKERS, timeout_seconds=WORLD_SECONDS) as cluster:
        with stopping(cluster, seed) as stopper:
            while time.monotonic() < end:
                steps = (1, 5, 40)[worlds % 3]
                place = (tmp_path / f"world{worlds}").as_uri()
                cluster.run_all(live, place, cluster.names, steps)
                worlds += 1
        assert stopper.stops >= worlds > 0
        assert cluster.run_all(references_left) == ["", "", ""]
