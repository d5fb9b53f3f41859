"""Guests at the door: few, for a short time, and no trouble to anybody."""

from __future__ import annotations

from typing import Any

import pytest

from lockstitch.link.door import Door
from lockstitch.link.greetings import Hello, encode
from lockstitch.link.handshake import CallerHandshake
from lockstitch.testing import ManualClock
from tests.unit.link.pairs import HERE, OTHER_SECRET, SECRET, THERE, End, guest, pair


class Entrance:
    def __init__(self, most: int = 3) -> None:
        self.clock = ManualClock()
        self.parted: list[str] = []
        self.door: Door[str] = Door(self.clock, most, 10.0, self.parted.append)


def test_the_oldest_gives_way_where_too_many_wait() -> None:
    entrance = Entrance()
    for name in "abcde":
        assert entrance.door.admit(name)
    assert entrance.parted == ["a", "b"]
    assert entrance.door.refused() == {"pushed out": 2}
    assert len(entrance.door) == 3
    assert "3 of at most 3" in repr(entrance.door)


def test_who_has_come_in_is_no_guest_any_more() -> None:
    entrance = Entrance()
    entrance.door.admit("a")
    assert entrance.door.let_in("a")
    assert not entrance.door.let_in("a")
    entrance.door.turn_away("a", "gone")
    entrance.clock.advance(11)
    entrance.door.pass_time()
    assert entrance.parted == []
    assert entrance.door.refused() == {}


def test_who_was_turned_away_does_not_come_in() -> None:
    entrance = Entrance()
    entrance.door.admit("a")
    entrance.door.turn_away("a", "garbage")
    entrance.door.turn_away("a", "garbage")
    assert not entrance.door.let_in("a")
    assert entrance.door.refused() == {"garbage": 1}


def test_each_has_its_time_and_the_door_says_when_it_ends() -> None:
    entrance = Entrance()
    assert entrance.door.seconds_to_next() is None
    entrance.door.admit("a")
    entrance.clock.advance(4)
    entrance.door.admit("b")
    assert entrance.door.seconds_to_next() == 6
    entrance.clock.advance(6.5)
    assert entrance.door.seconds_to_next() == 0
    entrance.door.pass_time()
    assert entrance.parted == ["a"]
    assert entrance.door.seconds_to_next() == 3.5
    assert entrance.door.refused() == {"too slow": 1}


def test_all_begin_anew_where_this_process_was_stopped() -> None:
    entrance = Entrance()
    for name in "ab":
        entrance.door.admit(name)
    entrance.clock.advance(1000)
    entrance.door.pass_time()
    assert entrance.parted == []
    assert entrance.door.seconds_to_next() == 10
    entrance.clock.advance(10)
    entrance.door.pass_time()
    assert entrance.parted == ["a", "b"]


def test_who_stays_too_long_makes_room_unless_it_may_be_about_to_prove_itself() -> None:
    entrance = Entrance()
    entrance.door.make_room()  # nobody is there
    entrance.door.admit("a")
    entrance.door.make_room()
    assert entrance.parted == []
    entrance.clock.advance(1.5)
    entrance.door.make_room()
    assert entrance.parted == ["a"]


def test_a_closed_door_lets_nobody_in() -> None:
    entrance = Entrance()
    entrance.door.admit("a")
    entrance.door.close()
    assert not entrance.door.admit("b")
    assert entrance.parted == ["a", "b"]
    assert len(entrance.door) == 0


# ---------------------------------------------------------------- what guests say

HELLO = encode(Hello(True, bytes(32), THERE.worker, "rank1", HERE.worker, "", ""))


def test_a_guest_that_has_the_secret_may_come_in_however_its_words_are_cut() -> None:
    near, far = pair()
    visitor = guest(far)
    caller = CallerHandshake(HERE, THERE.worker, ("", ""), SECRET)
    said = caller.opening
    for _ in range(2):
        for byte in said:
            assert visitor.listen() is None
            near.send([bytes([byte])])
        outcome = visitor.listen()
        said = caller.take(near.pieces.popleft()) if near.pieces else b""
    assert outcome == ""
    visitor.line(100)
    caller.take(near.pieces.popleft())
    assert caller.is_proved


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([b"\xff" * 8], "garbage"),
        ([b"GET / HTTP/1.1\r\n\r\n"], "garbage"),
        ([bytes(600)], "garbage"),
        ([b"LKST\x08\x03\xff\xff"], "garbage"),
        ([HELLO, HELLO], "out of order"),
        ([CallerHandshake(HERE, THERE.worker, ("", ""), None).opening], "no secret there"),
    ],
    ids=["bytes", "http", "zeros", "oversized", "twice", "without a secret"],
)
def test_others_are_told_apart_and_the_guest_learns_nothing(words: Any, reason: str) -> None:
    near, far = pair()
    near.send(words)
    assert guest(far).listen() == reason
    assert not any(THERE.name.encode() in said for said in far.sent)


def test_a_guest_with_another_secret_or_another_conversation_is_refused() -> None:
    first, far = pair()
    visitor = guest(far)
    caller = CallerHandshake(HERE, THERE.worker, ("", ""), SECRET)
    first.send([caller.opening])
    visitor.listen()
    proof = caller.take(first.pieces.popleft())
    for secret in (SECRET, OTHER_SECRET):  # said again later, and guessed
        near, far = pair()
        visitor = guest(far)
        again = CallerHandshake(HERE, THERE.worker, ("", ""), secret)
        near.send([caller.opening if secret is SECRET else again.opening])
        assert visitor.listen() is None
        near.send([proof if secret is SECRET else again.take(near.pieces.popleft())])
        assert visitor.listen() == "wrong proof"


def test_a_guest_that_hears_its_own_challenge_again_is_not_fooled_nor_fools() -> None:
    near, far = pair()
    visitor = guest(far)
    near.send([HELLO])
    visitor.listen()
    near.send([near.pieces.popleft()])  # the listener's own challenge
    assert visitor.listen() == "out of order"


def test_a_guest_that_is_gone_is_told_as_that() -> None:
    near, far = pair()
    visitor = guest(far)
    near.send([HELLO[:9]])
    assert visitor.listen() is None
    near.close()
    assert visitor.listen() == "gone"
    near, far = pair()
    near.send([HELLO])
    far.close()  # where the answer does not leave
    assert guest(far).listen() == "gone"


def test_a_guest_may_be_refused_although_it_has_the_secret() -> None:
    near, far = pair()
    visitor = guest(far, refusal="rank 1 is here already")
    caller = CallerHandshake(HERE, THERE.worker, ("", ""), SECRET)
    near.send([caller.opening])
    visitor.listen()
    near.send([caller.take(near.pieces.popleft())])
    assert visitor.listen() == "refused"
    caller.take(near.pieces.popleft())
    assert caller.welcome is not None
    assert caller.welcome.refusal == "rank 1 is here already"
    assert isinstance(visitor.stream, End)
