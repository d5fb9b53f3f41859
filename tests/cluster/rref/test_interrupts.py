"""Ctrl-C at every point of sending and receiving references: nothing stays held that nobody has."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from lockstitch import rpc
from lockstitch.rref.rref import RRef
from lockstitch.testing.cluster import LocalCluster
from lockstitch.testing.time_limits import ActiveTimeLimit
from tests.cluster.rref.programs import (
    add,
    eventually,
    give_back,
    make_here,
    nothing_is_held,
    references,
)
from tests.unit.wire.interrupts import interrupted, interrupted_again

if TYPE_CHECKING:
    from collections.abc import Callable

MODULES = tuple(
    f"lockstitch.{name}"
    for name in (
        "rref.service rref.rref rref.ledger rref.lifetime.owner_side rref.lifetime.user_side "
        "rref.outbox rref.creation wire.encodings wire.pickling wire.unpickling runtime.packing "
        "runtime.outgoing runtime.channel runtime.stream_channel runtime.answers runtime.agent"
    ).split()
)


def count(*values: Any) -> int:
    return len(values)


def an_own_one() -> None:
    rpc.rpc_sync("worker1", count, (RRef(1), 2))


def an_own_one_to_oneself() -> None:
    rpc.rpc_sync("worker0", count, ({"a": RRef(1)},))


def one_of_a_third() -> None:
    rpc.rpc_sync("worker2", give_back, (rpc.remote("worker1", add, (1, 2)),))


def one_that_is_made_there() -> None:
    rpc.rpc_sync("worker1", make_here, (3,))


def without_waiting() -> None:
    rpc.rpc_async("worker1", give_back, (RRef(1),)).wait()


def one_of_its_owner(lent: RRef[Any]) -> None:
    rpc.rpc_async("worker1", count, (lent,)).wait()


def what_is_held(cluster: LocalCluster) -> Any:
    return [references(worker).statistics() for worker in cluster]


@pytest.mark.parametrize(
    "program",
    [an_own_one, an_own_one_to_oneself, one_of_a_third, one_that_is_made_there, without_waiting],
)
def test_nothing_stays_held(program: Callable[[], None]) -> None:
    with LocalCluster(3) as cluster, cluster[0].active():
        program()
        number, is_struck = 0, True
        while is_struck:
            number += 1
            gc.collect(0)  # Python ignores an interrupt that strikes a callback of the collector
            with interrupted(number, *MODULES) as interrupter:
                program()
            is_struck = interrupter.remaining <= 0
            assert eventually(lambda: nothing_is_held(cluster)), (
                interrupter.where,
                what_is_held(cluster),
            )
        assert number > 50
        program()


@pytest.mark.parametrize(
    "program",
    [an_own_one, an_own_one_to_oneself, one_that_is_made_there, without_waiting],
)
def test_nothing_stays_held_where_a_second_interrupt_strikes_what_handles_the_first(
    program: Callable[[], None],
) -> None:
    drawn = random.Random(7)
    with LocalCluster(3) as cluster, cluster[0].active():
        program()
        with interrupted_again((), *MODULES) as unstruck:
            program()
        for _ in range(60):
            numbers = drawn.randrange(1, unstruck.seen), drawn.randrange(1, 16)
            gc.collect(0)  # see above
            with interrupted_again(numbers, *MODULES) as interrupter:
                program()
            assert eventually(lambda: nothing_is_held(cluster)), (
                interrupter.where,
                what_is_held(cluster),
            )
        program()


def test_what_is_lent_goes_without_the_collector() -> None:
    with LocalCluster(2) as cluster, cluster[0].active():
        number, is_struck = 0, True
        gc.disable()
        try:
            while is_struck:
                number += 1
                lent = rpc.remote("worker1", add, (1, 2))
                gone = weakref.ref(lent)
                with interrupted(number, *MODULES) as interrupter:
                    one_of_its_owner(lent)
                is_struck = interrupter.remaining <= 0
                del lent
                assert until_gone(gone), interrupter.where
        finally:
            gc.enable()
        assert number > 50


def until_gone(gone: weakref.ref[Any]) -> bool:
    """Waits for an answer that is still to come, which frees what it was asked with."""
    time_limit, pause = ActiveTimeLimit(10.0), threading.Event()
    while gone() is not None and not time_limit.is_over():
        pause.wait(0.001)
    return gone() is None
