from __future__ import annotations

import sys
import types
import warnings

import pytest

from lockstitch.replacement.stale_imports import warn_of_stale_imports


class Original:
    pass


def test_nothing_is_said_where_nobody_keeps_anything() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_stale_imports("library", {-1: "library.Nothing"})


def test_modules_are_named_with_what_they_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = types.ModuleType("keeper")
    keeper.Kept = Original  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keeper", keeper)
    monkeypatch.setitem(sys.modules, "keeper_by_another_name", keeper)
    with pytest.warns(RuntimeWarning) as caught:
        warn_of_stale_imports("library", {id(Original): "library.Original"})
    text = str(caught[0].message)
    assert "keeper.Kept (library.Original)" in text
    assert "keeper_by_another_name" not in text
    assert "LOCKSTITCH_REPLACE=library" in text


def test_long_list_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = types.ModuleType("keeper")
    for number in range(20):
        setattr(keeper, f"kept{number}", Original)
    monkeypatch.setitem(sys.modules, "keeper", keeper)
    with pytest.warns(RuntimeWarning, match=r"and 1\d more"):
        warn_of_stale_imports("library", {id(Original): "library.Original"})
