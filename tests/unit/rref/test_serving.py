from __future__ import annotations

from lockstitch.errors import RemoteError, RRefError
from lockstitch.ids import GlobalId, WorkerId
from lockstitch.wire.messages import Fetch, ForksDeleted, Payload, RemoteCall
from tests.unit.rref.fakes import FakeInvocation, FakeWorker

USER = WorkerId(1, 0)
REFERENCE, FORK = GlobalId(1, 0, 0), GlobalId(1, 0, 1)


def serve(worker: FakeWorker, message: object, caller: WorkerId = USER) -> FakeInvocation:
    invocation = FakeInvocation(worker.agent, caller, message)
    worker.agent.servers[type(message)](invocation)
    return invocation


def call(worker: FakeWorker, caller: WorkerId = USER, serial: int = 0) -> FakeInvocation:
    body = Payload(0, b"", ())
    message = RemoteCall(1, 0, None, None, None, REFERENCE, FORK, serial, body)
    return serve(worker, message, caller)


def fetch(worker: FakeWorker, serial: int = 0) -> FakeInvocation:
    return serve(worker, Fetch(2, REFERENCE, FORK, serial, None, None))


def test_the_caller_of_remote_hears_only_that_it_is_done(worker):
    making = call(worker)
    assert making.answers == []
    making.then([1, 2], None)
    assert making.answers == [None]
    assert fetch(worker).answers == [[1, 2]]


def test_a_fetch_is_parked_until_the_value_is_there(worker):
    making, waiting = call(worker), fetch(worker)
    assert waiting.answers == []
    assert worker.agent.running_requests == {waiting}
    assert waiting.is_parked
    making.then(7, None)
    assert waiting.answers == [7]
    assert worker.agent.running_requests == set()


def test_a_fetch_may_come_before_its_call(worker):
    waiting = fetch(worker)
    call(worker).then(7, None)
    assert waiting.answers == [7]


def test_an_exception_is_kept_as_the_outcome(worker):
    making = call(worker)
    making.then(None, KeyError("no"))
    assert making.answers == ["KeyError: 'no'"]  # for who tells how calls end
    (error,) = fetch(worker).answers
    assert isinstance(error, KeyError)


def test_an_exit_is_kept_as_an_error_that_ends_nobody(worker):
    call(worker).then(None, SystemExit(1))
    (error,) = fetch(worker).answers
    assert isinstance(error, RemoteError)
    assert "SystemExit(1)" in str(error)


def test_a_call_is_run_once_and_never_after_its_deletion(worker):
    assert call(worker).then is not None
    again = call(worker)
    assert again.then is None
    assert again.is_discarded
    assert isinstance(again.answers[0], RRefError)
    deletion = ForksDeleted(0, 1, ((REFERENCE, FORK),))
    worker.agent.handlers[ForksDeleted](USER, deletion)
    assert call(worker).then is None
    (error,) = fetch(worker).answers
    assert isinstance(error, RRefError)


def test_a_call_to_oneself_is_not_counted(worker):
    value = worker.references._ledger.find_value(REFERENCE)
    call(worker, worker.id).then(5, None)
    assert value.get() == 5
    assert worker.references.statistics().owned == 0
