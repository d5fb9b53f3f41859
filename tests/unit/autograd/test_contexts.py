"""The contexts of one worker, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstitch.autograd.contexts import Contexts
from lockstitch.ids import WorkerId, context_owner

if TYPE_CHECKING:
    from lockstitch.autograd.context import DistAutogradContext

ME = WorkerId(3, 0)
THEIRS = 100


@pytest.fixture
def contexts() -> Contexts:
    return Contexts(ME, home="the service")


def opened(contexts: Contexts) -> DistAutogradContext:
    context = contexts.new()
    contexts.add(context)
    return context


def test_opened_contexts_have_ids_of_their_own(contexts: Contexts) -> None:
    one, other = opened(contexts), opened(contexts)
    assert one.id != other.id
    assert context_owner(one.id) == ME
    assert contexts.alive() == [one, other]
    assert contexts.find(other.id) is other
    assert one.home == "the service"


def test_context_of_a_message_is_made_once(contexts: Contexts) -> None:
    joined = contexts.join(THEIRS)
    assert joined is not None
    assert contexts.join(THEIRS) is joined
    assert contexts.get(THEIRS) is joined


def test_released_context_does_not_come_back(contexts: Contexts) -> None:
    contexts.join(THEIRS)
    assert contexts.remove(THEIRS)
    assert not contexts.remove(THEIRS)
    assert contexts.join(THEIRS) is None
    with pytest.raises(RuntimeError, match="Could not find autograd context with id: 100"):
        contexts.find(THEIRS)


def test_release_may_come_before_the_first_message(contexts: Contexts) -> None:
    contexts.note_release(THEIRS)
    assert contexts.join(THEIRS) is None
    assert len(contexts) == 0


def test_releases_are_remembered_but_not_for_ever(
    contexts: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstitch.autograd.contexts._REMEMBERED_RELEASES", 3)
    for identifier in range(10):
        contexts.note_release(identifier)
    assert [identifier for identifier in range(10) if contexts.join(identifier) is None] == [
        7,
        8,
        9,
    ]


def test_clearing_hands_out_all(contexts: Contexts) -> None:
    one = opened(contexts)
    assert contexts.clear() == [one]
    assert contexts.alive() == []
