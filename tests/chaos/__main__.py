"""The command; see the package."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import torch

from lockstitch import rpc
from lockstitch.errors import PeerDiedError
from lockstitch.testing.processes import ProcessCluster
from tests.chaos.load import Seen, open_log, work
from tests.chaos.networks import Networks, entering, why_not
from tests.chaos.report import PAGE, Findings

WORKERS = 4
ON_ONE_HOST = ("killed", "stopped", "disconnected")
BETWEEN_HOSTS = ("cut off for a moment", "cut off, and back later", "cut off")
BOUNDS_OF_A_ROUND = 3
"""A round takes that many times as long as a silent worker goes unnoticed."""


def play(findings: Findings, kind: str, chance: random.Random) -> None:
    """One round."""
    victim = f"worker{chance.randrange(WORKERS)}"
    bound = findings.heartbeat_seconds
    seconds = BOUNDS_OF_A_ROUND * bound
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-"))
        networks = stack.enter_context(Networks(WORKERS)) if kind in BETWEEN_HOSTS else None
        logs = {f"worker{rank}": Path(folder) / str(rank) for rank in range(WORKERS)}
        with ProcessCluster(
            WORKERS,
            start_method="fork",
            heartbeat_timeout=bound,
            timeout_seconds=120,
            prepare=entering(networks),
        ) as cluster:
            for name, log in logs.items():
                cluster.run(name, open_log, str(log))
            tasks = {
                name: cluster.start(name, work, chance.randrange(10**6), seconds) for name in logs
            }
            threading.Event().wait(1 + chance.random() * (seconds / 4))
            moment = time.monotonic()
            if networks is None:
                strike(cluster, kind, victim)
            else:
                cut_off(networks, kind, int(victim.removeprefix("worker")), bound)
            seen: list[Seen] = [
                task.result()
                for name, task in tasks.items()
                if name != victim or kind not in ("killed", "stopped")
            ]
            if kind == "cut off":
                cluster.kill(victim)
            elif kind == "cut off, and back later":
                for name in logs:  # those who gave each other up do not part together
                    cluster.run(name, rpc.shutdown, graceful=False)
            elif kind == "stopped":
                cluster.go_on(victim)
                tasks[victim].result()  # it must come to an end as well
                cluster.kill(victim)
            findings.add(kind, victim, moment, seen, logs)


def strike(cluster: ProcessCluster, kind: str, victim: str) -> None:
    """The mishap."""
    if kind == "killed":
        cluster.kill(victim)
    elif kind == "stopped":
        cluster.stop(victim)
    else:
        os.kill(cluster.pid(victim), signal.SIGUSR2)  # see `load.open_log`


def cut_off(networks: Networks, kind: str, rank: int, bound: float) -> None:
    """The mishap, and its end where it has one."""
    networks.cut(rank)
    if kind == "cut off for a moment":
        threading.Event().wait(bound / 5)
        networks.heal(rank)
    elif kind == "cut off, and back later":
        threading.Event().wait(1.2 * bound)
        networks.heal(rank)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--heartbeat", type=float, default=2.0, help="in seconds")
    parser.add_argument("--docs", action="store_true", help="write the page of the documentation")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chance = random.Random(options.seed)
    command = f"python -m tests.chaos --minutes {options.minutes:g} --seed {options.seed}"
    if options.heartbeat != parser.get_default("heartbeat"):
        command += f" --heartbeat {options.heartbeat:g}"
    findings = Findings(command, options.heartbeat)
    reason = why_not()
    kinds = ON_ONE_HOST if reason else (*ON_ONE_HOST, *BETWEEN_HOSTS)
    findings.left_out = reason and f"{', '.join(BETWEEN_HOSTS)}; {reason}"
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        kind = kinds[findings.rounds % len(kinds)]
        try:
            play(findings, kind, chance)
        except (PeerDiedError, TimeoutError, RuntimeError) as error:
            findings.rounds += 1
            findings.broken.append(f"{kind}: the round failed: {error!r}")
        print(f"round {findings.rounds}: {kind}, broken so far: {findings.broken}", flush=True)
    if options.docs:
        PAGE.write_text(findings.page())
    print(findings.page())
    return bool(findings.broken)


if __name__ == "__main__":
    sys.exit(main())
