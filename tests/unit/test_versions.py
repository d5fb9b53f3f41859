from __future__ import annotations

import re
import runpy
import warnings
from pathlib import Path

import pytest
import torch

from lockstitch import modes
from lockstitch.torch_internals import probing
from lockstitch.versions import (
    RANGE,
    REQUIREMENT,
    TORCH,
    is_tested,
    parse,
    refuse_old,
    tell_of_unknown,
)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("2.13.0", (2, 13)),
        ("2.10.0+cu128", (2, 10)),
        ("2.16.0.dev20270101", (2, 16)),
        ("2.9.0a0+git123", (2, 9)),
        ("master", None),
    ],
)
def test_major_and_minor_number_are_read(version, known):
    assert parse(version) == known


@pytest.mark.parametrize("version", ["2.10.0", "2.13.0+cpu", "2.15.9"])
def test_a_torch_within_the_range_is_taken_without_a_word(version):
    def never():
        raise AssertionError("nobody has to look")

    refuse_old(version)
    tell_of_unknown(version, never)
    assert is_tested(version)


@pytest.mark.parametrize("version", ["2.9.1", "1.13.1+cu117"])
def test_an_old_one_is_refused_with_the_range(version):
    says = f"needs torch {RANGE}, and this is torch {version}. Install .*{REQUIREMENT}"
    with pytest.raises(ImportError, match=re.escape(says).replace(r"\.\*", ".*")):
        refuse_old(version)
    assert not is_tested(version)


@pytest.mark.parametrize("version", ["2.16.0", "3.0.0", "master"])
def test_an_unknown_one_is_told_of_with_what_it_lacks(version):
    lacks = [("torch._C._one", "quick copies: does without it"), ("Node.other", "stitches: is off")]
    with pytest.warns(UserWarning, match=f"not tested with torch {version}") as told:
        tell_of_unknown(version, lambda: lacks)
    (text,) = [str(each.message) for each in told]
    assert (
        "2.15. It lacks torch._C._one: quick copies: does without it. It lacks Node.other" in text
    )
    assert ": stitches: is off. All else goes on" in text
    with pytest.warns(UserWarning, match=rf"only with {RANGE}\. It goes on"):
        tell_of_unknown(version)


@pytest.mark.parametrize(
    ("part", "version", "error"),
    [(probing, "2.9.1", ImportError), (modes, "2.99.0", UserWarning)],
    ids=["too old", "unknown"],
)
def test_it_is_asked_when_the_first_part_that_needs_torch_is_imported(
    part, version, error, monkeypatch
):
    monkeypatch.setattr(torch, "__version__", version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(error, match=version):
            runpy.run_path(part.__file__)


def test_the_range_is_told_alike_everywhere():
    lower, upper = (f"{major}.{minor}" for major, minor in TORCH)
    assert f"torch>={lower},<{upper}" == REQUIREMENT
    assert f"{lower} to {TORCH[1][0]}.{TORCH[1][1] - 1}" == RANGE
    project = (ROOT / "pyproject.toml").read_text()
    assert f'"{REQUIREMENT}"' in project
    assert RANGE in (ROOT / "docs" / "reference" / "versions.md").read_text()
