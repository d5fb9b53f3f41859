"""What a program meets that looks for parts of Horovod which are not here."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("spark", r"each task of a barrier stage set HOROVOD_RANK.* lockstitch\.hvd\.run"),
        ("spark.torch", "no estimators"),
    ],
)
def test_what_is_not_there_says_what_to_do(name: str, advice: str) -> None:
    with pytest.raises(ImportError, match=advice):
        importlib.import_module(f"lockstitch.hvd.{name}")
