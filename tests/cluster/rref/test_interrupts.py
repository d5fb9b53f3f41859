"""Ctrl-C at every point of sending and receiving references: nothing stays held that nobody has."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from lockstitch import rpc
from lockstitch.rref.rref import RRef
from lockstitch.testing.cluster import LocalCluster
from tests.cluster.rref.programs import (
    add,
    eventually,
    give_back,
    make_here,
    nothing_is_held,
    references,
)
from tests.unit.wire.interrupts import interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

MODULES = tuple(
    f"lockstitch.{name}"
    for name in (
        "rref.service rref.rref rref.ledger rref.lifetime.owner_side rref.lifetime.user_side "
        "rref.outbox wire.encodings wire.pickling wire.unpickling runtime.packing "
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
