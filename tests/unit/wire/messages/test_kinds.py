"""The kinds of messages: each has a number of its own, and is a record."""

from __future__ import annotations

import re

import pytest

import lockstitch.wire.messages as vocabulary
from lockstitch.wire.messages import KINDS, Call, ForkAccept, Message, kind


def test_kind_is_registered_once() -> None:
    with pytest.raises(ValueError, match=re.escape("kind 1 is taken by Call")):
        kind(1)(Message)
    assert KINDS[1] is Call


def test_class_knows_its_number() -> None:
    assert {number: cls.KIND for number, cls in KINDS.items()} == {each: each for each in KINDS}


def test_all_kinds_are_part_of_the_vocabulary() -> None:
    assert {cls.__name__ for cls in KINDS.values()} <= set(vocabulary.__all__)


def test_messages_are_compared_by_their_fields_and_take_no_others() -> None:
    message = ForkAccept(fork=(0, 0, 1))  # type: ignore[arg-type]
    assert message == ForkAccept((0, 0, 1))  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        message.other = 1  # type: ignore[attr-defined]
