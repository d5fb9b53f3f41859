"""What `behaviours` says of slots, of a CUDA slot on a machine without CUDA: its streams do
nothing, its device is the CPU. With real ones: tests/gpu/test_cuda_parity.py."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
from torch import nn

from lockstitch.errors import SlotDiedError
from lockstitch.nn import DataParallel
from lockstitch.nn.slots import base
from lockstitch.nn.slots.cuda import OnStream, on_stream
from tests.parity.behaviours import OWN, SAME
from tests.parity.test_data_parallel import Plain, Wrap, assert_equal

STREAM = OnStream(torch.device("cpu"))


class Stream:
    def __init__(self, device):
        self.device = device

    def record_event(self):
        return None


@pytest.fixture(autouse=True)
def _streams_that_do_nothing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: contextlib.nullcontext())


@pytest.fixture
def wrap():
    wrap = Wrap("cpu")
    wrap.device_ids = ["cpu", STREAM]
    torch.manual_seed(0)
    yield wrap
    wrap.close()
    # torch's engine keeps what a failed pass had left to do until the next pass.
    torch.ones(1, requires_grad=True).sum().backward()


@pytest.mark.parametrize("behaviour", SAME, ids=lambda behaviour: behaviour.__name__)
def test_a_slot_does_what_the_plain_module_does(wrap, behaviour):
    state = torch.get_rng_state()
    expected = behaviour(Plain())
    torch.set_rng_state(state)
    assert_equal(behaviour(wrap), expected)


# What streams do not promise (see the docstring of `nn.slots.cuda`).
NOT_PROMISED = {"checkpointed_parts_that_draw_random_numbers_draw_the_same_again"}
PROMISED = [behaviour for behaviour in OWN if behaviour.__name__ not in NOT_PROMISED]


@pytest.mark.parametrize("behaviour", PROMISED, ids=lambda behaviour: behaviour.__name__)
def test_it_does_what_is_said_of_it(wrap, behaviour):
    behaviour(wrap)


THREADS = []


class Where(nn.Linear):
    """Notes in `THREADS` which threads run it."""

    def forward(self, x):
        THREADS.append(threading.current_thread())
        return super().forward(x)


@pytest.mark.parametrize(("short_seconds", "is_elsewhere"), [(0.0, True), (1e9, False)])
def test_a_pass_is_handed_over_only_where_that_pays(wrap, monkeypatch, short_seconds, is_elsewhere):
    monkeypatch.setattr(base, "SHORT_SECONDS", short_seconds)
    model, x = wrap(Where(4, 4)), torch.ones(4, 4)
    for _ in range(3):
        THREADS.clear()
        model(x)
    assert len(THREADS) == 2
    assert (len(set(THREADS)) == 2) == is_elsewhere


def test_backward_needs_no_lock_that_somebody_else_may_hold(wrap):
    """The thread of a device, which posts gradients, must not wait for one who waits for it."""
    model = wrap(nn.Linear(4, 4))
    output = model(torch.ones(4, 4))
    pool, done = model._pool, threading.Event()

    def go_back():
        output.sum().backward()
        done.set()

    with pool.lock:
        other = threading.Thread(target=go_back)
        other.start()
        assert done.wait(60)
    other.join()


def test_a_slot_that_was_closed_takes_no_more_work(wrap):
    model = wrap(nn.Linear(4, 4))
    output = model(torch.ones(4, 4))
    (slot,) = model.slots
    assert slot.is_alive
    slot.close()
    slot.close()
    assert not slot.is_alive
    with pytest.raises(SlotDiedError, match="slot 1"):
        output.sum().backward()


def test_an_entry_is_for_a_gpu_and_says_which():
    assert repr(on_stream("cuda")) == "on_stream('cuda:0')"
    with pytest.raises(ValueError, match="needs a CUDA device, not cpu"):
        on_stream("cpu")


def test_a_slot_that_nobody_wants_ends():
    model = DataParallel(nn.Linear(4, 4), ["cpu", STREAM])
    model(torch.ones(4, 4))
    (slot,) = model.slots
    worker = slot._thread._thread
    del model, slot
    worker.join(60)
    assert not worker.is_alive()
