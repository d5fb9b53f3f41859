from __future__ import annotations

import gc
import weakref

import pytest

from lockstitch.errors import PeerDiedError, RRefError
from lockstitch.ids import GlobalId, WorkerId, WorkerInfo
from lockstitch.rref.events import Asked, Called, Created, Dropped, Received, Shared, Withdrawn
from lockstitch.rref.ledger import Ledger
from lockstitch.rref.values import OwnedValue
from lockstitch.wire.messages import (
    DeletionsNoted,
    ForkAccept,
    ForkRequest,
    ForksDeleted,
)
from tests.unit.wire.interrupts import Interrupter, interrupted, strike_everywhere

ME, OTHER, OWNER = WorkerId(0, 0), WorkerId(1, 0), WorkerInfo("worker2", 2)
MINE, FORK = GlobalId(0, 0, 0), GlobalId(0, 0, 1)
THEIRS = GlobalId(1, 0, 0)


@pytest.fixture
def ledger(worker) -> Ledger:
    return worker.references._ledger


def owned(ledger: Ledger, content: object = 1) -> OwnedValue:
    value = OwnedValue(MINE)
    value.set(content)
    ledger.add_value(value)
    return value


def test_a_value_lives_while_it_is_shared(ledger):
    value = weakref.ref(owned(ledger))
    assert value() is None, "nobody holds it"
    value = owned(ledger)
    ledger.tell_owner(Shared(MINE, FORK, OTHER))
    value = weakref.ref(value)
    assert value().get() == 1
    ledger.arrived_at_owner(OTHER, ForksDeleted(0, 0, ((MINE, FORK),)))
    assert value() is None


def test_values_are_let_go_outside_the_lock(ledger):
    class Talkative:
        def __del__(self) -> None:
            seen.append(ledger.statistics().owned)

    seen: list[int] = []
    value = owned(ledger, Talkative())
    ledger.tell_owner(Shared(MINE, FORK, OTHER))
    del value
    ledger.tell_owner(Withdrawn(MINE, FORK))
    assert seen == [0]


def test_a_finalizer_that_uses_references_may_run_inside(ledger):
    class Finalized:
        def __del__(self) -> None:
            seen.append(ledger.statistics())

    seen: list[object] = []
    with ledger._lock:  # as when the garbage collector runs in the middle of a decision
        Finalized()
    assert len(seen) == 1


def test_a_value_that_is_gone_is_not_waited_for(ledger):
    with pytest.raises(RRefError, match="is gone"):
        ledger.find_value(MINE).get()
    assert not ledger.find_value(THEIRS).is_done, "somebody else's call may still bring it"


def test_a_claimed_value_is_there_for_calls_once_and_for_fetches_always(ledger):
    called, asked = Called(OTHER, THEIRS, FORK, 0), Asked(OTHER, THEIRS, FORK, 0)
    value = ledger.claim(called)
    assert value is not None
    assert ledger.claim(called) is None
    assert ledger.claim(asked) is value


def test_a_value_that_will_never_come_says_so(ledger):
    fetched = ledger.claim(Asked(OWNER.worker, THEIRS, FORK, 0))
    ledger.worker_lost(OTHER)
    ledger.tick(0.0)
    ledger.tick(100.0)
    with pytest.raises(RRefError, match="got lost, or its caller died"):
        fetched.get()


def test_confirmation_reaches_the_fork(ledger, worker):
    fork = ledger.fork(THEIRS, FORK, OWNER)
    ledger.tell_user(Received(THEIRS, FORK, OWNER.worker, OTHER))
    assert worker.agent.sent == [(OWNER.worker, ForkRequest(THEIRS, FORK, 0))]
    assert not fork.is_confirmed()
    ledger.arrived_at_user(OWNER.worker, ForkAccept(FORK))
    assert fork.is_confirmed()


