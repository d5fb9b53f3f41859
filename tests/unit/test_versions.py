from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lockstitch.versions import (
    RANGE,
    REQUIREMENT,
    TORCH,
    are_alike,
    is_tested,
    parse,
    refuse_old,
    tell_of_missing,
    tell_of_unknown,
)
from tests.matrix import VERSIONS

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
    refuse_old(version)
    tell_of_unknown(version)
    tell_of_missing(version, [("torch._C._one is missing", "quick copies: does without it")])
    assert is_tested(version)


@pytest.mark.parametrize(
    ("other", "is_alike"), [("1.2.9", True), ("1.2", True), ("1.3.0", False), ("2.2.0", False)]
)
def test_versions_are_alike_whose_first_two_numbers_are_the_same(other, is_alike):
    assert are_alike("1.2.0.dev0", other) is are_alike(other, "1.2.0.dev0") is is_alike


@pytest.mark.parametrize("version", ["2.9.1", "1.13.1+cu117"])
def test_an_old_one_is_refused_with_the_range(version):
    says = f"needs torch {RANGE}, and this is torch {version}. Install .*{REQUIREMENT}"
    with pytest.raises(ImportError, match=re.escape(says).replace(r"\.\*", ".*")):
        refuse_old(version)
    assert not is_tested(version)


@pytest.mark.parametrize("version", ["2.16.0", "3.0.0", "master"])
def test_an_unknown_one_is_told_of_and_what_it_lacks(version):
    with pytest.warns(UserWarning, match=rf"torch {version}, only with {RANGE}\. It goes on"):
        tell_of_unknown(version)
    lacks = [("torch._C._one is missing", "quick copies: does without it"), ("b", "stitches: off")]
    with pytest.warns(UserWarning, match=rf"torch {version}, with which .* not tested") as told:
        tell_of_missing(version, lacks)
    first, second = (str(each.message) for each in told)
    assert "torch._C._one is missing (quick copies: does without it). All else goes on" in first
    assert "b (stitches: off)" in second


PROGRAM = """
import importlib, sys, torch

torch.__version__ = sys.argv[1]
del torch._foreach_copy_  # can be missed
for part in "checkpoint rpc autograd optim nn hvd collectives observe testing".split():
    importlib.import_module(f"lockstitch.{part}")
print("all imported")
"""


def imported_with(version):
    """A process that imports all parts with a torch that says it is of this version."""
    command = [sys.executable, "-c", PROGRAM, version]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_process_with_an_old_one_ends_at_the_first_import_that_needs_it():
    done = imported_with("2.9.1")
    assert done.returncode == 1
    assert f"ImportError: Lockstitch needs torch {RANGE}, and this is torch 2.9.1" in done.stderr


def test_a_process_with_an_unknown_one_imports_everything_and_is_told_what_is_missing():
    done = imported_with("2.99.0")
    assert done.stdout.strip() == "all imported", done.stderr
    assert done.stderr.count("not tested with torch 2.99.0") == 1
    assert "torch._foreach_copy_ is missing" in done.stderr
    assert "(quick copies of many tensors: does without it). All else goes on" in done.stderr


def test_the_range_is_told_alike_everywhere():
    lower, upper = (f"{major}.{minor}" for major, minor in TORCH)
    assert f"torch>={lower},<{upper}" == REQUIREMENT
    assert f"{lower} to {TORCH[1][0]}.{TORCH[1][1] - 1}" == RANGE
    project = (ROOT / "pyproject.toml").read_text()
    assert f'"{REQUIREMENT}"' in project
    assert RANGE in (ROOT / "docs" / "reference" / "versions.md").read_text()


def test_the_ends_of_the_ranges_are_tested_and_the_workflow_tests_what_make_does():
    torches = {parse(torch) for _, torch in VERSIONS}
    (major, first), (_, end) = TORCH
    assert torches == {(major, minor) for minor in range(first, end)}
    project = (ROOT / "pyproject.toml").read_text()
    pythons = re.findall(r"Programming Language :: Python :: (3\.\d+)", project)
    assert {python for python, _ in VERSIONS} == set(pythons)
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    included = workflow["jobs"]["matrix"]["strategy"]["matrix"]["include"]
    assert [(each["python"], each["torch"]) for each in included] == list(VERSIONS)
