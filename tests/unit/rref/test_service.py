from __future__ import annotations

import pytest

from lockstitch.errors import (
    OwnerDiedError,
    PeerDiedError,
    RpcTimeoutError,
    RRefError,
    SerializationError,
)
from lockstitch.rref.events import Called
from lockstitch.rref.rref import RRef
from lockstitch.wire.messages import Fetch, RemoteCall, Stitch
from lockstitch.wire.pickling import pack
from tests.unit.rref.fakes import Wire


@pytest.fixture
def wire():
    wire = Wire()
    with wire:
        yield wire


@pytest.fixture
def workers(wire):
    return wire.workers


def answer(worker, value: object = None, error: BaseException | None = None) -> None:
    """Completes the oldest request of a worker."""
    _, _, future = worker.agent.requests.pop(0)
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def create(user, owner):
    """A confirmed reference of `user` to a value of `owner`."""
    rref = user.references.create_remote(owner.id, len, ([],))
    message = user.agent.requests[0][1]
    called = Called(user.id, message.reference, message.fork, message.serial)
    owner.references._ledger.claim(called).set("value")
    answer(user)
    return rref


# ---------------------------------------------------------------- remote()


def test_remote_sends_a_call_with_fresh_ids_and_a_claim(workers):
    user, owner, _ = workers
    rref = user.references.create_remote(owner.id, len, ([],))
    ((to, message, _),) = user.agent.requests
    assert to == owner.id
    assert isinstance(message, RemoteCall)
    assert (message.reference.counter, message.fork.counter, message.serial) == (0, 1, 0)
    assert not rref.confirmed_by_owner()
    assert user.references.debug_info() == {
        "num_owner_rrefs": "0",
        "num_pending_users": "1",
        "num_pending_futures": "1",
        "num_forks": "0",
    }
    answer(user)
    assert rref.confirmed_by_owner()
    assert user.references.statistics().creating == 0


def test_remote_to_oneself_takes_one_id_and_no_fork(workers):
    user = workers[0]
    rref = user.references.create_remote(user.id, len, ([],))
    assert rref.is_owner()
    assert user.references.own(1).reference.counter == 1
    assert user.references.statistics().pending == 0


def test_a_call_that_cannot_leave_raises_and_holds_nothing(workers):
    user, owner, _ = workers
    with pytest.raises(SerializationError, match="cannot pickle 'generator'"):
        user.references.create_remote(owner.id, len, (nothing_to_send(),))
    user.references.drain()
    assert user.references.statistics().used == 0
    assert user.references.statistics().pending == 0


def nothing_to_send():
    yield from ()


@pytest.mark.parametrize("to_oneself", [True, False])
def test_a_timeout_forbids_the_reference(workers, to_oneself):
    user = workers[0]
    owner = user if to_oneself else workers[1]
    rref = user.references.create_remote(owner.id, len, ([],))
    answer(user, error=RpcTimeoutError("RPC ran for more than"))
    for use in (rref.to_here, rref._serialize):
        with pytest.raises(RRefError, match=r"^RRef creation via rpc.remote\(\) timed out"):
            use()
    assert user.references.statistics().pending == 0


def test_the_death_of_the_owner_orphans_the_reference(workers):
    user, owner, _ = workers
    rref = user.references.create_remote(owner.id, len, ([],))
    user.agent.peers.lost.add(owner.id)
    answer(user, error=PeerDiedError("worker1"))
    with pytest.raises(OwnerDiedError):
        rref.to_here()


# ---------------------------------------------------------------- fetching


def test_a_fetch_names_fork_and_claim_and_settles_the_claim(workers):
    user, owner, _ = workers
    rref = user.references.create_remote(owner.id, len, ([],))
    user.agent.ask = answered_by("value", requests := [])
    assert rref.to_here() == "value"
    (fetch,) = requests
    assert isinstance(fetch, Fetch)
    assert (fetch.reference.counter, fetch.fork.counter, fetch.serial) == (0, 1, 0)
    assert rref.confirmed_by_owner()


def answered_by(value, requests):
    def ask(_to, build, _timeout):
        requests.append(build(1, None))
        if isinstance(value, BaseException):
            raise value
        return value

    return ask


def test_the_context_travels_with_a_fetch(workers):
    user, owner, _ = workers
    rref = create(user, owner)
    stitch = Stitch(5, None, (), ())
    user.agent.interceptor = InContext(stitch)
    user.agent.ask = answered_by("value", requests := [])
    rref.to_here()
    assert requests[0].stitch == stitch


class InContext:
    def __init__(self, stitch: Stitch) -> None:
        self.stitch = stitch

    def is_active(self) -> bool:
        return True

    def outgoing(self, _to, items) -> Stitch:
        assert list(items) == []
        return self.stitch


def test_a_fetch_from_a_dead_owner_says_that_the_value_is_gone(workers):
    user, owner, _ = workers
    rref = create(user, owner)
    user.agent.ask = answered_by(PeerDiedError("worker1"), [])
    user.agent.peers.lost.add(owner.id)
    with pytest.raises(OwnerDiedError, match="lost its value: worker 'worker1' died"):
        rref.to_here()


def test_the_death_of_somebody_else_is_passed_on_as_it_is(workers):
    user, owner, _ = workers
    rref = create(user, owner)
    user.agent.ask = answered_by(PeerDiedError("worker2"), [])
    with pytest.raises(PeerDiedError, match="worker2"):
        rref.to_here()
    assert rref.confirmed_by_owner()


# ---------------------------------------------------------------- references on their way


