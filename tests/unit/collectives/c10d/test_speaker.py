"""One speaker: what it says upwards, and how it hands round what comes back. How whole trees decide
is tested in `test_tree_coordinator`."""

from __future__ import annotations

import pytest

from lockstitch.collectives.c10d.messages import (
    ANYTHING,
    Ask,
    AskNamed,
    Define,
    DefineRow,
    Detailed,
    Fail,
    Join,
    JoinAll,
    Joined,
    Lacking,
    Leave,
    Loosen,
    Lost,
    Message,
    Order,
    Refused,
    Submit,
    Via,
    Welcome,
)
from lockstitch.collectives.c10d.routes import Addressed
from lockstitch.collectives.c10d.speaker import Speaker
from lockstitch.collectives.c10d.tree import Place
from lockstitch.collectives.requests import Description, Kind
from lockstitch.errors import ProtocolError
from lockstitch.link.runs import Runs

PLACE = Place(2, 0, {3: (3,), 4: (4, 5)})
"""Rank 2 speaks for itself, rank 3, and ranks 4 and 5, for which rank 4 speaks."""


def text(rows: int = 1) -> str:
    return Description(Kind.ALLREDUCE, "a", ("float32",), ((rows,),)).encode().decode()


def up(*messages: Message) -> list[Addressed]:
    return [Addressed(0, message) for message in messages]


def speaking(*rows: int) -> Speaker:
    """One to whom all have said what their numbers mean."""
    speaker = Speaker(PLACE)
    for rank, count in zip((2, 3, 4), rows, strict=True):
        assert speaker.hear([(rank, Define(rank + 10, 0, (), text(count)))]) == []
    return speaker


def test_it_says_once_what_all_have_submitted_and_hands_the_order_round() -> None:
    speaker = speaking(1, 1, 1)
    assert speaker.hear([(3, Submit(13)), (4, Submit(14))]) == []
    assert speaker.hear([(2, Submit(12))]) == up(Define(0, 0, (), text()), Submit(0))
    handed = [Addressed(rank, Order((rank + 10,))) for rank in (4, 2, 3)]
    assert sorted(speaker.hear([(0, Order((0,)))])) == sorted(handed)
    assert speaker.hear([(rank, Submit(rank + 10)) for rank in (2, 3, 4)]) == up(Submit(0))


def test_what_differs_goes_up_as_a_row() -> None:
    speaker = speaking(1, 2, 3)
    told = speaker.hear([(rank, Submit(rank + 10)) for rank in (2, 3, 4)])
    row = Runs.of((text(1), text(2), text(3), text(3)))
    assert told == up(DefineRow(0, 0, (), "a", row), Submit(0))
    refused = speaker.hear([(0, Refused(0, "mismatch", "no"))])
    assert {each.to for each in refused} == {2, 3, 4}
    assert Addressed(4, Refused(14, "mismatch", "no")) in refused


def test_those_that_have_joined_take_part_without_a_number() -> None:
    speaker = speaking(1, 1, 1)
    assert speaker.hear([(3, Join()), (2, Submit(12))]) == []
    (definition, submitted) = speaker.hear([(4, Submit(14))])
    assert isinstance(definition.message, DefineRow)
    assert submitted.message == Submit(0)
    told = speaker.hear([(0, Detailed(0, 0, b"x"))])
    assert sorted(each.message.number for each in told) == [-1, 12, 14]  # type: ignore[union-attr]
    told = speaker.hear([(0, Detailed(-1, 0, b"x"))])
    assert [each.message for each in told] == [Detailed(-1, 0, b"x")] * 3


def test_it_says_that_all_have_joined_and_who_was_last() -> None:
    speaker = Speaker(PLACE)
    assert speaker.hear([(2, Join()), (4, JoinAll(5))]) == []
    assert speaker.hear([(3, Join())]) == up(JoinAll(3))
    assert {each.to for each in speaker.hear([(0, Joined(5))])} == {2, 3, 4}


def test_questions_go_up_with_the_name() -> None:
    speaker = speaking(1, 1, 1)
    assert speaker.hear([(3, Ask(13))]) == up(Via(3, AskNamed(13, 0, "a")))
    assert speaker.hear([(3, Ask(ANYTHING))]) == up(Via(3, Ask(ANYTHING)))


