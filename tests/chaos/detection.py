"""How long it takes until those who wait for a worker hear that it is gone.

    python -m tests.chaos.detection [--rounds 3] [--heartbeat 10] [--kinds killed stopped …]

Three workers, each a process. The second never answers: the two others wait for it in a call, for a
value, in a backward pass and at a barrier, all at once. Then it is killed, stopped, or (as root)
its network is cut. Prints, for each kind and each way of waiting, the median and the longest time
until the error was raised, in milliseconds.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import torch

from lockstitch import autograd, rpc
from lockstitch.errors import PeerDiedError
from lockstitch.testing.processes import ProcessCluster
from tests.chaos.networks import Networks, entering, why_not
from tests.processes.slow import pass_through_slow

if TYPE_CHECKING:
    from collections.abc import Callable

VICTIM = "worker1"
KINDS = ("killed", "stopped", "cut off")


def wait_for_ever() -> None:
    threading.Event().wait()


def call() -> None:
    rpc.rpc_sync(VICTIM, wait_for_ever, timeout=0)


def value() -> None:
    rpc.remote(VICTIM, wait_for_ever, timeout=0).to_here(timeout=0)


def backward() -> None:
    with autograd.context() as context:
        leaf = torch.ones(3, requires_grad=True)
        loss = rpc.rpc_sync(VICTIM, pass_through_slow, (leaf,), timeout=0).sum()
        autograd.backward(context, [loss])


def barrier() -> None:
    rpc.api._wait_all_workers(0)


WAITS: tuple[Callable[[], None], ...] = (call, value, backward, barrier)


def wait_in_all_ways() -> dict[str, tuple[float, str]]:
    """When each way of waiting ended, by the machine's clock, and in what."""
    ended: dict[str, tuple[float, str]] = {}
    worker = rpc.api.current_worker()

    def run(wait: Callable[[], None]) -> None:
        with worker.active():
            try:
                wait()
                outcome = "nothing"
            except RuntimeError as error:
                outcome = f"{type(error).__name__}: {error}"
        ended[wait.__name__] = (time.monotonic(), outcome)

    threads = [threading.Thread(target=run, args=(wait,)) for wait in WAITS]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return ended


def play(kind: str, heartbeat: float) -> list[tuple[str, float, str]]:
    """One round: way of waiting, seconds, error."""
    networks = Networks(3).__enter__() if kind == "cut off" else None
    try:
        with ProcessCluster(
            3,
            start_method="fork",
            heartbeat_timeout=heartbeat,
            timeout_seconds=60 + 3 * heartbeat,
            prepare=entering(networks),
        ) as cluster:
            tasks = [cluster.start(rank, wait_in_all_ways) for rank in (0, 2)]
            threading.Event().wait(1.5)  # all wait by then
            moment = time.monotonic()
            if kind == "killed":
                cluster.kill(VICTIM)
            elif kind == "stopped":
                cluster.stop(VICTIM)
            elif networks is not None:
                networks.cut(1)
            results = [task.result() for task in tasks]
            cluster.kill(VICTIM)
    finally:
        if networks is not None:
            networks.__exit__(None, None, None)
    return [(way, when - moment, error) for each in results for way, (when, error) in each.items()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.detection", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heartbeat", type=float, default=10.0, help="in seconds")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    reason = why_not()
    for kind in options.kinds:
        if kind == "cut off" and reason:
            print(f"{kind}: left out; {reason}")
            continue
        taken: dict[str, list[float]] = defaultdict(list)
        errors: set[str] = set()
        for _ in range(options.rounds):
            try:
                outcomes = play(kind, options.heartbeat)
            except (PeerDiedError, TimeoutError) as error:
                print(f"{kind}: the round failed: {error!r}")
                continue
            for way, seconds, error_text in outcomes:
                taken[way].append(1000 * seconds)
                if VICTIM not in error_text:
                    errors.add(f"{way}: {error_text}")
        for way, times in sorted(taken.items()):
            print(
                f"{kind:8} {way:8} {len(times)} times: median {statistics.median(times):.0f}, "
                f"longest {max(times):.0f} ms",
                flush=True,
            )
        for each in errors:
            print(f"{kind}: does not name the worker: {each}")


if __name__ == "__main__":
    main()