def test_user_to_user_waits_for_the_owner_then_tells_the_parent(wire, workers):
    user, owner, other = workers
    rref = create(user, owner)
    payload = user.send_value([rref], other)
    assert user.references.statistics().under_way == 1
    (received,), unconfirmed = other.receive_value(payload, user)
    assert [each.is_confirmed() for each in unconfirmed] == [False]
    assert wire.deliver() == ["ForkRequest", "ForkAccept", "ChildAccept", "ChildNoted"]
    assert received.confirmed_by_owner()
    assert user.references.statistics().under_way == 0
    assert owner.references.statistics().forks == 2


def test_owner_to_user_needs_no_message(wire, workers):
    owner, user, _ = workers
    rref = RRef._of_value(owner.references, owner.references.own(3))
    (received,), unconfirmed = user.receive_value(owner.send_value([rref], user), owner)
    assert unconfirmed[0].is_confirmed()
    assert wire.deliver() == []
    assert received.owner() == owner.info


def test_user_to_owner_finds_the_value(wire, workers):
    user, owner, _ = workers
    rref = create(user, owner)
    (received,), unconfirmed = owner.receive_value(user.send_value([rref], owner), user)
    assert received.local_value() == "value"
    assert unconfirmed == []
    assert wire.deliver() == ["ChildAccept", "ChildNoted"]
    assert owner.references.statistics().forks == 1


def test_a_request_to_the_owner_lends_the_reference_and_counts_nothing(wire, workers):
    user, owner, _ = workers
    rref = create(user, owner)
    kept: list[object] = []
    payload, _ = pack((rref, 1), user.pickling, owner.id, kept)
    assert kept == [rref], "it must outlive the request"
    (received, _one), unconfirmed = owner.receive_value(payload, user)
    assert received.is_owner()
    assert received.local_value() == "value"
    assert unconfirmed == []
    assert wire.deliver() == []
    assert user.references.statistics().under_way == 0


def test_a_lent_reference_claims_the_fork_before_the_call_that_makes_the_value(workers):
    user, owner, _ = workers
    rref = user.references.create_remote(owner.id, len, ([],))
    payload, _ = pack((rref,), user.pickling, owner.id, [])
    (received,), _ = owner.receive_value(payload, user)
    assert owner.references.statistics().forks == 1
    assert not received._value.is_done
    message = user.agent.requests[0][1]
    called = Called(user.id, message.reference, message.fork, message.serial)
    owner.references._ledger.claim(called).set("value")
    assert received.local_value() == "value"


def test_a_lent_reference_that_comes_after_its_deletion_has_no_value(wire, workers):
    user, owner, _ = workers
    rref = create(user, owner)
    payload, _ = pack((rref,), user.pickling, owner.id, kept := [])
    user.references._finalizer_queue.close()  # what is dropped waits for drain
    user.references._finalizer_queue._is_over = False
    kept.clear()
    del rref
    user.references.drain()
    user.references._finalizer_queue._is_over = True
    wire.deliver()
    (received,), _ = owner.receive_value(payload, user)
    with pytest.raises(RRefError, match="was deleted before"):
        received.local_value()
    assert owner.references.statistics().owned == 0


def test_a_deleted_reference_cannot_be_lent(workers):
    user, owner, _ = workers
    rref = create(user, owner)
    rref._fork.delete()
    with pytest.raises(RRefError, match="Cannot call fork an UserRRef after deletion"):
        pack((rref,), user.pickling, owner.id, [])


def test_to_others_than_the_owner_nothing_is_lent(workers):
    user, owner, other = workers
    rref = create(user, owner)
    pack((rref,), user.pickling, other.id, kept := [])
    assert rref not in kept
    assert user.references.statistics().under_way == 1
    (take_back,) = kept  # should the request never leave
    take_back()
    assert user.references.statistics().under_way == 0


def test_owner_to_itself_holds_the_value_on_the_way(workers):
    owner = workers[0]
    rref = RRef._of_value(owner.references, owner.references.own([3]))
    payload = owner.send_value([rref], owner)
    del rref
    assert owner.references.statistics().forks == 1
    (received,), _ = owner.receive_value(payload, owner)
    assert received.local_value() == [3]
    assert owner.references.statistics().forks == 0


# ---------------------------------------------------------------- letting go


def test_dropped_references_are_deleted_in_one_batch(wire, workers):
    user, owner, _ = workers
    references = [create(user, owner) for _ in range(3)]
    user.references._finalizer_queue.close()  # what is dropped waits for drain
    user.references._finalizer_queue._is_over = False
    references.clear()
    user.references.drain()
    user.references._finalizer_queue._is_over = True
    assert wire.deliver().count("ForksDeleted") == 1
    assert owner.references.statistics().owned == 0


def test_deleting_all_users_gives_up_what_is_still_held(wire, workers):
    user, owner, _ = workers
    rref = create(user, owner)
    user.agent.send = lambda to, message: (
        user.agent.sent.append((to, message)),
        wire.deliver(),
    )
    assert user.references.delete_all_users(10)
    assert owner.references.statistics().owned == 0
    with pytest.raises(RRefError, match=r"Cannot call to_here\(\) on it after deletion\."):
        rref.to_here()


def test_leaks_are_an_error(workers):
    owner, user, _ = workers
    owner.references.check_leaks()
    rref = RRef._of_value(owner.references, owner.references.own(3))
    owner.send_value([rref], user)
    with pytest.raises(RRefError, match="Leaking RRef"):
        owner.references.check_leaks()


def test_the_service_tells_what_it_holds(workers):
    user, owner, _ = workers
    rref = create(user, owner)
    assert repr(user.references) == (
        "<ReferenceService of 'worker0' · 0 values, 0 forks · 1 used, 0 pending>"
    )
    assert repr(owner.references) == (
        "<ReferenceService of 'worker1' · 1 values, 1 forks · 0 used, 0 pending>"
    )
    assert rref.owner_name() == "worker1"