def test_a_confirmation_that_is_struck_by_an_interrupt_is_not_lost(worker):
    modules = "lockstitch.rref.ledger", "lockstitch.rref.lifetime.user_side"

    def attempt(number: int) -> Interrupter:
        ledger, heard = Ledger(worker), []
        fork = ledger.fork(THEIRS, FORK, OWNER)
        ledger.tell_user(Received(THEIRS, FORK, OWNER.worker, OTHER))
        fork.when_confirmed(heard.append)
        del fork
        with interrupted(number, *modules) as interrupter:
            ledger.arrived_at_user(OWNER.worker, ForkAccept(FORK))
        if interrupter.remaining <= 0:  # the reader delivers it once more
            ledger.arrived_at_user(OWNER.worker, ForkAccept(FORK))
        assert heard == [None], interrupter.where
        return interrupter

    assert strike_everywhere(attempt) > 10


def test_what_the_program_drops_is_counted_once_where_an_interrupt_strikes(worker):
    modules = "lockstitch.rref.ledger", "lockstitch.rref.lifetime.user_side"

    def attempt(number: int) -> Interrupter:
        ledger = Ledger(worker)
        _fork = ledger.fork(THEIRS, FORK, OWNER)
        for _ in range(2):
            ledger.tell_user(Received(THEIRS, FORK, OWNER.worker, OTHER))
        with interrupted(number, *modules) as interrupter:
            ledger.tell_user(Dropped((FORK,)))
        assert ledger.statistics().used >= 1, interrupter.where
        return interrupter

    assert strike_everywhere(attempt) > 10


def test_what_waits_for_a_confirmation_is_kept_alive_by_it(ledger):
    heard = []
    fork = ledger.fork(THEIRS, FORK, OWNER)
    ledger.tell_user(Received(THEIRS, FORK, OWNER.worker, OTHER))
    fork.when_confirmed(heard.append)
    del fork
    gc.collect()
    ledger.arrived_at_user(OWNER.worker, ForkAccept(FORK))
    assert heard == [None]


def test_ticks_are_wanted_only_while_something_is_unanswered(ledger, worker):
    assert worker.agent.later == []
    ledger.tell_user(Created(THEIRS, FORK, OWNER.worker))
    assert len(worker.agent.later) == 1
    ledger.arrived_at_user(OWNER.worker, ForkAccept(FORK))
    worker.agent.later.pop()()
    assert worker.agent.later == []
    ledger.tell_user(Dropped((FORK,)))
    assert len(worker.agent.later) == 1
    worker.agent.later.pop()()
    worker.clock.advance(1.0)
    worker.agent.sent.clear()
    worker.agent.later.pop()()
    assert worker.agent.sent == [(OWNER.worker, ForksDeleted(0, 1, ((THEIRS, FORK),)))]
    ledger.arrived_at_user(OWNER.worker, DeletionsNoted(0))


def test_a_message_that_cannot_be_sent_is_noted_and_sent_again(ledger, worker):
    fork = ledger.fork(THEIRS, FORK, OWNER)
    worker.agent.failure = PeerDiedError("worker2")
    ledger.tell_user(Received(THEIRS, FORK, OWNER.worker, OTHER))
    assert worker.agent.sent == []
    assert "reference.unsent: ForkRequest" in worker.agent.notes[0]
    worker.agent.failure = None
    ledger.tick(0.0)
    ledger.tick(1.0)
    assert worker.agent.sent == [(OWNER.worker, ForkRequest(THEIRS, FORK, 0))]
    assert not fork.is_confirmed()


def test_waiting_ends_with_its_deadline(ledger, worker):
    assert ledger.wait_until_empty(worker.clock.now())
    ledger.tell_user(Created(THEIRS, FORK, OWNER.worker))
    assert not ledger.wait_until_settled(worker.clock.now())
    assert not ledger.wait_until_empty(worker.clock.now())


def test_leaks_name_reference_and_fork(ledger):
    value = owned(ledger)
    ledger.tell_owner(Shared(value.reference, FORK, OTHER))
    assert ledger.leaks() == [f"Leaking RRef {MINE} with fork Id {FORK}"]
