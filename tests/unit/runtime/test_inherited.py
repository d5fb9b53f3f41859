"""A deadline is inherited within its block, by its thread only."""

from __future__ import annotations

import pytest

from lockstitch.runtime.inherited import INHERITED, inherited_deadline
from tests.unit.runtime.stage import Background


def test_deadline_holds_within_the_block_and_nests() -> None:
    assert INHERITED.deadline is None
    with inherited_deadline(5.0):
        with inherited_deadline(3.0):
            assert INHERITED.deadline == 3.0
        assert INHERITED.deadline == 5.0
    assert INHERITED.deadline is None


def test_error_within_the_block_ends_it_too() -> None:
    with pytest.raises(ValueError, match="no"), inherited_deadline(5.0):
        raise ValueError("no")
    assert INHERITED.deadline is None


def test_other_threads_inherit_nothing() -> None:
    with inherited_deadline(5.0):
        assert Background(lambda: INHERITED.deadline).result() is None
