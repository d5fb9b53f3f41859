"""Connections break at each message of a call, a reference, an optimizer's step, the end of a
context and a shutdown, in each way: all of it ends, right or in an error that names a worker; no
function runs twice, and the same workers go on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo  # which the first optimizer would import, for long

from lockstitch import autograd, rpc
from lockstitch.errors import LockstitchError
from lockstitch.optim import DistributedOptimizer
from lockstitch.rpc.leaving import finish, part
from lockstitch.rref.service import ReferenceService
from tests.cluster.breaks import WAYS, Moment, Way, World, moments_of, run_broken
from tests.unit.runtime.stage import Background

if TYPE_CHECKING:
    from collections.abc import Callable

RAN: Counter[str] = Counter()


def note(what: str) -> str:
    RAN[what] += 1
    return what


def relay(what: str) -> str:
    return rpc.rpc_sync("worker2", note, (what,))


def make(number: float) -> torch.Tensor:
    RAN["made"] += 1
    return torch.full((3,), number)


def total(reference: rpc.RRef[torch.Tensor]) -> float:
    RAN["total"] += 1
    return float(reference.to_here().sum())


def calls(_world: World) -> list[str]:
    waiting = rpc.rpc_async("worker2", note, ("async",))
    return [rpc.rpc_sync("worker1", note, ("sync",)), waiting.wait(), _relayed()]


def _relayed() -> str:
    return rpc.rpc_sync("worker1", relay, ("relayed",))


def fetched(_world: World) -> float:
    return float(rpc.remote("worker1", make, (2.0,)).to_here().sum())


def shared(_world: World) -> float:
    """A reference goes to a third worker, and to its owner."""
    reference = rpc.remote("worker1", make, (2.0,))
    return rpc.rpc_sync("worker2", total, (reference,)) + rpc.rpc_sync(
        "worker1", total, (reference,)
    )


def own(_world: World) -> float:
    reference = rpc.RRef(torch.ones(3))
    return rpc.rpc_sync("worker1", total, (reference,))


def stepped(_world: World) -> float:
    """One step on a parameter that another owns: its value after it."""
    parameter = rpc.remote("worker1", torch.ones, (3,), {"requires_grad": True})
    optimizer = DistributedOptimizer(torch.optim.SGD, [parameter], lr=0.5)
    with autograd.context() as context:
        autograd.backward(context, [(parameter.to_here() * 2).sum()])
        optimizer.step(context)
    return float(parameter.to_here().detach().sum())


PROGRAMS: dict[str, tuple[Callable[[World], Any], Any]] = {
    "calls": (calls, ["sync", "async", "relayed"]),
    "fetched": (fetched, 6.0),
    "shared": (shared, 12.0),
    "own": (own, 3.0),
    "stepped": (stepped, 0.0),
}


def program_of(name: str) -> tuple[Callable[[World], Any], Callable[[Any], None]]:
    run, wanted = PROGRAMS[name]

    def program(world: World) -> Any:
        RAN.clear()
        with world.cluster[0].active(), world.script.watched():
            result = run(world)
        world.script.is_watching = True  # what follows it, too: releases, deletions
        return result

    def check(found: Any) -> None:
        assert found == wanted, found
        assert set(RAN.values()) <= {1} if name != "shared" else RAN["total"] == 2

    return program, check


def check_breaks(name: str, moment: Moment, way: Way) -> None:
    program, check = program_of(name)
    # A reference in a message that is lost with its connection stays counted: nobody can tell
    # whether it has arrived.
    is_clean = _nothing_owned if name in ("calls", "fetched") else _anything
    run_broken(program, check, moment, way, is_clean)
    assert all(times <= 2 if what == "total" else times == 1 for what, times in RAN.items())


def _anything(_world: World) -> bool:
    return True


def _nothing_owned(world: World) -> bool:
    services = [worker.service(ReferenceService) for worker in world.cluster]
    return all(each.statistics().owned == 0 for each in services)


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("calls", Moment("worker1", "worker0", "Reply", 1)),
        ("shared", Moment("worker2", "worker1", "ForkRequest", 1)),
        ("stepped", Moment("worker0", "worker1", "ReleaseContext", 1)),
    ],
)
def test_a_message_is_lost(name: str, moment: Moment) -> None:
    for way in WAYS[:2]:
        check_breaks(name, moment, way)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_message_meets_every_break(name: str) -> None:
    for moment in moments_of(*program_of(name)):
        for way in WAYS:
            check_breaks(name, moment, way)


# ------------------------------------------------------------ shutdown


def shut_down(world: World) -> list[LockstitchError | None]:
    """All workers part; what that raises on each."""

    def leave(rank: int) -> None:
        worker = world.cluster[rank]
        try:
            part(worker, 0)
        finally:
            finish(worker, ignore_leaks=True)

    leaving = [Background(leave, rank) for rank in range(len(world.cluster))]
    outcomes: list[LockstitchError | None] = []
    with world.script.watched():
        for each in leaving:
            try:
                outcomes.append(each.result(repr(world)))
            except LockstitchError as error:
                outcomes.append(error)
    return outcomes


def moments_of_shutdown() -> list[Moment]:
    world = World()
    world.script.is_watching = True
    with world.cluster:
        assert world.run(shut_down) == [None] * 3
    return list(dict.fromkeys(world.script.moments))


def check_shutdown(moment: Moment, way: Way) -> None:
    world = World()
    world.script.strikes = moment, way
    world.script.is_watching = True
    with world.cluster:
        for error in world.run(shut_down):
            assert error is None, (world.script, error)


@pytest.mark.parametrize(
    "moment",
    [Moment("worker1", "worker0", "Brought", 1), Moment("worker0", "worker1", "Announced", 2)],
    ids=lambda moment: moment.kind,
)
def test_a_word_of_a_meeting_is_lost(moment: Moment) -> None:
    for way in WAYS[:2]:
        check_shutdown(moment, way)


@pytest.mark.slow
def test_every_message_of_a_shutdown_meets_every_break() -> None:
    for moment in moments_of_shutdown():
        for way in WAYS:
            if moment.kind != "Leave":
                check_shutdown(moment, way)
