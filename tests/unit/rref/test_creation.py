from __future__ import annotations

import pytest

from lockstitch.errors import RRefError
from lockstitch.rref.creation import Creation


@pytest.fixture
def outcomes() -> list[BaseException | None]:
    return []


@pytest.fixture
def creation(outcomes) -> Creation:
    return Creation(outcomes.append)


def test_the_outcome_is_told_once(creation, outcomes):
    creation.complete(None, None)
    creation.complete(None, RRefError("a repetition"))
    assert outcomes == [None]
    assert creation.error is None


def test_a_future_is_made_when_it_is_asked_for(creation):
    future = creation.future()
    assert not future.done()
    assert not creation.has_callbacks
    creation.complete(None, None)
    assert future.wait() is None
    assert creation.future() is future


def test_a_future_that_comes_late_is_complete(creation):
    creation.complete(None, None)
    assert creation.future().wait() is None


def test_a_failure_is_raised_where_somebody_waits_without_its_frames(creation, outcomes):
    try:
        raise RRefError("no value")
    except RRefError as error:
        creation.complete(None, error)
    assert outcomes[0].__traceback__ is None
    with pytest.raises(RRefError, match="no value"):
        creation.future().wait()


def test_callbacks_of_users_are_noticed(creation):
    seen: list[object] = []
    creation.future().add_done_callback(seen.append)
    assert creation.has_callbacks
    creation.complete(None, None)
    assert seen == [creation.future()]
