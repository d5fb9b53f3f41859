"""What one worker does in a round, and what it has seen in the end.

Every call carries a number, and its callee writes that into a file of its own before it answers:
what a killed worker did is known all the same. References are made, passed on and used; backward
passes cross to another worker. Whatever is raised is counted by its type.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.autograd.service import AutogradService
from lockstitch.rref.service import ReferenceService
from lockstitch.runtime.stream_channel import StreamChannel
from lockstitch.runtime.worker import PROCESS, current_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.errors import PeerDiedError
    from lockstitch.ids import WorkerId

RECORD = struct.Struct("<qq")
_SETTLE_SECONDS = 60.0


@dataclass
class Seen:
    """What a worker has seen."""

    name: str
    calls: Counter[str] = field(default_factory=Counter)
    """By kind of load, how many ended well."""
    errors: Counter[str] = field(default_factory=Counter)
    acknowledged: list[tuple[str, int]] = field(default_factory=list)
    """Callee and number of every call that was answered."""
    unanswered: list[tuple[str, int]] = field(default_factory=list)
    losses: dict[str, float] = field(default_factory=dict)
    """When each peer was found to be gone, by the machine's clock."""
    causes: dict[str, str] = field(default_factory=dict)
    """And by what."""
    slowest_error_seconds: float = 0.0
    """The longest that a call took to end in an error."""
    longest_pause: float = 0.0
    """How long, in seconds, this process did not run at all, which nobody here did to it."""
    left: dict[str, int] = field(default_factory=dict)
    """What is still held after the round; all should be 0."""


class Log:
    """The numbers of the calls that this worker has served, in a file."""

    descriptor = -1
    rank = -1


def open_log(path: str) -> None:
    """Called once in each worker. From then on SIGUSR2 disconnects it."""
    signal.signal(signal.SIGUSR2, lambda *_: threading.Thread(target=disconnect).start())
    Log.descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    Log.rank = rpc.get_worker_info().id


def serve(caller: int, number: int, tensor: torch.Tensor) -> torch.Tensor:
    """What is called: says so in the log, and works a little."""
    os.write(Log.descriptor, RECORD.pack(caller, number))
    return tensor + 1


def double(value: torch.Tensor) -> torch.Tensor:
    return value * 2


def sum_of(reference: rpc.RRef[torch.Tensor]) -> float:
    """A third worker uses a reference."""
    return float(reference.to_here(timeout=0).sum())


class Load:
    """The threads of one worker and what they count."""

    def __init__(self, seed: int, seconds: float) -> None:
        self._worker = current_worker()
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._until = time.monotonic() + seconds
        self._lock = threading.Lock()
        self.seen = Seen(self._worker.name)
        self._others = [
            info.name for info in self._worker.agent.members() if info.name != self._worker.name
        ]
        self._worker.agent.on_peer_lost(self._note_lost)

    def _note_lost(self, worker: WorkerId, error: PeerDiedError) -> None:
        name = self._worker.agent.info_of(worker).name
        self.seen.losses.setdefault(name, time.monotonic())
        self.seen.causes.setdefault(name, error.cause)

    def run(self) -> Seen:
        """Works until the time is over, and then looks at what is left."""
        kinds = (self.call, self.call, self.refer, self.differentiate)
        threads = [threading.Thread(target=self._repeat, args=(kind,)) for kind in kinds]
        for thread in threads:
            thread.start()
        looked, pause = time.monotonic(), threading.Event()
        while any(thread.is_alive() for thread in threads):
            pause.wait(0.05)
            before, looked = looked, time.monotonic()
            self.seen.longest_pause = max(self.seen.longest_pause, looked - before)
        self.seen.left = self._leftovers()
        return self.seen

    def _repeat(self, once: Callable[[], None]) -> None:
        with self._worker.active():
            while time.monotonic() < self._until:
                started = time.monotonic()
                try:
                    once()
                    outcome = self.seen.calls, once.__name__
                except Exception as error:  # noqa: BLE001 - it is what is counted
                    outcome = self.seen.errors, type(error).__name__
                    took = time.monotonic() - started
                    self.seen.slowest_error_seconds = max(self.seen.slowest_error_seconds, took)
                with self._lock:
                    outcome[0][outcome[1]] += 1
                threading.Event().wait(self._random.random() * 0.01)

    def call(self) -> None:
        """A call without a timeout, with a small or a large tensor."""
        to, number = self._random.choice(self._others), next(self._numbers)
        tensor = torch.zeros(self._random.choice((4, 100_000)))
        try:
            answer = rpc.rpc_sync(to, serve, (self._worker.id.rank, number, tensor), timeout=0)
        except BaseException:
            self.seen.unanswered.append((to, number))
            raise
        assert bool((answer == 1).all())
        self.seen.acknowledged.append((to, number))

    def refer(self) -> None:
        """A value on one worker, used by another."""
        owner, user = self._random.sample(self._others, 2)
        reference = rpc.remote(owner, torch.ones, (8,), timeout=0)
        assert rpc.rpc_sync(user, sum_of, (reference,), timeout=0) == 8

    def differentiate(self) -> None:
        """A forward and a backward pass over two workers."""
        to = self._random.choice(self._others)
        with dist_autograd.context() as context:
            leaf = torch.ones(16, requires_grad=True)
            loss = rpc.rpc_sync(to, double, (leaf,), timeout=0).sum()
            dist_autograd.backward(context, [loss])
            gradient = dist_autograd.get_gradients(context)[leaf]
        assert bool((gradient == 2).all())

    def _leftovers(self) -> dict[str, int]:
        deadline = time.monotonic() + _SETTLE_SECONDS
        looks = itertools.count()
        while True:
            if next(looks) % 10 == 0:  # not always: it holds the GIL, as one that is gone would
                gc.collect()
            references = self._worker.service(ReferenceService).statistics()
            left = {
                "values owned for others": references.owned,
                "references used": references.used,
                "contexts": len(self._worker.service(AutogradService).contexts),
                "calls without an answer": self._worker.agent.outstanding,
                "calls being served": len(self._worker.agent.running_requests),
            }
            if not any(left.values()) or time.monotonic() > deadline:
                return left
            threading.Event().wait(0.1)


def work(seed: int, seconds: float) -> Seen:
    """A round, on one worker."""
    return Load(seed, seconds).run()


def disconnect() -> None:
    """Breaks all connections on which this worker calls others."""
    assert PROCESS.worker is not None
    for channel in PROCESS.worker.agent.peers.channels():
        if isinstance(channel, StreamChannel):
            channel.connection._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
