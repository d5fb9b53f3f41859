"""By which connection a rank is reached."""

from __future__ import annotations

from lockstitch.collectives.c10d.messages import Leave, Loosen, Via
from lockstitch.collectives.c10d.routes import Addressed, Routes
from lockstitch.collectives.c10d.tree import Place

ROUTES = Place(0, -1, {1: (1,), 2: (2, 5, 6)})


def test_who_speaks_for_others_is_told_for_whom_a_message_is() -> None:
    routes = Routes(ROUTES)
    assert routes.to(1, Leave()) == Addressed(1, Leave())
    assert routes.to(6, Leave()) == Addressed(2, Via(6, Leave()))
    assert routes.to(2, Leave()) == Addressed(2, Via(2, Leave()))
    assert routes.to(0, Leave()) == Addressed(0, Leave())


def test_a_speaker_is_told_itself_what_is_for_all_for_whom_it_speaks() -> None:
    assert Routes.to_source(1, Loosen()) == Addressed(1, Loosen())
    assert Routes.to_source(-3, Loosen()) == Addressed(2, Loosen())


def test_who_has_left_has_gone() -> None:
    routes = Routes(ROUTES)
    routes.note_gone(1)
    routes.note_left(6)
    assert [routes.has_gone(rank) for rank in (1, 6, 5)] == [True, True, False]
    assert [routes.has_left(rank) for rank in (1, 6, 5)] == [False, True, False]
