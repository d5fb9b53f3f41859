"""An outcome tells everybody once, and keeps nothing that was read."""

from __future__ import annotations

import pytest

from lockstitch.runtime.outcome import Outcome


def test_callbacks_run_when_it_ends_and_at_once_where_it_has_ended() -> None:
    outcome, told = Outcome(), []
    outcome.add_done_callback(lambda it: told.append(it.value()))
    assert not told
    outcome.end(3, None)
    outcome.add_done_callback(lambda it: told.append(it.is_done))
    assert told == [3, True]


def test_first_end_counts() -> None:
    outcome = Outcome()
    outcome.end(None, KeyError("first"))
    outcome.end(5, None)
    with pytest.raises(KeyError, match="first"):
        outcome.value()
    assert outcome.value() is None  # it was read, and is kept no more