def test_it_tells_who_is_missing_for_a_while_once_and_again_when_that_changes() -> None:
    speaker = speaking(1, 1, 1)
    speaker.hear([(2, Submit(12))])
    assert speaker.is_waiting
    assert speaker.pass_time() == []
    assert speaker.pass_time() == up(Lacking(0, "a", (3, 4, 5)))
    assert speaker.pass_time() == []
    speaker.hear([(4, Lacking(0, "a", (5,))), (3, Submit(13))])
    assert speaker.pass_time() == up(Lacking(0, "a", (5,)))
    speaker.hear([(4, Submit(14))])
    assert not speaker.is_waiting
    assert speaker.pass_time() == []


def test_it_tells_who_is_missing_each_time_that_a_name_is_open() -> None:
    speaker = speaking(1, 1, 1)
    for _ in range(2):
        speaker.hear([(2, Submit(12)), (3, Submit(13)), (4, Lacking(0, "a", (5,)))])
        speaker.pass_time()
        assert speaker.pass_time() in (up(Lacking(0, "a", (5,))), [])
        assert speaker._said_lacking == {(0, "a"): (5,)}
        speaker.hear([(4, Submit(14))])
        assert speaker._said_lacking == {}


def test_it_says_what_is_not_decided_again_only_when_it_is_told_so() -> None:
    speaker = speaking(1, 1, 1)
    speaker.hear([(rank, Submit(rank + 10)) for rank in (2, 3, 4)])
    assert speaker.hear([(3, Leave())]) == up(Loosen())
    assert not speaker.is_loose
    own, other = Define(12, 0, (), text()), Define(13, 0, (), text())
    said = [Via(2, own), Via(2, Submit(12)), Via(3, other), Via(3, Submit(13)), Via(3, Leave())]
    assert speaker.hear([(0, Loosen())]) == [Addressed(4, Loosen()), *up(*said)]
    assert speaker.is_loose
    assert speaker.hear([(4, Submit(14)), (2, Join())]) == up(Via(2, Join()))
    assert speaker.hear([(4, Via(5, Submit(1)))]) == up(Via(5, Submit(1)))
    assert speaker.hear([(0, Via(5, Order((1,))))]) == [Addressed(4, Via(5, Order((1,))))]
    assert speaker.hear([(0, Via(2, Order((12,))))]) == [Addressed(2, Order((12,)))]


def test_when_it_leaves_all_below_are_out_of_it() -> None:
    speaker = Speaker(PLACE)
    speaker.hear([(2, Leave()), (0, Loosen()), (4, Via(5, Leave()))])
    assert speaker.leave() == [
        *up(Via(3, Leave()), Via(4, Leave())),
        Addressed(3, Leave(2)),
        Addressed(4, Leave(2)),
    ]


def test_faults_are_told_upwards_and_once() -> None:
    speaker = Speaker(PLACE)
    assert speaker.hear([(3, Fail("no"))]) == up(Via(3, Fail("no")))
    assert speaker.lost(3, "died") == up(Lost(3, "died"))
    assert speaker.lost(3, "died") == []
    assert speaker.hear([(4, Lost(5, "died"))]) == up(Lost(5, "died"))
    (lost,) = speaker.hear([(4, Submit(3))])
    assert "makes no sense" in lost.message.why  # type: ignore[union-attr]


def test_end_of_its_parent_is_told_to_all_below() -> None:
    speaker = Speaker(PLACE)
    assert speaker.lost(0, "died") == [Addressed(rank, Lost(0, "died")) for rank in (3, 4, 2)]
    speaker = Speaker(PLACE)
    assert [each.to for each in speaker.hear([(0, Leave(0))])] == [3, 4, 2]
    assert speaker.lost(0, "died") == []


@pytest.mark.parametrize("message", [Submit(0), Order((3,)), Refused(3, "", ""), Fail("x")])
def test_parent_that_says_what_it_cannot_is_an_error(message: Message) -> None:
    with pytest.raises(ProtocolError):
        Speaker(PLACE).hear([(0, message)])


def test_tensors_do_not_ride() -> None:
    (lost,) = speaking(1, 1, 1).hear([(3, Submit(13, b"abcd"))])
    assert "do not ride" in lost.message.why  # type: ignore[union-attr]


def test_welcome_is_handed_on() -> None:
    told = Speaker(PLACE).hear([(0, Welcome())])
    assert [each.to for each in told] == [3, 4, 2]
