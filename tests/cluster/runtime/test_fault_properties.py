"""Any course of calls, references and backward passes, while frames are delayed, repeated and
reordered, connections break, and a worker dies: everything ends, in the right value or in an error
that says why; nothing runs twice; nothing is left behind on those who live."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.autograd.service import AutogradService
from lockstitch.errors import ConnectionLostError, OwnerDiedError, PeerDiedError
from lockstitch.testing.cluster import LocalCluster
from lockstitch.wire.messages import (
    Call,
    Gradient,
    Reply,
    Report,
)
from tests.cluster.mishaps import RAN, RETRIED, count, double, script, sum_of
from tests.unit.runtime.stage import Background, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = st.integers(0, 2)


MISHAPS = st.one_of(
    st.tuples(st.sampled_from(("drop", "reorder")), st.sampled_from(RETRIED), st.integers(1, 4)),
    st.tuples(
        st.sampled_from(("delay", "repeat")),
        st.sampled_from((Call, Reply, Gradient, Report, *RETRIED)),
        st.integers(1, 8),
    ),
)


DEATHS = st.tuples(
    st.just("die"),
    st.sampled_from((Call, Reply, Gradient, Report, *RETRIED)),
    st.integers(0, 12),
)


class Life(RuleBasedStateMachine):
    """Three workers, of which one may die: at some moment, or in the middle of something, as soon
    as a message of some kind has left."""

    @initialize(mishaps=st.lists(MISHAPS, max_size=5), deaths=st.lists(DEATHS, max_size=1))
    def begin(
        self, mishaps: list[tuple[str, type, int]], deaths: list[tuple[str, type, int]]
    ) -> None:
        RAN.clear()
        self.numbers: list[int] = []
        self.may_be_killed = not deaths
        self.faults = script([*mishaps, *deaths])
        self.cluster = LocalCluster(3, faults=self.faults).__enter__()

    @property
    def dead(self) -> int | None:
        """Who has died so far."""
        for rank in range(3):
            if self.cluster.is_dead(f"worker{rank}"):
                return rank
        return None

    def attempt(self, rank: int, function: Callable[[], object]) -> object:
        """What it returns, or None if it ends in an error that a mishap accounts for."""

        def run() -> object:
            with self.cluster[rank].active():
                return function()

        try:
            return Background(run).result(hint=repr(self.faults))
        except (PeerDiedError, OwnerDiedError):
            assert self.dead is not None
        except ConnectionLostError:
            assert self.was_reset
        return None

    was_reset = False

    @rule(sender=RANKS, to=RANKS)
    def call(self, sender: int, to: int) -> None:
        if sender == self.dead:
            return
        number = len(self.numbers)
        self.numbers.append(number)
        answer = self.attempt(
            sender, lambda: rpc.rpc_sync(f"worker{to}", count, (number,), timeout=0)
        )
        if answer is None:
            assert RAN[number] <= 1
        else:
            assert (answer, RAN[number]) == (number, 1)

    @rule(maker=RANKS, owner=RANKS, user=RANKS)
    def refer(self, maker: int, owner: int, user: int) -> None:
        if maker == self.dead:
            return

        def use() -> float:
            reference = rpc.remote(f"worker{owner}", torch.ones, (8,), timeout=0)
            return rpc.rpc_sync(f"worker{user}", sum_of, (reference,), timeout=0)

        assert self.attempt(maker, use) in (8.0, None)

    @rule(trainer=RANKS, to=RANKS)
    def differentiate(self, trainer: int, to: int) -> None:
        if trainer == self.dead:
            return

        def train() -> bool:
            with dist_autograd.context() as context:
                leaf = torch.ones(4, requires_grad=True)
                loss = rpc.rpc_sync(f"worker{to}", double, (leaf,), timeout=0).sum()
                dist_autograd.backward(context, [loss])
                return bool((dist_autograd.get_gradients(context)[leaf] == 2).all())

        assert self.attempt(trainer, train) in (True, None)

    @rule(one=RANKS, other=RANKS)
    def break_connections(self, one: int, other: int) -> None:
        self.was_reset = True
        self.cluster.reset(f"worker{one}", f"worker{other}")

    @precondition(lambda self: self.may_be_killed)
    @rule(rank=RANKS)
    def kill(self, rank: int) -> None:
        self.may_be_killed = False
        self.cluster.kill(f"worker{rank}")

    def teardown(self) -> None:
        try:
            living = [worker for worker in self.cluster if worker.info.id != self.dead]
            for worker in living:
                service = worker.service(AutogradService)
                wait_until(lambda worker=worker: worker.agent.is_at_rest(), repr(worker))
                wait_until(lambda service=service: not service.contexts, repr(service))
            assert all(times == 1 for times in RAN.values())
        finally:
            self.cluster.__exit__()


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=settings.default.max_examples * 2 // 5, stateful_step_count=12, deadline=None
)
