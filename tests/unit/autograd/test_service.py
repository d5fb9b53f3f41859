"""Contexts, passes and their messages on workers of a post office, in all sorts of weather."""

from __future__ import annotations

import threading

import pytest
import torch

from lockstitch.attach.values import OtherWait
from lockstitch.autograd.backward import BackwardPass
from lockstitch.autograd.context import set_current_context
from lockstitch.errors import DistAutogradError, PeerDiedError
from lockstitch.ids import GlobalId
from lockstitch.wire import messages
from lockstitch.wire.messages import Payload
from lockstitch.wire.messages.backward import RETAIN_GRAPH
from tests.unit.autograd.post_office import PostOffice, call, context_on, gradients_on, transfer

WAIT_SECONDS = 60


@pytest.fixture
def office():
    with PostOffice(3) as opened:
        yield opened


def leaf():
    return torch.ones(3, dtype=torch.float64, requires_grad=True)


def double(tensor):
    return tensor * 2


# ---------------------------------------------------------------- contexts


def test_contexts_of_one_thread_do_not_nest(office):
    with (
        context_on(office[0]) as context,
        pytest.raises(
            RuntimeError, match=f"Already have an autograd context id for this thread: {context.id}"
        ),
    ):
        office[0].autograd.new_context()


def test_contexts_of_different_threads_are_independent(office):
    seen = []

    def other():
        with context_on(office[0]) as context:
            seen.append(context.id)

    with context_on(office[0]) as context:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen != [context.id]


def test_an_unknown_context_is_named(office):
    for attempt in (
        lambda: office[0].autograd.find_context(100),
        lambda: office[0].autograd.release_context(100),
        lambda: office[0].autograd.backward(100, [leaf().sum()]),
    ):
        with pytest.raises(RuntimeError, match="Could not find autograd context with id: 100"):
            attempt()


def test_outside_of_a_context_there_is_no_current_one(office):
    with pytest.raises(RuntimeError, match="doesn't have a valid autograd context"):
        office[0].autograd.current_context()


def test_release_reaches_everybody_by_whoever_told_them(office):
    def nested(tensor):
        return call(office[1], office[2], double, tensor)

    with context_on(office[0]):
        call(office[0], office[1], nested, leaf())
        assert [len(worker.autograd.contexts) for worker in office.workers] == [1, 1, 1]
    office.wait_until_quiet()
    assert [len(worker.autograd.contexts) for worker in office.workers] == [0, 0, 0]


def test_a_release_may_begin_anywhere(office):
    with context_on(office[0]) as context:
        call(office[0], office[1], double, leaf())
        office[1].autograd.release_context(context.id)
        office.wait_until_quiet()
        assert context.is_released
        assert office[0].autograd.contexts == []


def test_a_release_that_overtakes_the_first_message_keeps_the_context_away(office):
    with context_on(office[0]) as context:
        stitch = office[0].agent.interceptor.outgoing(office[1].id, [leaf()])
    office.wait_until_quiet()
    office[1].agent.interceptor.incoming(office[0].id, stitch, [torch.ones(3)])
    assert office[1].autograd.contexts == []
    assert context.is_released


def test_a_release_that_is_lost_is_told_again(office):
    lost = []

    def drop(_to, message):
        if isinstance(message, messages.ReleaseContext) and len(lost) < 2:
            lost.append(message)
            return True
        return False

    office.dropped = drop
    with context_on(office[0]):
        call(office[0], office[1], double, leaf())
    for _ in range(5):
        office.wait_until_quiet()
        office.let_time_pass(1.0)
    office.wait_until_quiet()
    assert len(lost) == 2
    assert office[1].autograd.contexts == []
    assert office.timers == []


# ---------------------------------------------------------------- passes


def test_a_backward_without_any_call_is_a_local_one(office):
    x = leaf()
    with context_on(office[0]) as context:
        office[0].autograd.backward(context.id, [x.sum(), (x * x).sum()])
        assert context.gradients[x].tolist() == [3.0, 3.0, 3.0]
        assert x.grad is None


# ---------------------------------------------------------------- late, early and lost messages


def forward(office, x):
    """A loss whose pass blocks at the initiator: h is used here and there."""
    h = x.sin()
    (y,) = call(office[0], office[1], double, h)
    return (y * h).sum()


