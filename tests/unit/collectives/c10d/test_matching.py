"""Sources, each of them one rank or many, and what they have submitted."""

from __future__ import annotations

import pytest

from lockstitch.collectives.c10d.matching import Complete, Matching, sources_of
from lockstitch.collectives.c10d.messages import Define, DefineRow
from lockstitch.collectives.c10d.tree import Place
from lockstitch.collectives.requests import Description, Kind
from lockstitch.errors import ProtocolError
from lockstitch.link.runs import Runs

SOURCES = sources_of(Place(0, -1, {3: (3,), 2: (1, 2)}))
"""Rank 0, rank 3, and ranks 1 and 2, for which rank 2 speaks."""


def text(rows: int = 1) -> str:
    return Description(Kind.ALLREDUCE, "a", ("float32",), ((rows,),)).encode().decode()


def defined(*contents: str | tuple[str | None, ...]) -> Matching:
    matching = Matching(SOURCES)
    for source, content in zip((0, 3, -3), contents, strict=True):
        if isinstance(content, str):
            matching.define(source, Define(source + 10, 0, (), content))
        else:
            matching.define(source, DefineRow(source + 10, 0, (), "a", Runs.of(content)))
    return matching


def submit_all(matching: Matching) -> Complete:
    assert matching.submit(-3, 7) == matching.submit(0, 10) == []
    assert matching.is_waiting
    (complete,) = matching.submit(3, 13)
    assert not matching.is_waiting
    return complete


def test_sources_are_ranks_and_those_for_whom_speakers_speak() -> None:
    assert SOURCES == {0: (0,), 3: (3,), -3: (1, 2)}


def test_what_all_have_submitted_alike_is_uniform() -> None:
    complete = submit_all(defined(text(), text(), text()))
    assert complete.content.uniform == text()
    assert complete.parts == {-3: 7, 0: 10, 3: 13}


def test_what_differs_is_a_row_by_rank() -> None:
    complete = submit_all(defined(text(0), text(3), (text(1), text(2))))
    assert complete.content.uniform is None
    assert complete.content.row == (text(0), text(1), text(2), text(3))


def test_row_in_which_all_are_alike_is_uniform() -> None:
    complete = submit_all(defined(text(), text(), (text(), text())))
    assert complete.content.uniform == text()


def test_those_that_have_joined_have_none_in_the_row() -> None:
    matching = defined(text(), text(), (text(), None))
    assert matching.submit(-3, 7) == matching.submit(0, 10) == []
    (complete,), ended = matching.join(3, 3)
    assert complete.content.row == (text(), text(), None, None)
    assert (dict(complete.parts), ended) == ({-3: 7, 0: 10}, [])


def test_last_of_all_to_join_is_told_when_all_have() -> None:
    matching = Matching(SOURCES)
    assert matching.join(0, 0) == matching.join(3, 3) == ([], [])
    assert matching.join(-3, 1) == ([], [1])


def test_set_is_that_of_the_sources_which_have_ranks_in_it() -> None:
    matching = Matching(SOURCES)
    matching.define(-3, Define(0, 7, (1, 3, 9), text()))
    matching.define(3, Define(0, 7, (), text()))
    assert matching.sources_in(7) == (-3, 3)
    assert matching.ranks_in(-3, 7) == (1,)
    assert matching.set_ranks(7) == (1, 3)
    assert matching.open_names() == {}
    matching.submit(3, 0)
    assert matching.open_names() == {(7, "a"): (-3,)}


@pytest.mark.parametrize(
    "message",
    [
        Define(0, 7, (), text()),
        Define(0, 7, (1, 2), text()),
        Define(0, 0, (), "{"),
        DefineRow(0, 0, (), "a", Runs((text(),), ((2, 0),))),
        DefineRow(0, 0, (), "a", Runs((text(),), ((1, 5),))),
    ],
)
def test_what_makes_no_sense_is_refused(message: Define | DefineRow) -> None:
    with pytest.raises(ProtocolError):
        Matching(SOURCES).define(3, message)


def test_number_without_a_meaning_is_refused() -> None:
    with pytest.raises(ProtocolError, match="names 4, which it has not described"):
        Matching(SOURCES).submit(3, 4)
