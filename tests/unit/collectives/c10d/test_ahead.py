"""What goes ahead of an order, and what is taken of it."""

from __future__ import annotations

import pytest
import torch

from lockstitch.collectives.c10d.ahead import AheadOnLine, Claims, Foresight
from lockstitch.errors import ProtocolError


def test_only_what_is_likely_goes_ahead_and_one_operation_at_a_time() -> None:
    claims = Claims()
    assert claims.claim(5) == 0
    for operation in (5, 6):
        claims.learn(operation, is_likely=True)
    assert claims.claim(5) == 1
    assert claims.claim(6) == 0
    claims.release(6)
    assert claims.claim(6) == 0
    claims.release(5)
    assert claims.claim(6) == 2
    claims.release(6)
    claims.learn(6, is_likely=False)
    assert claims.claim(6) == 0


def test_what_was_alone_goes_ahead_the_next_time() -> None:
    foresight = Foresight()
    assert foresight.is_likely("a", (0, 0), is_alone=True)
    assert foresight.is_likely("a", (3, 4), is_alone=True)
    assert not foresight.is_likely("a", (4, 5), is_alone=False)


def test_what_went_in_vain_is_left_alone_for_a_while() -> None:
    foresight = Foresight()
    assert not foresight.is_likely("a", (0, 4), is_alone=True)
    assert foresight.is_likely("b", (0, 0), is_alone=True)
    tries = [foresight.is_likely("a", (0, 0), is_alone=True) for _ in range(10)]
    assert tries == [False] * 8 + [True] * 2


def test_what_came_is_taken_under_its_number_only() -> None:
    line, content = AheadOnLine(), torch.ones(3)
    assert line.take(1) is None
    line.keep(1, content)
    assert line.take(2) is None  # still to come; the first is for nobody
    line.keep(2, content)
    assert line.take(2) is content
    for number in (1, 2):
        with pytest.raises(ProtocolError, match=f"number {number} ahead .* where 2 came"):
            line.take(number)
        with pytest.raises(ProtocolError, match=f"number {number} ahead .* after 2"):
            line.keep(number, content)
