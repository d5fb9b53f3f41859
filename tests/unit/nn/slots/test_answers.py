"""Each answer goes to who waits for it, and nobody else's is kept for ever."""

from __future__ import annotations

from collections import deque

from lockstitch.nn.slots.answers import BACKWARD, FORWARD, Answers


def answers_in_order(*arriving):
    waiting = deque(arriving)
    answers = Answers(lambda _: waiting.popleft())
    for key, _ in arriving:
        answers.expect(key)
    return answers, waiting


def test_an_answer_that_comes_first_is_kept_for_its_owner():
    answers, _ = answers_in_order(((FORWARD, 1), "one"), ((FORWARD, 2), "two"))
    assert answers.wait((FORWARD, 2)) == "two"
    assert answers.is_expected((FORWARD, 1))
    assert answers.wait((FORWARD, 1)) == "one"
    assert not answers.is_expected((FORWARD, 1))


def test_forward_and_backward_of_one_number_are_two_things():
    answers, _ = answers_in_order(((FORWARD, 1), "there"), ((BACKWARD, 1), "back"))
    assert answers.wait((BACKWARD, 1)) == "back"
    assert answers.wait((FORWARD, 1)) == "there"


def test_what_was_released_is_dropped_when_it_comes():
    answers, _ = answers_in_order(((FORWARD, 1), "nobody's"), ((FORWARD, 2), "two"))
    answers.release(1)
    answers.expect((FORWARD, 3))
    assert answers.wait((FORWARD, 2)) == "two"
    assert not answers.is_expected((FORWARD, 1))


def test_what_was_released_is_dropped_if_it_has_come():
    answers, _ = answers_in_order(((FORWARD, 1), "nobody's"), ((FORWARD, 2), "two"))
    assert answers.wait((FORWARD, 2)) == "two"
    answers.release(1)
    answers.expect((FORWARD, 3))
    assert not answers.is_expected((FORWARD, 1))


def test_draining_takes_what_is_there():
    answers, waiting = answers_in_order(((FORWARD, 1), "one"), ((FORWARD, 2), "two"))
    answers.drain(lambda: bool(waiting))
    assert not waiting
    assert answers.wait((FORWARD, 2)) == "two"
