"""The scenarios of the protocol, one message at a time, each with its mishaps."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from lockstitch.ids import GlobalId, WorkerId
from lockstitch.rref.dead_workers import GRACE_SECONDS
from lockstitch.rref.events import (
    DIRECT,
    Abandoned,
    Arrived,
    Asked,
    Barren,
    Begin,
    Called,
    CameHome,
    Confirm,
    Created,
    Dropped,
    Failed,
    Forked,
    Free,
    Hold,
    Keep,
    Orphan,
    Received,
    Send,
    Settled,
    Shared,
    Tick,
    Withdrawn,
    WorkerLost,
)
from lockstitch.rref.lifetime import MAX_BATCH, OwnerSide, State, UserSide
from lockstitch.wire.messages import (
    ChildAccept,
    ChildNoted,
    DeletionsNoted,
    ForkAccept,
    ForkRequest,
    ForksDeleted,
)
from tests.unit.wire.interrupts import Interrupter, interrupted, strike_everywhere

OWNER, USER, OTHER = WorkerId(0, 0), WorkerId(1, 0), WorkerId(2, 0)
REFERENCE = GlobalId(1, 0, 0)
FORK, CHILD, GRANDCHILD = GlobalId(1, 0, 1), GlobalId(1, 0, 2), GlobalId(2, 0, 0)
HOMEMADE = GlobalId(0, 0, 0)


def deletion(batch: int, floor: int, *forks: GlobalId) -> ForksDeleted:
    return ForksDeleted(batch, floor, tuple((REFERENCE, fork) for fork in forks))


def confirmed_user() -> UserSide:
    """A user whose `remote()` was answered."""
    user = UserSide()
    user.handle(Created(REFERENCE, FORK, OWNER))
    assert user.handle(Settled(FORK)) == [Confirm(FORK)]
    return user


# ---------------------------------------------------------------- owner creates, owner → user


def test_owner_keeps_a_shared_value_until_the_last_fork_is_deleted():
    owner = OwnerSide()
    assert owner.handle(Shared(HOMEMADE, FORK, USER)) == [Keep(HOMEMADE)]
    assert owner.handle(Shared(HOMEMADE, CHILD, OTHER)) == []
    first, second = (ForksDeleted(0, 0, ((HOMEMADE, fork),)) for fork in (FORK, CHILD))
    assert owner.handle(Arrived(USER, first)) == [Send(USER, DeletionsNoted(0))]
    assert owner.handle(Arrived(OTHER, second)) == [
        Free(HOMEMADE),
        Send(OTHER, DeletionsNoted(0)),
    ]
    assert owner.forks == {}


def test_a_fork_made_by_the_owner_is_confirmed_on_arrival():
    user = UserSide()
    assert user.handle(Received(REFERENCE, FORK, OWNER, OWNER)) == [Confirm(FORK)]
    assert user.serial(FORK) == DIRECT
    assert user.handle(Dropped((FORK,))) == [Send(OWNER, deletion(0, 0, FORK))]


def test_a_message_that_never_left_counts_for_nothing():
    owner = OwnerSide()
    owner.handle(Shared(REFERENCE, FORK, USER))
    assert owner.handle(Withdrawn(REFERENCE, FORK)) == [Free(REFERENCE)]


def test_nothing_is_kept_for_a_worker_that_is_dead_already():
    owner = OwnerSide()
    owner.handle(WorkerLost(USER))
    assert owner.handle(Shared(REFERENCE, FORK, USER)) == []


# ---------------------------------------------------------------- remote()


def test_a_remote_call_is_begun_once():
    owner = OwnerSide()
    assert owner.handle(Called(USER, REFERENCE, FORK, 0)) == [Keep(REFERENCE), Begin(REFERENCE)]
    assert owner.handle(Called(USER, REFERENCE, FORK, 0)) == []


def test_a_remote_call_that_is_overtaken_by_the_fetch_still_begins():
    owner = OwnerSide()
    assert owner.handle(Asked(USER, REFERENCE, FORK, 0)) == [Keep(REFERENCE)]
    assert owner.handle(Called(USER, REFERENCE, FORK, 0)) == [Begin(REFERENCE)]


def test_a_claim_without_answer_is_repeated_as_a_fork_request():
    user = UserSide()
    assert user.handle(Created(REFERENCE, FORK, OWNER)) == []
    assert user.handle(Tick(0.0)) == []
    assert user.handle(Tick(1.0)) == [Send(OWNER, ForkRequest(REFERENCE, FORK, 0))]
    assert user.handle(Arrived(OWNER, ForkAccept(FORK))) == [Confirm(FORK)]
    assert user.handle(Tick(100.0)) == []


def test_a_timed_out_call_that_comes_after_its_deletion_is_refused():
    owner, user = OwnerSide(), UserSide()
    user.handle(Created(REFERENCE, FORK, OWNER))
    assert user.handle(Abandoned(FORK)) == []
    assert user.state(FORK) is State.ABANDONED
    (send,) = user.handle(Dropped((FORK,)))
    owner.handle(Arrived(USER, send.message))
    assert owner.handle(Called(USER, REFERENCE, FORK, 0)) == []
    assert owner.handle(Asked(USER, REFERENCE, FORK, 0)) == []
    assert owner.forks == {}


def test_a_timed_out_call_that_came_first_is_counted_until_its_deletion():
    owner, user = OwnerSide(), UserSide()
    user.handle(Created(REFERENCE, FORK, OWNER))
    owner.handle(Called(USER, REFERENCE, FORK, 0))
    user.handle(Abandoned(FORK))
    (send,) = user.handle(Dropped((FORK,)))
    assert Free(REFERENCE) in owner.handle(Arrived(USER, send.message))


def test_who_waits_for_a_value_whose_call_was_lost_is_told():
    owner, user = OwnerSide(), UserSide()
    user.handle(Created(REFERENCE, FORK, OWNER))
    owner.handle(Asked(USER, REFERENCE, FORK, 0))
    owner.handle(Arrived(OTHER, ForkRequest(REFERENCE, CHILD, 0)))
    (send,) = user.handle(Failed(FORK))  # its objects may be held for long
    assert user.handle(Dropped((FORK,))) == []
    noted = Send(USER, DeletionsNoted(0))
    assert owner.handle(Arrived(USER, send.message)) == [Barren(REFERENCE), noted]
    assert owner.handle(Called(USER, REFERENCE, FORK, 0)) == []
    assert owner.handle(Arrived(USER, send.message)) == [Barren(REFERENCE), noted]  # again


def test_a_value_that_has_begun_is_not_given_up_with_its_caller():
    owner, user = OwnerSide(), UserSide()
    user.handle(Created(REFERENCE, FORK, OWNER))
    owner.handle(Called(USER, REFERENCE, FORK, 0))
    owner.handle(Arrived(OTHER, ForkRequest(REFERENCE, CHILD, 0)))
    (send,) = user.handle(Failed(FORK))
    assert owner.handle(Arrived(USER, send.message)) == [Send(USER, DeletionsNoted(0))]


def test_a_fork_that_failed_leaves_when_its_child_is_accepted():
    user = confirmed_user()
    user.handle(Forked(FORK, CHILD, OTHER))
    assert user.handle(Failed(FORK)) == []
    first, second = user.handle(Arrived(OTHER, ChildAccept(CHILD)))
    assert {first.message, second.message} == {deletion(0, 1, FORK), ChildNoted(CHILD)}


# ---------------------------------------------------------------- user → user


def test_g2_a_parent_is_not_deleted_before_its_child_is_accepted():
    user = confirmed_user()
    user.handle(Forked(FORK, CHILD, OTHER))
    assert user.handle(Dropped((FORK,))) == []
    assert user.handle(Arrived(OTHER, ChildAccept(CHILD))) == [
        Send(OWNER, deletion(0, 1, FORK)),
        Send(OTHER, ChildNoted(CHILD)),
    ]


def test_a_child_tells_the_owner_then_its_parent():
    child = UserSide()
    assert child.handle(Received(REFERENCE, CHILD, OWNER, USER)) == [
        Send(OWNER, ForkRequest(REFERENCE, CHILD, 0))
    ]
    assert child.handle(Arrived(OWNER, ForkAccept(CHILD))) == [
        Confirm(CHILD),
        Send(USER, ChildAccept(CHILD)),
    ]
    child.handle(Arrived(USER, ChildNoted(CHILD)))
    child.handle(Tick(0.0))
    assert child.handle(Tick(100.0)) == []


def test_lost_messages_between_child_owner_and_parent_are_sent_again():
    child = UserSide()
    request = child.handle(Received(REFERENCE, CHILD, OWNER, USER))
    child.handle(Tick(0.0))
    assert child.handle(Tick(1.0)) == request
    child.handle(Arrived(OWNER, ForkAccept(CHILD)))
    child.handle(Tick(2.0))
    assert child.handle(Tick(3.0)) == [Send(USER, ChildAccept(CHILD))]


def test_a_repeated_fork_request_is_answered_again_and_counted_once():
    owner = OwnerSide()
    request = Arrived(OTHER, ForkRequest(REFERENCE, CHILD, 0))
    assert owner.handle(request) == [Keep(REFERENCE), Send(OTHER, ForkAccept(CHILD))]
    assert owner.handle(request) == [Send(OTHER, ForkAccept(CHILD))]
    assert Free(REFERENCE) in owner.handle(Arrived(OTHER, deletion(0, 1, CHILD)))


def test_a_fork_request_repeated_after_the_deletion_does_not_bring_the_fork_back():
    owner = OwnerSide()
    request = Arrived(OTHER, ForkRequest(REFERENCE, CHILD, 0))
    owner.handle(request)
    owner.handle(Arrived(OTHER, deletion(0, 1, CHILD)))
    assert owner.handle(request) == []
    assert owner.forks == {}


def test_repeated_acceptances_are_noted_again_and_change_nothing():
    user = confirmed_user()
    user.handle(Forked(FORK, CHILD, OTHER))
    accept = Arrived(OTHER, ChildAccept(CHILD))
    user.handle(accept)
    assert user.handle(accept) == [Send(OTHER, ChildNoted(CHILD))]
    assert user.handle(Arrived(OWNER, ForkAccept(FORK))) == [Confirm(FORK)]


def test_a_fork_of_a_fork_keeps_the_child_that_made_it():
    child = UserSide()
    child.handle(Received(REFERENCE, CHILD, OWNER, USER))
    child.handle(Forked(CHILD, GRANDCHILD, OTHER))
    assert child.handle(Dropped((CHILD,))) == []
    assert child.handle(Arrived(OWNER, ForkAccept(CHILD))) == [
        Confirm(CHILD),
        Send(USER, ChildAccept(CHILD)),
    ]
    assert Send(OWNER, deletion(0, 1, CHILD)) in child.handle(
        Arrived(OTHER, ChildAccept(GRANDCHILD))
    )


def test_two_objects_for_one_fork_are_one_hold():
    user = UserSide()
    user.handle(Received(REFERENCE, FORK, OWNER, OWNER))
    assert user.handle(Received(REFERENCE, FORK, OWNER, OWNER)) == [Confirm(FORK)]
    assert user.handle(Dropped((FORK,))) == []
    assert user.handle(Dropped((FORK,))) == [Send(OWNER, deletion(0, 0, FORK))]


# ---------------------------------------------------------------- user → owner


def test_the_owner_accepts_a_reference_that_came_home_until_that_is_noted():
    at_home = UserSide()
    accept = Send(USER, ChildAccept(CHILD))
    assert at_home.handle(CameHome(CHILD, USER)) == [accept]
    at_home.handle(Tick(0.0))
    assert at_home.handle(Tick(1.0)) == [accept]
    at_home.handle(Arrived(USER, ChildNoted(CHILD)))
    assert at_home.is_empty


def test_a_child_that_was_never_sent_frees_its_parent():
    user = confirmed_user()
    user.handle(Forked(FORK, CHILD, OTHER))
    user.handle(Dropped((FORK,)))
    assert user.handle(Withdrawn(REFERENCE, CHILD)) == [Send(OWNER, deletion(0, 1, FORK))]


# ---------------------------------------------------------------- deletion


def test_g1_a_deletion_is_repeated_until_it_is_noted():
    user = confirmed_user()
    sent = user.handle(Dropped((FORK,)))
    user.handle(Tick(0.0))
    assert user.handle(Tick(1.0)) == sent
    assert user.handle(Arrived(OWNER, DeletionsNoted(0))) == []
    assert user.is_empty
    assert user.handle(Tick(100.0)) == []


def test_a_deletion_before_confirmation_waits_for_it():
    user = UserSide()
    user.handle(Created(REFERENCE, FORK, OWNER))
    assert user.handle(Dropped((FORK,))) == []
    assert user.handle(Settled(FORK)) == [Confirm(FORK), Send(OWNER, deletion(0, 1, FORK))]


def test_a_deletion_waits_until_older_claims_are_settled():
    user = UserSide()
    user.handle(Created(REFERENCE, FORK, OWNER))
    user.handle(Received(REFERENCE, CHILD, OWNER, USER))
    user.handle(Arrived(OWNER, ForkAccept(CHILD)))
    assert user.handle(Dropped((CHILD,))) == []
    assert Send(OWNER, deletion(0, 2, CHILD)) in user.handle(Settled(FORK))


def test_deletions_are_batched_by_owner():
    user = UserSide()
    forks = tuple(GlobalId(0, 0, n) for n in range(5))
    foreign = GlobalId(2, 0, 0)
    for fork in forks:
        user.handle(Received(REFERENCE, fork, OWNER, OWNER))
    user.handle(Received(REFERENCE, foreign, OTHER, OTHER))
    assert user.handle(Dropped((*forks, foreign))) == [
        Send(OWNER, deletion(0, 0, *forks)),
        Send(OTHER, deletion(1, 0, foreign)),
    ]


def test_what_is_dropped_while_a_batch_is_on_its_way_goes_with_the_next():
    user = UserSide()
    forks = [GlobalId(0, 0, n) for n in range(3)]
    for fork in forks:
        user.handle(Received(REFERENCE, fork, OWNER, OWNER))
    user.handle(Dropped((forks[0],)))
    assert user.handle(Dropped((forks[1],))) == []
    assert user.handle(Dropped((forks[2],))) == []
    assert user.handle(Arrived(OWNER, DeletionsNoted(0))) == [
        Send(OWNER, deletion(1, 0, forks[1], forks[2]))
    ]
    assert user.handle(Arrived(OWNER, DeletionsNoted(0))) == [], "a repetition of the first note"


def test_a_batch_has_a_limit():
    user = UserSide()
    forks = tuple(GlobalId(0, 0, n) for n in range(MAX_BATCH + 1))
    for fork in forks:
        user.handle(Received(REFERENCE, fork, OWNER, OWNER))
    (first,) = user.handle(Dropped(forks))
    assert len(first.message.forks) == MAX_BATCH
    (second,) = user.handle(Arrived(OWNER, DeletionsNoted(first.message.batch)))
    assert len(second.message.forks) == 1


def test_dropping_what_is_gone_is_harmless():
    assert UserSide().handle(Dropped((FORK,))) == []


# ---------------------------------------------------------------- deaths


def test_g3_the_forks_of_a_dead_user_are_reclaimed_after_the_grace():
    owner = OwnerSide()
    owner.handle(Shared(REFERENCE, FORK, USER))
    assert owner.handle(WorkerLost(USER)) == []
    owner.handle(Tick(0.0))
    assert owner.handle(Tick(GRACE_SECONDS - 0.1)) == []
    assert owner.handle(Tick(GRACE_SECONDS)) == [Free(REFERENCE)]


def test_a_fork_that_the_dead_user_had_passed_on_keeps_the_value():
    owner = OwnerSide()
    owner.handle(Shared(HOMEMADE, FORK, USER))
    owner.handle(WorkerLost(USER))
    owner.handle(Tick(0.0))
    owner.handle(Arrived(OTHER, ForkRequest(HOMEMADE, CHILD, 0)))
    assert owner.handle(Tick(GRACE_SECONDS)) == []


def test_what_still_arrives_from_the_dead_is_not_counted():
    owner = OwnerSide()
    owner.handle(WorkerLost(USER))
    assert owner.handle(Arrived(USER, ForkRequest(REFERENCE, FORK, 0))) == []
    assert owner.handle(Called(USER, REFERENCE, FORK, 0)) == []
    assert owner.forks == {}


def test_a_replacement_of_a_dead_user_begins_anew():
    owner = OwnerSide()
    owner.handle(Arrived(USER, deletion(7, 100)))
    owner.handle(WorkerLost(USER))
    reborn = WorkerId(USER.rank, USER.generation + 1)
    assert Begin(REFERENCE) in owner.handle(Called(reborn, REFERENCE, FORK, 0))


def test_a_value_whose_call_died_with_its_caller_will_never_come():
    owner = OwnerSide()
    owner.handle(Arrived(OTHER, ForkRequest(REFERENCE, CHILD, 0)))
    owner.handle(WorkerLost(USER))
    owner.handle(Tick(0.0))
    assert owner.handle(Tick(GRACE_SECONDS)) == [Barren(REFERENCE)]


def test_g4_references_to_a_dead_owner_are_orphaned_at_once():
    user = confirmed_user()
    assert user.handle(WorkerLost(OWNER)) == [Orphan(FORK)]
    assert user.handle(Dropped((FORK,))) == []
    assert user.is_empty


def test_a_reference_that_arrives_after_its_owner_died_is_an_orphan():
    user = UserSide()
    user.handle(WorkerLost(OWNER))
    assert user.handle(Received(REFERENCE, CHILD, OWNER, OTHER)) == [
        Orphan(CHILD),
        Send(OTHER, ChildAccept(CHILD)),
    ]


def test_a_child_whose_owner_died_releases_its_parent_who_may_not_have_seen_that():
    child = UserSide()
    child.handle(Received(REFERENCE, CHILD, OWNER, USER))
    assert child.handle(WorkerLost(OWNER)) == [Orphan(CHILD), Send(USER, ChildAccept(CHILD))]


def test_a_remote_call_to_a_dead_worker_makes_an_orphan():
    user = UserSide()
    user.handle(WorkerLost(OWNER))
    assert user.handle(Created(REFERENCE, FORK, OWNER)) == [Orphan(FORK)]
    assert user.is_empty


def test_a_parent_waits_for_a_child_at_a_dead_worker_no_longer_than_the_grace():
    user = confirmed_user()
    user.handle(Forked(FORK, CHILD, OTHER))
    user.handle(Dropped((FORK,)))
    user.handle(WorkerLost(OTHER))
    assert user.handle(Tick(0.0)) == []
    assert user.handle(Tick(GRACE_SECONDS)) == [Send(OWNER, deletion(0, 1, FORK))]


def test_nothing_is_sent_to_the_dead_again():
    child = UserSide()
    child.handle(Received(REFERENCE, CHILD, OWNER, USER))
    child.handle(Arrived(OWNER, ForkAccept(CHILD)))
    child.handle(WorkerLost(USER))
    child.handle(Tick(0.0))
    assert child.handle(Tick(100.0)) == []


# ---------------------------------------------------------------- Ctrl-C


def test_an_interrupt_at_the_very_end_of_a_deletion_leaves_no_empty_table():
    user = confirmed_user()
    user.handle(Dropped((FORK,)))
    user._leaving[OWNER] = {}  # as the last turn of the loop leaves it
    user.handle(Arrived(OWNER, DeletionsNoted(0)))
    assert user.is_empty


FROM_OWNER = Received(REFERENCE, FORK, OWNER, OWNER, Hold(FORK, counts=False))
FROM_PARENT = Received(REFERENCE, CHILD, OWNER, OTHER, Hold(CHILD, counts=False))


@pytest.mark.parametrize(
    "events",
    [
        (Created(REFERENCE, FORK, OWNER), Settled(FORK)),
        (Created(REFERENCE, FORK, OWNER), Failed(FORK)),
        (FROM_OWNER, Dropped((FORK,))),
        (FROM_PARENT, Received(REFERENCE, CHILD, OWNER, OTHER, Hold(CHILD, counts=False))),
        (FROM_PARENT, Settled(CHILD), Dropped((CHILD,))),
        (FROM_OWNER, Forked(FORK, CHILD, OTHER), Dropped((FORK,)), Withdrawn(REFERENCE, CHILD)),
        (CameHome(CHILD, OTHER),),
    ],
)
def test_a_user_told_once_more_after_an_interrupt_is_where_it_would_have_been(events: Any) -> None:
    assert struck_at_the_last(UserSide, events) > 2


@pytest.mark.parametrize(
    "events",
    [
        (Shared(REFERENCE, FORK, USER),),
        (Shared(REFERENCE, FORK, USER), Shared(REFERENCE, CHILD, OTHER)),
        (Shared(REFERENCE, FORK, USER), Withdrawn(REFERENCE, FORK)),
    ],
)
def test_an_owner_does_so_too(events: Any) -> None:
    assert struck_at_the_last(OwnerSide, events) > 2


def struck_at_the_last(table: Any, events: Any) -> int:
    """Strikes the last event at each point, and tells it once more."""

    def told(number: int | None) -> tuple[Any, Any, Interrupter | None]:
        *first, last = copy.deepcopy(events)
        side, striker = table(), None
        for event in first:
            side.handle(event)
        if number is not None:
            modules = "lockstitch.rref.lifetime.user_side", "lockstitch.rref.lifetime.owner_side"
            with interrupted(number, *modules, "lockstitch.rref.outbox") as striker:
                side.handle(last)
            if striker.remaining > 0:
                return side, [], striker
        return side, side.handle(last), striker

    expected, todo, _ = told(None)

    def attempt(number: int) -> Interrupter:
        side, again, striker = told(number)
        assert striker is not None
        assert state_of(side) == state_of(expected), striker.where
        if striker.remaining <= 0:  # what is sent until it is answered may have to wait for that
            missing = [each for each in todo if each not in again]
            assert all(isinstance(each, Send) for each in missing), striker.where
        return striker

    return strike_everywhere(attempt)


def state_of(side: Any) -> Any:
    return {
        name: sorted(map(repr, value._letters.items())) if name == "_outbox" else repr(value)
        for name, value in vars(side).items()
        if name not in {"_is_again", "_latest", "_dropping", "_dead", "_mourning"}
    }
