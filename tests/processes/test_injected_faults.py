"""Reductions of real processes of which one's system calls fail, or which is killed in one: every
rank ends, with the right numbers or with an error that names a rank.

A sample of what can fail; `LOCKSTITCH_FAULTS` says how large it is.
"""

from __future__ import annotations

import itertools
import os
import random

import pytest

from tests.processes.injection import Faulty, Hosts, can_inject

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_inject(), reason="strace is missing, or may not trace"),
]

KILL = "signal=KILL"
BROKEN = ("error=ECONNRESET", "error=EPIPE", "error=ETIMEDOUT")
SCARCE = ("error=ENOBUFS", "error=ENOMEM", "error=EMFILE", "error=ENOSPC")
HARMLESS = ("error=EAGAIN", "error=EINTR")
CALLS = {
    "sendto": (*BROKEN, *SCARCE, *HARMLESS),
    "recvfrom": (*BROKEN, *SCARCE, *HARMLESS),
    "sendmsg": (*BROKEN, *SCARCE, *HARMLESS),
    "recvmsg": (*BROKEN, *SCARCE, *HARMLESS),
    "connect": (*BROKEN, *SCARCE, "error=ECONNREFUSED"),
    "accept4": ("error=ECONNABORTED", *SCARCE, *HARMLESS),
    "mmap": ("error=ENOMEM",),
    "ftruncate": ("error=ENOSPC", "error=EINTR"),
    "memfd_create": SCARCE,
    "eventfd2": SCARCE,
    "pidfd_open": SCARCE,
    "poll": ("error=ENOMEM", *HARMLESS),
}
WORLDS: list[tuple[Hosts, int]] = [("one", 2), ("one", 3), ("several", 3), ("two of two", 4)]


def sample() -> list[tuple[Hosts, int, int, str, str, int]]:
    count = int(os.environ.get("LOCKSTITCH_FAULTS", "40"))
    whole = [
        (hosts, size, victim, call, fault, when)
        for hosts, size in WORLDS
        for victim, when in itertools.product(range(size), (1, 2, 3, 5, 8))
        for call, faults in CALLS.items()
        for fault in (*faults, KILL)
    ]
    return random.Random(0).sample(whole, count)


@pytest.mark.parametrize(("hosts", "size", "victim", "call", "fault", "when"), sample())
def test_fault_in_a_system_call_ends_on_every_rank(
    hosts: Hosts, size: int, victim: int, call: str, fault: str, when: int
) -> None:
    with Faulty(size, hosts) as ranks:
        outcomes = ranks.run(victim, call, fault, when)
    for rank, outcome in enumerate(outcomes):
        fine = ("right", "error")
        if rank == victim:
            # `threading.Thread.start` waits for ever where the new thread has no memory to say that
            # it has begun: nobody but the interpreter could help the victim itself there.
            fine += ("killed", "hangs") if call == "mmap" else ("killed",)
        assert outcome.kind in fine, outcomes
        assert outcome.kind == "right" or rank == victim or "rank" in outcome.text, outcomes


def test_failed_send_while_parameters_are_broadcast_between_hosts_is_raised_everywhere() -> None:
    with Faulty(3, "several") as ranks:
        outcomes = ranks.run(1, "sendto", "error=ECONNRESET", 6)  # after the meeting
    assert [outcome.kind for outcome in outcomes] == ["error"] * 3
    assert all("RankLostError" in outcome.text for outcome in outcomes), outcomes
    for rank, outcome in enumerate(outcomes):
        assert f"rank {int(rank != 1)} died, or its connection broke" in outcome.text
