"""What a participant tells its initiator."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from lockstitch.autograd import conductor as conductors
from lockstitch.autograd.conductor import LONG_WAIT_SECONDS, PassOptions, RemoteInitiator
from lockstitch.autograd.listening import Sleeper
from lockstitch.errors import ConnectionLostError, PeerDiedError
from lockstitch.ids import GlobalId, WorkerId
from lockstitch.runtime import remote_errors
from lockstitch.wire.messages import BackwardFailed, NeedParts, Report
from lockstitch.wire.messages.backward import FAST

INITIATOR = WorkerId(3, 1)
PASS = GlobalId(*INITIATOR, 8)


def distant(fast=False, dead=False):
    sent = []

    def send(to, message):
        if dead:
            raise PeerDiedError("worker3")
        sent.append((to, message))

    worker = SimpleNamespace(name="worker1", agent=SimpleNamespace(send=send))
    return RemoteInitiator(worker, 5, PassOptions(PASS, FAST * fast)), sent


def test_a_pass_is_named_by_its_initiator():
    assert PassOptions(PASS, 0).initiator == INITIATOR


def test_reports_go_to_the_initiator():
    conductor, sent = distant()
    conductor.report((GlobalId(0, 0, 1),), (GlobalId(0, 0, 2),), False)
    assert sent == [(INITIATOR, Report(5, PASS, (GlobalId(0, 0, 1),), (GlobalId(0, 0, 2),)))]


def test_a_blocking_run_asks_once_who_takes_part():
    conductor, sent = distant()
    assert conductor.long_wait_seconds(knows_parts=False) == LONG_WAIT_SECONDS
    assert conductor.long_wait_seconds(knows_parts=True) is None
    conductor.waited_too_long()
    assert sent == [(INITIATOR, NeedParts(5, PASS))]
    assert conductor.long_wait_seconds(knows_parts=False) is None


def test_a_fast_pass_never_asks():
    conductor, _ = distant(fast=True)
    assert conductor.long_wait_seconds(knows_parts=False) is None


def test_an_exception_crosses_with_its_type():
    conductor, sent = distant()
    conductor.fail(ValueError("own words"))
    ((to, message),) = sent
    assert to == INITIATOR
    assert isinstance(message, BackwardFailed)
    assert message.text == "own words"
    error = remote_errors.from_payload(message.body)
    assert isinstance(error, ValueError)


def test_an_initiator_that_died_is_told_nothing():
    conductor, _ = distant(dead=True)
    conductor.fail(ValueError())
    conductor.report((), (), False)


def test_the_roots_are_never_here():
    conductor, _ = distant()
    with pytest.raises(AssertionError):
        conductor.hand_over(lambda: None)


class Way:
    """A listener that notes what is done with it."""

    def __init__(self):
        self.done = []

    def wait(self, sleeper):
        self.done.append("wait")
        sleeper.finish(None, None)

    def attend(self):
        self.done.append("attend")

    def close(self):
        self.done.append("close")


def test_a_run_that_waits_inside_reads_for_itself_what_the_initiator_sends():
    conductor, _ = distant()
    way = Way()
    conductor._worker.agent.listen = {INITIATOR: way}.__getitem__
    assert not conductor.listens_to(INITIATOR)
    conductor.begin_to_wait()
    assert conductor.listens_to(INITIATOR)
    assert not conductor.listens_to(WorkerId(2, 0))
    assert conductor.sleep(Sleeper(), knows_parts=True)
    conductor.end_wait()
    conductor.end(failed=False)
    assert way.done == ["wait", "attend", "close"]


def test_a_run_does_not_listen_to_an_initiator_that_cannot_be_called():
    conductor, _ = distant()

    def listen(to):
        raise ConnectionLostError("worker3", "no way")

    conductor._worker.agent.listen = listen
    conductor.begin_to_wait()
    assert not conductor.listens_to(INITIATOR)


class _Listens:
    made: list[_Listens]

    def __init__(self, _messaging):
        threading.Event().wait(0.02)  # so that another run comes to the same step
        self.has_ended = False
        self.made.append(self)

    def end(self, failed):
        self.has_ended = True


@pytest.fixture
def listenings(monkeypatch):
    _Listens.made = []
    monkeypatch.setattr(conductors, "Listening", _Listens)
    return _Listens.made


def test_runs_that_begin_to_wait_at_once_listen_together(listenings):
    conductor, _ = distant()
    threads = [threading.Thread(target=conductor.begin_to_wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    conductor.end(failed=False)
    assert [each.has_ended for each in listenings] == [True]


def test_a_run_that_begins_to_wait_when_the_pass_is_over_does_not_listen(listenings):
    conductor, _ = distant()
    conductor.end(failed=False)
    conductor.begin_to_wait()
    assert [each.has_ended for each in listenings] == [True]
