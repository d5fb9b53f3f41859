"""How the ranks of a session are called in what people read."""

from __future__ import annotations

from lockstitch.collectives.rank_names import RankNames


def test_ranks_are_called_by_their_own_numbers_unless_people_know_others() -> None:
    assert RankNames().in_words([7]) == "rank 7"
    names = RankNames([4, 9, 2])
    assert names.in_words([0, 2]) == "ranks 4, 2"
    assert names.one(1) == "rank 9"
    assert names.number(1) == 9


def test_many_ranks_are_cut_short() -> None:
    assert RankNames().in_words(list(range(40))).endswith("14, 15, …")


def test_places_are_empty_until_they_are_known() -> None:
    names = RankNames()
    assert names.place(1) == names.here == ""
    names.learn_places(["host a", "host b", "host a"].__getitem__, "host a")
    assert (names.place(1), names.here) == ("host b", "host a")
