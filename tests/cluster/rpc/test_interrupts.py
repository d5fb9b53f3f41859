"""Ctrl-C in `shutdown`: whoever has parted from the others goes, and so do they."""

from __future__ import annotations

import contextlib
import random

from lockstitch import rpc
from lockstitch.errors import PeerLeftError
from lockstitch.testing.cluster import LocalCluster
from tests.unit.runtime.stage import Background, wait_until
from tests.unit.wire.interrupts import interrupted_again

MODULES = tuple(
    f"lockstitch.{name}"
    for name in (
        "rpc.api rpc.leaving rpc.quiescence rref.service rref.ledger rref.finalizer_queue "
        "runtime.worker runtime.agent runtime.core runtime.peers runtime.timer runtime.thread_pool "
        "runtime.threads runtime.event_loop runtime.pending_handshakes"
    ).split()
)


def leave(cluster: LocalCluster, name: str) -> None:
    with cluster[name].active():
        rpc.shutdown()


def test_a_worker_that_is_struck_in_its_last_steps_goes_all_the_same() -> None:
    drawn = random.Random(5)
    numbers: list[int] = []
    for turn in range(16):
        with LocalCluster(2) as cluster:
            other = Background(leave, cluster, "worker1")
            with cluster[0].active():
                agent = cluster[0].agent
                with interrupted_again(numbers, *MODULES) as interrupter:
                    rpc.shutdown()
                if turn == 0:
                    steps = interrupter.seen
                wait_until(
                    lambda agent=agent: agent.is_closed and not agent.core.living(),
                    f"its end, struck at {interrupter.where}",
                )
                rpc.shutdown()
            with contextlib.suppress(PeerLeftError):  # it was struck where it waited for the other
                other.result()
        numbers = [drawn.randrange(steps // 2, steps), drawn.randrange(1, 10)]