def test_messages_of_finished_passes_and_unknown_contexts_are_dropped(office):
    x = leaf()
    with context_on(office[0]) as context:
        office[0].autograd.backward(context.id, [forward(office, x)])
        before = context.gradients[x].clone()
        old = GlobalId(0, 0, 0)
        none = Payload(0, b"", ())
        for identifier in (context.id, 999):
            for message in (
                messages.Gradient(identifier, old, 0, False, old, (), (), None, none),
                messages.Report(identifier, old, (old,), ()),
                messages.NeedParts(identifier, old),
                messages.AskReach(identifier, old, 0),
                messages.Reach(identifier, old, (), ()),
                messages.Parts(identifier, old, 0, (), ()),
                messages.Abort(identifier, old),
                messages.AskPassStatus(identifier, old, 1),
                messages.PassStatus(identifier, old, 1, 0, 0, False, ()),
            ):
                office.deliver(office[0].id, office[1].id, message)
        office.wait_until_quiet()
        assert torch.equal(context.gradients[x], before)


def test_an_abort_before_anything_else_keeps_the_pass_away(office):
    x, w = leaf(), leaf()
    with context_on(office[0]) as context:
        ((received,), stitch) = transfer(office[0], office[1], [x])
        with office[1].agent.interceptor.scope(stitch):
            _, reply = transfer(office[1], office[0], [received * w])
        there = office[1].autograd.find_context(context.id)
        pass_id = GlobalId(0, 0, 77)
        body = Payload(0, b"", (torch.ones(3, dtype=torch.float64),))
        office.deliver(office[1].id, office[0].id, messages.Abort(context.id, pass_id))
        office.deliver(
            office[1].id,
            office[0].id,
            messages.Gradient(context.id, pass_id, 0, False, reply.message, (), (), None, body),
        )
        office.wait_until_quiet()
        assert there.gradients == {}


def test_messages_of_an_earlier_pass_are_dropped_once_the_next_has_begun(office):
    x, w = leaf(), leaf()
    with context_on(office[0]) as context:
        ((received,), stitch) = transfer(office[0], office[1], [x])
        with office[1].agent.interceptor.scope(stitch):
            _, reply = transfer(office[1], office[0], [received * w])
        there = office[1].autograd.find_context(context.id)
        body = Payload(0, b"", (torch.ones(3, dtype=torch.float64),))
        for number in (9, 8):
            office.deliver(
                office[1].id,
                office[0].id,
                messages.Gradient(
                    context.id,
                    GlobalId(0, 0, number),
                    RETAIN_GRAPH,
                    False,
                    reply.message,
                    (),
                    (),
                    None,
                    body,
                ),
            )
        office.wait_until_quiet()
        assert there.gradients[w].tolist() == [1.0, 1.0, 1.0]


def test_a_pass_goes_on_after_one_that_failed(office):
    x = leaf()
    fails = [True]

    def breaking(tensor):
        y = tensor * 2

        def hook(gradient):
            if fails[0]:
                raise ValueError("own")
            return gradient

        y.register_hook(hook)
        return y

    with context_on(office[0]) as context:
        h = x.sin()
        (y,) = call(office[0], office[1], breaking, h)
        loss = (y * h).sum()
        for _ in range(20):
            with pytest.raises(DistAutogradError, match="Error on Node 1: own"):
                office[0].autograd.backward(context.id, [loss], retain_graph=True)
        fails[0] = False
        office[0].autograd.backward(context.id, [loss])
        expected = x.detach().requires_grad_()
        (2 * expected.sin() ** 2).sum().backward()
        assert "20 failed passes" in repr(context)


@pytest.mark.parametrize("mode", ["smart", "fast"])
def test_a_participant_that_dies_with_a_message_frees_everybody(mode):
    """The message never comes, and then its sender is found to be dead."""
    x = leaf()
    with PostOffice(3) as office:
        swallowed = threading.Event()

        def drop(to, message):
            is_lost = isinstance(message, messages.Gradient) and to == office[0].id
            if is_lost:
                swallowed.set()
            return is_lost

        def nested(tensor):
            return call(office[1], office[2], double, tensor)[0] * tensor

        errors = []

        def train():
            with context_on(office[0]) as context:
                h = x.sin()
                (y,) = call(office[0], office[1], nested, h)
                try:
                    office[0].autograd.backward(context.id, [(y * h).sum()], mode=mode)
                except PeerDiedError as error:
                    errors.append(error)

        office.dropped = drop
        trainer = threading.Thread(target=train)
        trainer.start()
        assert swallowed.wait(WAIT_SECONDS)
        office.kill(1)
        trainer.join(WAIT_SECONDS)
        assert not trainer.is_alive()
        assert len(errors) == 1
        office.wait_until_quiet()
    for thread in [each for each in threading.enumerate() if "backward" in each.name]:
        thread.join(1)
        assert not thread.is_alive()


