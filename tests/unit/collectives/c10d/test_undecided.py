"""What is said again, and in which order."""

from __future__ import annotations

from lockstitch.collectives.c10d.messages import Ask, Define, Join, Leave, Submit
from lockstitch.collectives.c10d.undecided import Undecided


def noted(*messages: Define | Submit | Join | Leave) -> Undecided:
    undecided = Undecided([4, 5])
    for message in messages:
        undecided.note(4, message)
    return undecided


def test_what_is_not_decided_comes_again_in_its_order_after_what_it_means() -> None:
    first, second = Define(1, 0, (), "x"), Define(2, 0, (), "y")
    undecided = noted(first, second, Submit(2), Join(), Submit(1), Leave())
    assert list(undecided.all()) == [
        (4, each) for each in (second, Submit(2), Join(), first, Submit(1), Leave())
    ]
    assert 4 in undecided
    assert 6 not in undecided


def test_what_is_decided_does_not_come_again() -> None:
    undecided = noted(Submit(2), Join(), Submit(1), Join())
    undecided.settle(4, 2)
    undecided.settle(5, 2)
    undecided.settle_joins()
    assert list(undecided.all()) == [(4, Submit(1)), (4, Join())]


def test_what_a_number_means_is_said_once_before_its_first_use() -> None:
    define = Define(1, 7, (4, 5), "x")
    undecided = noted(define)
    assert list(undecided.again(4, Define(2, 7, (), "y"))) == []
    assert list(undecided.again(4, Submit(2))) == [Define(2, 7, (4, 5), "y"), Submit(2)]
    assert list(undecided.again(4, Submit(2))) == [Submit(2)]
    assert list(undecided.again(4, Ask(1))) == [define, Ask(1)]
    assert list(undecided.again(4, Ask(-1))) == [Ask(-1)]
