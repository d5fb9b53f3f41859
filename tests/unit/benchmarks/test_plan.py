"""The plan names each row once, measures each with both, and can be cut down from the command."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.cases.programs import EXAMPLES, NAMES, with_imports_of
from benchmarks.libraries import LOCKSTITCH, TORCH
from benchmarks.options import parse_options
from benchmarks.plan import FULL, QUICK
from benchmarks.runner import is_chosen, needs_programs
from benchmarks.sections import SECTIONS

ROWS = [(section, row) for section in SECTIONS for row in section.comparisons]


def test_names_are_unique_and_cases_can_be_sent_to_a_process() -> None:
    names = Counter(row.name for _, row in ROWS)
    assert [name for name, count in names.items() if count > 1] == []
    for _, row in ROWS:
        for _, _, prepare in row.contenders:
            pickle.loads(pickle.dumps(prepare))


def test_everything_is_compared_with_the_incumbent_or_with_ourselves() -> None:
    for section, row in ROWS:
        libraries = [contender.library for _, contender, _ in row.contenders]
        assert libraries[:2] == [LOCKSTITCH, LOCKSTITCH if section.other == "FAST" else TORCH]


def test_curves_have_an_abscissa_and_grow() -> None:
    for section in SECTIONS:
        places = [row.x for row in section.comparisons]
        if section.is_curve:
            assert places == sorted(places)
            assert section.x_label
        else:
            assert set(places) == {None}


def test_a_row_is_chosen_by_a_part_of_its_name_or_a_pattern() -> None:
    assert is_chosen("", "calls", "no-op")
    assert is_chosen("no-", "calls", "no-op")
    assert is_chosen("calls", "calls", "no-op")
    assert is_chosen("n*p", "calls", "no-op")
    assert not is_chosen("n?p", "calls", "no-op")
    assert not is_chosen("echo", "calls", "no-op")


def test_examples_are_loaded_only_where_they_are_measured() -> None:
    assert needs_programs("", SECTIONS)
    assert needs_programs("RNN", SECTIONS)
    assert not needs_programs("no-op rpc*", SECTIONS)


@pytest.mark.parametrize("name", NAMES)
def test_only_the_imports_of_an_example_change(name) -> None:
    source = (EXAMPLES / f"{name}.py").read_text()
    assert with_imports_of(LOCKSTITCH, source) == source
    theirs = with_imports_of(TORCH, source)
    changed = [
        (old, new)
        for old, new in zip(source.splitlines(), theirs.splitlines(), strict=True)
        if old != new
    ]
    assert changed
    # Torch has nothing like hvd.
    without = [(old.replace("import hvd, ", "import "), new) for old, new in changed]
    assert all(new == old.replace("lockstitch", TORCH) for old, new in without)
    assert all(old.startswith(("import ", "from ")) for old, _ in changed)


def test_the_command_is_read() -> None:
    options = parse_options(["--quick", "--only", "calls", "--out", "elsewhere"])
    assert options.pace is QUICK
    assert (options.only, options.folder) == ("calls", Path("elsewhere"))
    assert options.json == Path("elsewhere/benchmarks.json")
    assert parse_options([]).pace is FULL
    assert parse_options(["--only", "a b", "--quick"]).command == (
        "python -m benchmarks --quick --only 'a b'"
    )
    assert parse_options(["--docs"]).docs


@pytest.mark.parametrize(
    "arguments",
    [
        ["--docs", "--only", "x"],
        ["--from-json", "f", "--quick"],
        ["--unknown"],
        ["--out", __file__],
    ],
)
def test_a_command_without_sense_is_refused(arguments, capsys) -> None:
    with pytest.raises(SystemExit):
        parse_options(arguments)
    assert "usage: python -m benchmarks" in capsys.readouterr().err
