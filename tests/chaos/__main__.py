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
from pathlib import Path

import torch

from lockstitch.errors import PeerDiedError
from lockstitch.testing.processes import ProcessCluster
from tests.chaos.load import Seen, open_log, work
from tests.chaos.report import PAGE, Findings

WORKERS = 4
KINDS = ("killed", "stopped", "disconnected")
HEARTBEAT_SECONDS = 2.0
ROUND_SECONDS = 6.0


def play(findings: Findings, kind: str, chance: random.Random) -> None:
    """One round."""
    victim = f"worker{chance.randrange(WORKERS)}"
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        logs = {f"worker{rank}": Path(folder) / str(rank) for rank in range(WORKERS)}
        with ProcessCluster(
            WORKERS,
            start_method="fork",
            heartbeat_timeout=HEARTBEAT_SECONDS,
            timeout_seconds=120,
        ) as cluster:
            for name, log in logs.items():
                cluster.run(name, open_log, str(log))
            tasks = {
                name: cluster.start(name, work, chance.randrange(10**6), ROUND_SECONDS)
                for name in logs
            }
            threading.Event().wait(1 + chance.random() * (ROUND_SECONDS / 3))
            moment = time.monotonic()
            strike(cluster, kind, victim)
            seen: list[Seen] = [
                task.result() for name, task in tasks.items() if name != victim or kind == KINDS[2]
            ]
            if kind == "stopped":
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--docs", action="store_true", help="write the page of the documentation")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chance = random.Random(options.seed)
    command = f"python -m tests.chaos --minutes {options.minutes:g} --seed {options.seed}"
    findings = Findings(command, HEARTBEAT_SECONDS)
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        kind = KINDS[findings.rounds % len(KINDS)]
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
