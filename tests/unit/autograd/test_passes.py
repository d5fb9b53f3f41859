"""Passes and their messages on workers of a post office, in all sorts of weather."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch

from lockstitch.autograd.backward import BackwardPass
from lockstitch.errors import DistAutogradError, PeerDiedError
from lockstitch.ids import GlobalId
from lockstitch.wire import messages
from lockstitch.wire.messages import Payload
from lockstitch.wire.messages.backward import RETAIN_GRAPH
from tests.unit.autograd.post_office import (
    PostOffice,
    call,
    context_on,
    double,
    forward,
    leaf,
    transfer,
)

WAIT_SECONDS = 60


# ---------------------------------------------------------------- passes


def test_a_backward_without_any_call_is_a_local_one(office):
    x = leaf()
    with context_on(office[0]) as context:
        office[0].autograd.backward(context.id, [x.sum(), (x * x).sum()])
        assert context.gradients[x].tolist() == [3.0, 3.0, 3.0]
        assert x.grad is None


# ---------------------------------------------------------------- late, early and lost messages


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
                messages.AskReach(identifier, old, 0, False),
                messages.Reach(identifier, old, (), ()),
                messages.Parts(identifier, old, 0, (), ()),
                messages.Abort(identifier, old),
                messages.AskPassStatus(identifier, old, 1),
                messages.PassStatus(identifier, old, 1, 0, 0, False, ()),
            ):
                office.deliver(office[0].id, office[1].id, message)
        office.wait_until_quiet()
        assert torch.equal(context.gradients[x], before)


@contextlib.contextmanager
def gradients_delivered(office, w):
    """Gives the context of a worker that has multiplied by `w` what another one has sent, and what
    delivers a gradient of the product to it, of a pass."""
    with context_on(office[0]) as context:
        ((received,), stitch) = transfer(office[0], office[1], [leaf()])
        with office[1].agent.interceptor.scope(stitch):
            _, reply = transfer(office[1], office[0], [received * w])
        body = Payload(0, b"", (torch.ones(3, dtype=torch.float64),))

        def deliver(pass_id, flags):
            message = messages.Gradient(
                context.id, pass_id, flags, False, reply.message, (), (), None, body
            )
            office.deliver(office[1].id, office[0].id, message)

        yield office[1].autograd.find_context(context.id), deliver


def test_an_abort_before_anything_else_keeps_the_pass_away(office):
    with gradients_delivered(office, leaf()) as (there, deliver):
        pass_id = GlobalId(0, 0, 77)
        office.deliver(office[1].id, office[0].id, messages.Abort(there.id, pass_id))
        deliver(pass_id, 0)
        office.wait_until_quiet()
        assert there.gradients == {}


def test_messages_of_an_earlier_pass_are_dropped_once_the_next_has_begun(office):
    w = leaf()
    with gradients_delivered(office, w) as (there, deliver):
        for number in (9, 8):
            deliver(GlobalId(0, 0, number), RETAIN_GRAPH)
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


def test_a_walk_that_fails_is_an_error_at_the_initiator(office, monkeypatch):
    def fail(*_arguments):
        raise ValueError("a broken walk")

    with context_on(office[0]) as context:
        (y,) = call(office[0], office[1], double, leaf())
        loss = y.sum()
        begin = BackwardPass.begin

        def begin_and_break(self, *arguments):
            task = begin(self, *arguments)
            monkeypatch.setattr(BackwardPass, "_walk", fail)
            return task

        monkeypatch.setattr(BackwardPass, "begin", begin_and_break)
        with pytest.raises(DistAutogradError, match="Error on Node 1: a broken walk"):
            office[0].autograd.backward(context.id, [loss])
