"""The pass as a whole, seen from where it was called; the other workers are played by hand."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from torch.autograd.graph import get_gradient_edge

from lockstitch.autograd.conductor import PassOptions
from lockstitch.autograd.context import DistAutogradContext
from lockstitch.autograd.discovery import Reach
from lockstitch.autograd.graph import Entry
from lockstitch.autograd.initiator import Initiator
from lockstitch.autograd.stitch import stitch_receive
from lockstitch.autograd.termination import PassStatus
from lockstitch.errors import DistAutogradError, PeerDiedError
from lockstitch.ids import GlobalId, WorkerId
from lockstitch.wire.messages import Abort, AskPassStatus, AskReach, Gradient, Parts
from lockstitch.wire.messages.backward import FAST
from tests.unit.autograd.post_office import Clerk

ME, PEER, THIRD = WorkerId(0, 0), WorkerId(1, 0), WorkerId(2, 0)
WAIT_SECONDS = 60


class Played:
    """An initiator whose loss hangs on stitch 5 of `PEER`; it runs in a thread of its own."""

    def __init__(self, fast=False, workers=(PEER,), asks_first=False):
        office = SimpleNamespace(dead=set(), dropped=lambda to, message: True, spawn=self._spawn)
        self.dead = office.dead
        clerk = Clerk(office, ME)
        self._sent = threading.Condition()
        clerk.sent = self
        self.messages = []
        self.context = DistAutogradContext(7, None)
        for worker in workers:
            self.context.involve(worker, ME)
        worker = SimpleNamespace(id=ME, name="worker0", agent=clerk, active=clerk.blocked)
        self.options = PassOptions(GlobalId(*ME, 3), FAST * fast)
        self.initiator = Initiator(
            worker, self.context, self.options, lambda *_: None, asks_first=asks_first
        )
        self.leaf = torch.ones((), requires_grad=True)
        self.error = None
        self.thread = threading.Thread(target=self._run)

    def _spawn(self, task):
        task()

    def append(self, message):
        with self._sent:
            self.messages.append(message)
            self._sent.notify_all()

    def start(self):
        self.thread.start()
        return self

    def _run(self):
        (received,) = stitch_receive(GlobalId(*PEER, 5), [torch.ones(())])
        loss = received * self.leaf
        try:
            self.initiator.run(Entry(None, (get_gradient_edge(loss),)), (torch.ones(()),))
        except BaseException as error:  # noqa: BLE001 - what the test asks for
            self.error = error

    def wait_for(self, kind, count=1):
        with self._sent:
            assert self._sent.wait_for(
                lambda: sum(isinstance(each, kind) for each in self.messages) >= count, WAIT_SECONDS
            )
            return [each for each in self.messages if isinstance(each, kind)]

    def end(self):
        self.thread.join(WAIT_SECONDS)
        assert not self.thread.is_alive()
        return self.error


FIVE = GlobalId(*PEER, 5)


def test_the_pass_ends_when_what_was_emitted_is_consumed():
    played = Played().start()
    (gradient,) = played.wait_for(Gradient)
    assert gradient.message == FIVE
    assert played.thread.is_alive()
    played.initiator.report((), (FIVE,))
    assert played.end() is None
    assert played.context.gradients[played.leaf].item() == 1.0
    assert played.wait_for(Gradient) == [gradient]


def test_reports_may_come_in_any_order():
    played = Played()
    played.initiator.report((), (GlobalId(*ME, 1), FIVE))
    played.start()
    played.wait_for(Gradient)
    played.initiator.report((GlobalId(*ME, 1),), ())
    assert played.end() is None


def test_the_first_failure_counts_and_everybody_is_told():
    played = Played(workers=(PEER, THIRD)).start()
    played.wait_for(Gradient)
    played.initiator.fail(KeyError("raw"), THIRD, "its own words")
    played.initiator.fail(ValueError("too late"), PEER)
    error = played.end()
    assert isinstance(error, DistAutogradError)
    assert str(error) == "Error on Node 2: its own words"
    assert isinstance(error.__cause__, KeyError)
    assert len(played.wait_for(Abort, 2)) == 2
    assert played.context.failed_passes == 1


def test_a_dead_peer_is_raised_as_itself():
    played = Played().start()
    played.wait_for(Gradient)
    played.initiator.fail(PeerDiedError("worker1"))
    assert isinstance(played.end(), PeerDiedError)


def test_a_failure_after_the_end_is_ignored():
    played = Played().start()
    played.wait_for(Gradient)
    played.initiator.report((), (FIVE,))
    assert played.end() is None
    played.initiator.fail(ValueError("too late"))
    assert played.initiator._error is None


def test_an_interrupt_ends_the_pass_everywhere(monkeypatch):
    played = Played()

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(played.initiator, "_next_task", interrupt)
    played.start()
    assert isinstance(played.end(), KeyboardInterrupt)
    played.wait_for(Abort)


# ---------------------------------------------------------------- who takes part


def below_five(*received):
    """The answer of `PEER`, where these lie below what it was sent as stitch 5."""
    return Reach(tuple(received), ((FIVE, (b"\x01",)),))


def test_a_question_goes_to_all_others_and_its_answer_too():
    played = Played(workers=(PEER, THIRD)).start()
    played.wait_for(Gradient)
    played.initiator.serve_parts(THIRD)
    assert len(played.wait_for(AskReach)) == 2
    assert not any(isinstance(each, Parts) for each in played.messages)
    played.initiator.take_reach(PEER, Reach((), ((FIVE, (b"",)),)))
    assert [each.parts for each in played.wait_for(Parts, 2)] in (
        [(), ((FIVE, (0,)),)],
        [((FIVE, (0,)),), ()],
    )
    played.initiator.serve_parts(WorkerId(9, 0))  # a latecomer is told at once
    played.wait_for(Parts, 3)
    played.initiator.report((), (FIVE,))
    assert played.end() is None


def test_workers_that_were_not_known_are_asked_when_they_turn_up():
    stranger = WorkerId(4, 0)
    played = Played().start()
    played.wait_for(Gradient)
    played.initiator.serve_parts(PEER)
    played.wait_for(AskReach)
    played.initiator.take_reach(PEER, below_five((GlobalId(*stranger, 1), 0)))
    played.wait_for(AskReach, 2)
    played.initiator.take_reach(stranger, Reach((), ((GlobalId(*stranger, 1), (b"",)),)))
    played.wait_for(Parts, 2)
    played.initiator.report((), (FIVE,))
    assert played.end() is None


def test_a_dead_bystander_does_not_matter_but_a_dead_participant_does():
    played = Played(workers=(PEER, THIRD))
    played.start()
    played.wait_for(Gradient)
    played.dead.add(THIRD)
    played.initiator.serve_parts(PEER)
    played.wait_for(AskReach)
    assert played.thread.is_alive()
    played.initiator.take_reach(PEER, below_five((GlobalId(*THIRD, 1), 0)))
    assert isinstance(played.end(), PeerDiedError)


def test_the_callers_thread_asks_when_nothing_comes_in():
    played = Played().start()
    played.wait_for(Gradient)
    played.initiator.need_parts()
    played.wait_for(AskReach)
    played.initiator.report((), (FIVE,))
    assert played.end() is None


def test_where_no_gradient_is_under_way_the_question_is_asked_at_once():
    played = Played()
    played.initiator.need_parts()
    assert isinstance(played.messages[0], AskReach)


def test_a_question_that_will_be_asked_goes_out_before_the_walk():
    played = Played(asks_first=True).start()
    played.wait_for(Gradient)
    assert isinstance(played.messages[0], AskReach)
    played.initiator.take_reach(PEER, Reach((), ((FIVE, (b"",)),)))
    played.wait_for(Parts)
    played.initiator.need_parts()
    played.initiator.report((), (FIVE,))
    assert played.end() is None
    assert len(played.wait_for(AskReach)) == 1


def test_a_fast_pass_asks_nobody_first():
    played = Played(fast=True, asks_first=True).start()
    played.wait_for(Gradient)
    played.initiator.report((), (FIVE,))
    assert played.end() is None
    assert not any(isinstance(each, AskReach) for each in played.messages)


# ---------------------------------------------------------------- is a fast pass stuck?


def test_a_fast_pass_that_stands_still_names_what_is_missing():
    played = Played(fast=True).start()
    for wave in (1, 2):
        asked = played.wait_for(AskPassStatus, 2 * wave)
        number = asked[-1].wave
        played.initiator.take_status(number, ME, PassStatus(1, 0, False, ()))
        played.initiator.take_status(number, PEER, PassStatus(0, 1, False, (GlobalId(1, 0, 8),)))
    error = played.end()
    assert "no gradient can come for these stitches: number 8 of rank 1" in str(error)


def test_a_fast_pass_that_is_slow_goes_on():
    played = Played(fast=True).start()
    asked = played.wait_for(AskPassStatus, 2)
    played.initiator.take_status(asked[0].wave, PEER, PassStatus(0, 1, True, ()))
    played.initiator.report((), (FIVE,))
    assert played.end() is None


@pytest.mark.parametrize("fast", [True, False])
def test_patience_is_of_another_kind_in_each_mode(fast):
    initiator = Played(fast).initiator
    before = initiator.long_wait_seconds()
    initiator.waited_too_long()
    assert initiator.long_wait_seconds() == (2 * before if fast else None)


def test_who_listens_is_answered_by_reply_push():
    played = Played()
    pushed = []
    played.initiator._messaging.send_back = lambda to, message: pushed.append((to, message))
    played.initiator.answer_by_reply_push(PEER)
    played.start()
    played.initiator.report((), (FIVE,))
    assert played.end() is None
    ((to, gradient),) = pushed
    assert to == PEER
    assert gradient.message == FIVE