def test_contexts_of_a_dead_owner_are_released(office):
    with context_on(office[0]) as context:
        call(office[0], office[1], double, leaf())
        office.kill(0)
        office.wait_until_quiet()
        assert office[1].autograd.contexts == []
        assert gradients_on(office[1], context.id) == {}


def test_a_context_released_during_its_pass_ends_it(office):
    in_backward = threading.Event()
    errors = []

    def waiting(tensor):
        y = tensor * 2

        def hook(gradient):
            in_backward.set()
            assert released.wait(WAIT_SECONDS)
            return gradient

        y.register_hook(hook)
        return y

    released = threading.Event()
    opened = []

    def train():
        context = office[0].autograd.new_context()
        opened.append(context)
        h = leaf().sin()
        (y,) = call(office[0], office[1], waiting, h)
        try:
            office[0].autograd.backward(context.id, [(y * h).sum()])
        except DistAutogradError as error:
            errors.append(error)
        set_current_context(None)

    trainer = threading.Thread(target=train)
    trainer.start()
    assert in_backward.wait(WAIT_SECONDS)
    office[0].autograd.release_context(opened[0].id)
    trainer.join(WAIT_SECONDS)
    assert not trainer.is_alive()
    released.set()
    assert f"Could not find autograd context with id: {opened[0].id}" in str(errors[0])


def test_a_worker_that_shuts_down_frees_its_own_pass(office):
    office.dropped = lambda to, message: isinstance(message, messages.Gradient)
    errors = []
    begun = threading.Event()

    def train():
        with context_on(office[0]) as context:
            loss = forward(office, leaf())
            begun.set()
            try:
                office[0].autograd.backward(context.id, [loss])
            except DistAutogradError as error:
                errors.append(str(error))

    trainer = threading.Thread(target=train)
    trainer.start()
    assert begun.wait(WAIT_SECONDS)
    while not office[0].autograd.running_passes:
        assert trainer.is_alive()
    office.kill(0)
    trainer.join(WAIT_SECONDS)
    assert not trainer.is_alive()
    assert errors == ["worker 'worker0' has shut down"]


def test_a_backward_within_a_backward_of_the_same_context_is_refused(office):
    x = leaf()
    with context_on(office[0]) as context:
        h = x.sin()

        def again(_gradient):
            office[0].autograd.backward(context.id, [x.sum()])

        h.register_hook(again)
        with pytest.raises(DistAutogradError, match="within a backward pass of the same context"):
            office[0].autograd.backward(context.id, [h.sum()])


def test_what_a_pass_waits_for_can_be_told(office):
    office.dropped = lambda to, message: isinstance(message, messages.Gradient)
    assert office[0].autograd.waits() == []

    def train():
        with context_on(office[0]) as context, pytest.raises(DistAutogradError):
            office[0].autograd.backward(context.id, [forward(office, leaf())])

    trainer = threading.Thread(target=train)
    trainer.start()
    while not any("stitch" in wait.what for wait in office[0].autograd.waits()):
        assert trainer.is_alive()
    assert office[0].autograd.waits() == [
        OtherWait("backward of context 0: the graph of its roots runs"),
        OtherWait(
            f"context 0: gradients of what {office[1].id} was sent (stitch 0 of rank 0)",
            ranks=(1,),
        ),
    ]
    counted = {each.name: each.value for each in office[0].autograd.counters()}
    assert counted["lockstitch_autograd_contexts"] == 1
    office.kill(0)
    trainer.join(WAIT_SECONDS)
    assert not trainer.is_alive()


def test_a_walk_that_fails_is_an_error_at_the_initiator(office, monkeypatch):
    def fail(*_arguments):
        raise ValueError("a broken walk")

    with context_on(office[0]) as context:
        (y,) = call(office[0], office[1], double, leaf())
        loss = y.sum()
        begin = BackwardPass.begin

        def begin_and_break(self, *arguments):
            task = begin(self, *arguments)
            monkeypatch.setattr("lockstitch.autograd.service.BackwardPass._walk", fail)
            return task

        monkeypatch.setattr(BackwardPass, "begin", begin_and_break)
        with pytest.raises(DistAutogradError, match="Error on Node 1: a broken walk"):
            office[0].autograd.backward(context.id, [loss])


def test_the_repr_counts(office):
    with context_on(office[0]):
        assert repr(office[0].autograd) == (
            "<AutogradService of 'worker0' · 1 contexts · 0 passes running>"
        )
