from __future__ import annotations

import importlib

import pytest

from lockstitch.replacement.table import INCUMBENTS, parse_names


def test_names_come_in_a_list_with_commas() -> None:
    assert parse_names("horovod, torch-rpc,,horovod") == ("horovod", "torch-rpc")


def test_all_stands_for_each() -> None:
    assert parse_names("all") == ("torch-rpc", "horovod", "data-parallel")


def test_nothing_is_replaced_where_nothing_is_named() -> None:
    assert parse_names("") == ()


def test_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match=r"'rpc': say torch-rpc, horovod, data-parallel, or all"):
        parse_names("rpc")


@pytest.mark.parametrize("name", INCUMBENTS)
def test_whatever_stands_in_is_there(name: str) -> None:
    incumbent = INCUMBENTS[name]
    for _, ours in incumbent.modules:
        importlib.import_module(ours)
    importlib.import_module("lockstitch.rpc")
    for them in incumbent.attributes:
        theirs = importlib.import_module(them.place)
        mine = importlib.import_module(them.ours)
        assert [it for it in them.names if not hasattr(theirs, it) or not hasattr(mine, it)] == []
