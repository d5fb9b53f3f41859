"""Any course of joins, leaves and deaths, with calls, references and backward passes between those
who are in, while what is said of it is lost, late, repeated or out of order: in the end all who
live see each other and nobody else, nothing has run twice, and nothing is held for the gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.autograd.service import AutogradService
from lockstitch.errors import OwnerDiedError, PeerDiedError
from lockstitch.rref.service import ReferenceService
from lockstitch.wire.messages import (
    MembershipAcknowledgement,
    MembershipNotice,
    MembershipQuery,
    Reply,
)
from tests.cluster.mishaps import RAN, RETRIED, count, double, script, sum_of
from tests.cluster.rpc.groups import LocalGroup, wait_until_all_see
from tests.unit.runtime.stage import Background, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("a", "b", "c", "d")
NEWS = (MembershipNotice, MembershipAcknowledgement, MembershipQuery)
WHICH = st.integers(0, 3)


MISHAPS = st.one_of(
    st.tuples(
        st.sampled_from(("drop", "reorder")),
        st.sampled_from((*NEWS, *RETRIED)),
        st.integers(1, 6),
    ),
    st.tuples(
        st.sampled_from(("delay", "repeat")),
        st.sampled_from((*NEWS, *RETRIED, Reply)),
        st.integers(1, 8),
    ),
)


class Coming(RuleBasedStateMachine):
    """Up to four workers, at least one of them always in."""

    @initialize(mishaps=st.lists(MISHAPS, max_size=4))
    def begin(self, mishaps: list[tuple[str, type, int]]) -> None:
        RAN.clear()
        self.numbers = 0
        self.somebody_went = False
        self.faults = script(mishaps)
        self.group = LocalGroup("a", "b", faults=self.faults).__enter__()
        self.by_store = set(self.group.workers.values())

    def name(self, which: int) -> str:
        """One of those who are in."""
        present = sorted(self.group.workers)
        return present[which % len(present)]

    def attempt(self, name: str, function: Callable[[], object]) -> object:
        """What it returns, or None if it ends in an error that somebody's going accounts for."""

        def run() -> object:
            with self.group[name].active():
                return function()

        try:
            return Background(run).result(hint=repr(self.faults))
        except (PeerDiedError, OwnerDiedError):
            assert self.somebody_went
            return None

    # ------------------------------------------------------------ who is in

    @precondition(lambda self: len(self.group.workers) < len(NAMES))
    @rule(through=st.one_of(st.none(), WHICH))
    def join(self, through: int | None) -> None:
        name = next(each for each in NAMES if each not in self.group.workers)
        # Where those who came by the store have all been killed, it need not know of the others.
        if self.by_store.isdisjoint(self.group.workers.values()):
            through = through or 0
        member = None if through is None else self.name(through)
        Background(lambda: self.group.join(name, through=member)).result(hint=repr(self.faults))
        if member is None:
            self.by_store.add(self.group[name])

    @precondition(lambda self: len(self.group.workers) > 1)
    @rule(which=WHICH)
    def leave(self, which: int) -> None:
        self.somebody_went = True
        Background(self.group.leave, self.name(which)).result(hint=repr(self.faults))

    @precondition(lambda self: len(self.group.workers) > 1)
    @rule(which=WHICH)
    def kill(self, which: int) -> None:
        self.somebody_went = True
        self.group.kill(self.name(which))

    # ------------------------------------------------------------ what they do

    @rule(caller=WHICH, to=WHICH)
    def call(self, caller: int, to: int) -> None:
        number = self.numbers = self.numbers + 1
        whom = self.group[self.name(to)].info
        answer = self.attempt(
            self.name(caller), lambda: rpc.rpc_sync(whom, count, (number,), timeout=0)
        )
        assert (answer, RAN[number]) == (number, 1) or (answer is None and RAN[number] <= 1)

    @rule(maker=WHICH, owner=WHICH, user=WHICH)
    def refer(self, maker: int, owner: int, user: int) -> None:
        whose, whom = self.group[self.name(owner)].info, self.group[self.name(user)].info

        def use() -> float:
            reference = rpc.remote(whose, torch.ones, (8,), timeout=0)
            return rpc.rpc_sync(whom, sum_of, (reference,), timeout=0)

        assert self.attempt(self.name(maker), use) in (8.0, None)

    @rule(trainer=WHICH, to=WHICH)
    def differentiate(self, trainer: int, to: int) -> None:
        whom = self.group[self.name(to)].info

        def train() -> bool:
            with dist_autograd.context() as context:
                leaf = torch.ones(4, requires_grad=True)
                loss = rpc.rpc_sync(whom, double, (leaf,), timeout=0).sum()
                dist_autograd.backward(context, [loss])
                return bool((dist_autograd.get_gradients(context)[leaf] == 2).all())

        assert self.attempt(self.name(trainer), train) in (True, None)

    def teardown(self) -> None:
        try:
            wait_until_all_see(self.group, *self.group.workers)
            for worker in self.group.workers.values():
                contexts = worker.service(AutogradService)
                references = worker.service(ReferenceService)
                wait_until(lambda worker=worker: worker.agent.is_at_rest(), repr(worker))
                wait_until(lambda contexts=contexts: not contexts.contexts, repr(contexts))
                wait_until(
                    lambda references=references: not references.statistics().owned,
                    f"{references!r} {self.faults!r}",
                )
            assert all(times == 1 for times in RAN.values())
        finally:
            self.group.__exit__()


TestComing = Coming.TestCase
TestComing.settings = settings(
    max_examples=settings.default.max_examples // 10, stateful_step_count=10, deadline=None
)
