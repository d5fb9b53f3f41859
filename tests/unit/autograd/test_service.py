"""Contexts on workers of a post office, from their beginning to their end."""

from __future__ import annotations

import threading

import pytest
import torch

from lockstitch.attach.values import OtherWait
from lockstitch.autograd.context import set_current_context
from lockstitch.errors import DistAutogradError
from lockstitch.wire import messages
from tests.unit.autograd.post_office import (
    call,
    context_on,
    double,
    forward,
    gradients_on,
    leaf,
)

WAIT_SECONDS = 60


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


def test_the_repr_counts(office):
    with context_on(office[0]):
        assert repr(office[0].autograd) == (
            "<AutogradService of 'worker0' · 1 contexts · 0 passes running>"
        )
