"""The thread of a slot: one task after the other, in order, until it is closed or dropped."""

from __future__ import annotations

import gc
import threading
import weakref
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from lockstitch.errors import SlotDiedError
from lockstitch.nn.slots.failures import Failure
from lockstitch.nn.slots.nesting import is_inside
from lockstitch.nn.slots.slot_thread import SlotThread, attempt


class Payload:
    """Something that can be referred to weakly."""


def test_answers_come_in_the_order_of_the_work_and_from_the_thread():
    answers: SimpleQueue[Any] = SimpleQueue()
    thread = SlotThread("slot 7 (thread)")
    for number in range(50):
        thread.hand_over(lambda number=number: (number, threading.get_ident()), answers.put)
    found = [answers.get() for _ in range(50)]
    assert [number for number, _ in found] == list(range(50))
    assert {who for _, who in found}.isdisjoint({threading.get_ident()})
    assert len({who for _, who in found}) == 1
    thread.close()


def test_it_uses_as_many_threads_of_torch_as_it_was_given():
    answers: SimpleQueue[int] = SimpleQueue()
    thread = SlotThread("slot 1", threads=1)
    thread.hand_over(torch.get_num_threads, answers.put)
    assert answers.get() == 1
    thread.close()


def test_whoever_has_the_answer_finds_nothing_left_of_the_work():
    thread = SlotThread("slot 1")
    for _ in range(50):
        payload = Payload()
        known = weakref.ref(payload)
        seen: SimpleQueue[object] = SimpleQueue()
        thread.hand_over(
            lambda payload=payload: "done", lambda _, known=known, seen=seen: seen.put(known())
        )
        del payload
        assert seen.get() is None
    thread.close()


def test_what_was_handed_over_before_the_end_is_done_and_later_work_is_refused():
    answers: SimpleQueue[int] = SimpleQueue()
    thread = SlotThread("slot 3 (thread)")
    for number in range(20):
        thread.hand_over(lambda number=number: number, answers.put)
    thread.close()
    thread.close()
    assert [answers.get_nowait() for _ in range(20)] == list(range(20))
    assert not thread.is_alive
    with pytest.raises(SlotDiedError, match=r"slot 3 \(thread\)"):
        thread.hand_over(int, answers.put)
    with pytest.raises(SlotDiedError):
        thread.check_alive()


def test_it_may_be_closed_by_its_own_work():
    answers: SimpleQueue[object] = SimpleQueue()
    thread = SlotThread("slot 1")
    thread.hand_over(thread.close, answers.put)
    assert answers.get() is None
    assert not thread._end.alive


def test_it_ends_when_nobody_wants_it_any_more():
    thread = SlotThread("slot 1")
    worker = thread._thread
    del thread
    gc.collect()
    worker.join(30)
    assert not worker.is_alive()


def test_an_attempt_runs_inside_a_slot_and_returns_what_was_raised():
    def fail() -> None:
        raise KeyError("lost")

    answers: SimpleQueue[Any] = SimpleQueue()
    thread = SlotThread("slot 1")
    thread.hand_over(lambda: attempt(is_inside, "slot 1"), answers.put)
    assert answers.get() is True
    thread.hand_over(lambda: attempt(fail, "slot 1"), answers.put)
    failure = answers.get()
    assert isinstance(failure, Failure)
    assert "lost" in str(failure.error())
    thread.close()
