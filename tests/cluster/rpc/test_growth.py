"""What grows with the number of workers, and what must not.

A call and a backward pass cost what they cost, however many others there are. Starting, and going
together, takes messages in proportion to the workers, and nobody has more to do than anybody else.
Where workers come and go, a newcomer is made known to every member.
"""

from __future__ import annotations

import math
import threading
from functools import partial

import pytest
import torch

import lockstitch.autograd as dist_autograd
from benchmarks.growth.simulation import StandingClock
from benchmarks.growth.stores import count_start
from benchmarks.growth.work import WARM_UP_TIMES, call, counted, find
from benchmarks.growth.work import run_backward as run_a_pass
from lockstitch import rpc
from lockstitch.rpc.tree import ARITY
from lockstitch.testing import LocalCluster, Traffic
from lockstitch.testing.cluster import LocalDirectory
from tests.cluster.rpc.groups import LocalGroup, wait_until_all_see
from tests.unit.rpc.programs import on_all

SIZES = [2, 9, 25]
LARGE = [pytest.param(160, marks=pytest.mark.slow), pytest.param(512, marks=pytest.mark.slow)]


def double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


def run_backward(to: str) -> None:
    leaf = torch.ones(4, requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(to, double, args=(leaf,)).sum()
        dist_autograd.backward(context_id, [loss])
        assert dist_autograd.get_gradients(context_id)[leaf].tolist() == [2, 2, 2, 2]


def hold_reference(to: str) -> None:
    rref = rpc.remote(to, double, args=(torch.ones(4),))
    assert rref.to_here().tolist() == [2, 2, 2, 2]


WORK = {"backward": run_backward, "reference": hold_reference}


def traffic_of(size: int, work: str) -> tuple[Traffic, int]:
    """Of one piece of work between the first and the last of so many workers, and the threads
    that it needed."""
    with LocalCluster(size) as cluster:
        idle = threading.active_count()
        cluster.run(0, WORK[work], cluster.names[-1])
        threads = threading.active_count() - idle
        on_all(cluster, rpc.shutdown)  # until the last deletion is told
        return cluster.traffic(), threads


@pytest.mark.parametrize("work", WORK)
def test_the_cost_of_work_does_not_grow_with_the_world(work) -> None:
    kinds, threads = [], []
    for size in SIZES:
        sent, started = traffic_of(size, work)
        of_meetings = {"Hello", "Welcome", "Brought", "Announced", "Leave", "Call", "Reply"}
        kinds.append({kind: n for kind, n in sent.kinds.items() if kind not in of_meetings})
        threads.append(started)
    assert kinds == [kinds[0]] * len(SIZES)
    assert max(threads) <= min(threads) + 1


@pytest.mark.parametrize("size", SIZES)
def test_a_call_is_two_messages_and_one_connection_in_any_world(size) -> None:
    with LocalCluster(size) as cluster:
        cluster.run(0, rpc.rpc_sync, cluster.names[-1], double, (1,))
        assert cluster.traffic().kinds == {"Hello": 1, "Welcome": 1, "Call": 1, "Reply": 1}
        assert cluster.traffic().connections == 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [*SIZES, *LARGE])
def test_going_together_is_linear_in_all_and_constant_for_each(size) -> None:
    # Time stands still, so that nobody loses patience, and says or asks anything again.
    with LocalCluster(size, clock=StandingClock()) as cluster:
        assert set(on_all(cluster, partial(rpc.shutdown, timeout=0), 240).values()) == {None}
        sent = cluster.traffic()
    # Five meetings, each a message up and one down for everyone but the leader; one of them is
    # made of calls. Then greetings and farewells on both connections of each pair.
    assert sent.messages <= 20 * (size - 1)
    assert sent.bytes <= 1800 * size
    assert sent.connections <= 2 * (size - 1)
    assert max(sent.ends.values()) <= 2 * (ARITY + 1)
    # A door at which many knock at once asks them twice.
    assert max(sent.senders.values()) <= 11 * (ARITY + 1)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [*SIZES, *LARGE])
def test_steps_of_going_together_that_wait_for_each_other_are_logarithmic(size) -> None:
    with LocalCluster(size, clock=StandingClock()) as cluster:
        assert set(on_all(cluster, partial(rpc.shutdown, timeout=0), 240).values()) == {None}
        # On each level of the tree ten for meetings, up and down, and fourteen more for greetings,
        # calls and farewells; and what is left for one more meeting.
        levels = math.ceil(math.log(3 * size + 1, 4)) - 1
        assert cluster.traffic().depth <= 30 * levels


def test_who_goes_with_all_others_does_not_ask_who_they_are(monkeypatch) -> None:
    with LocalCluster(9) as cluster:
        monkeypatch.setattr(LocalDirectory, "members", None)
        assert set(on_all(cluster, rpc.shutdown).values()) == {None}


@pytest.mark.parametrize("work", [call, run_a_pass, find])
def test_messages_and_bytes_of_work_are_the_same_in_any_world(work) -> None:
    costs = []
    for size in SIZES:
        with LocalCluster(size) as cluster:
            argument = cluster.names if work is find else cluster.names[-1]
            for _ in range(WARM_UP_TIMES):
                cluster.run(0, work, argument)
            before = cluster.traffic()
            cluster.run(0, work, argument)
            costs.append(counted(cluster.traffic() - before))
    assert costs == [costs[0]] * len(SIZES)
    messages, nbytes = costs[0]
    assert messages == {call: 2, run_a_pass: 5, find: 0}[work]
    assert bool(nbytes) == bool(messages)


@pytest.mark.parametrize("size", SIZES)
def test_joining_takes_a_constant_number_of_requests_of_each(size) -> None:
    tally = count_start(size)
    assert tally.asked.requests == 8 * size
    # Everybody reads the entries of all, in one request: that is what a directory is.
    assert tally.keys["multi_get"] == size * size
    assert tally.asked.bytes <= 200 * size * (size + 3)
    # Eight requests and their answers: whoever waits does not wait for one who waits.
    assert tally.asked.depth == 2 * 8


@pytest.mark.parametrize("size", LARGE)
def test_joining_in_blocks_takes_hardly_more_of_each(size) -> None:
    tally = count_start(size)
    assert tally.asked.requests <= 11 * size
    assert tally.asked.bytes <= 200 * size * (size + 3)
    assert tally.asked.depth <= 2 * 16


@pytest.mark.parametrize("size", SIZES)
def test_coming_into_a_group_takes_two_messages_for_each_member(size) -> None:
    members, costs = [f"w{number}" for number in range(size)], []
    with LocalGroup(*members) as group:
        wait_until_all_see(group, *members)
        for newcomer in ("x", "y", "z"):
            before = group.network.traffic()
            group.join(newcomer)
            members.append(newcomer)
            wait_until_all_see(group, *members)
            after = group.network.traffic()
            costs.append((after - before, after.depth - before.depth))
    # Members also compare their tables now and then: perhaps during one of the three.
    sent, depth = min(costs, key=lambda cost: cost[0].messages)
    # The eldest tells all at once, and each notes it.
    assert 2 * (size - 1) <= sent.messages <= 2 * size + 30
    assert sent.bytes <= 1000 * (size + 5)
    assert sent.connections <= 6
    assert depth <= 30
