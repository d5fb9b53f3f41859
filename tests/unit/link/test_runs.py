"""Rows of texts of which many are the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.link.runs import Runs


@given(st.lists(st.sampled_from(["x", "y", "", None])))
def test_row_comes_back(row: list[str | None]) -> None:
    assert Runs.of(row).row() == tuple(row)


def test_many_that_agree_are_one_run() -> None:
    assert Runs.of(["x"] * 100_000) == Runs(("x",), ((100_000, 0),))


@pytest.mark.parametrize(
    "runs", [((1, 1),), ((1, -1),), ((0, 0),), ((-1, 0), (2, 0)), ((1 << 40, 0),)]
)
def test_numbers_that_cannot_be_are_refused(runs: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="no runs"):
        Runs(("x",), runs).row()
