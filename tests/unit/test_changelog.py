"""Each fragment of the changelog is one that `make changelog` finds, and reads well there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAGMENTS = sorted((ROOT / "changelog.d").glob("*.md"))
NAME = re.compile(r"\+?[a-z0-9]+(-[a-z0-9]+)*\.(added|changed|deprecated|removed|fixed|security)")


def faults(name: str, text: str) -> list[str]:
    found = {
        "is named what-it-is.added.md, or .changed, .fixed …": NAME.fullmatch(name),
        "is a sentence": text[:1] in "`" or text[:1].isupper(),
        "ends with a full stop and one newline": re.search(r"[.)]\n\Z", text),
        "is no list: the entry's mark is added": not re.search(r"^\s*[-*] ", text, re.MULTILINE),
        "has lines of at most 98 characters": max(map(len, text.splitlines() or [""])) <= 98,
    }
    return [rule for rule, is_kept in found.items() if not is_kept]


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.stem)
def test_fragment_is_well_formed(path: Path) -> None:
    assert faults(path.stem, path.read_text()) == []


def test_nothing_else_lies_there() -> None:
    others = {path.name for path in (ROOT / "changelog.d").iterdir()} - {
        path.name for path in FRAGMENTS
    }
    assert others == {"template.jinja", ".gitignore"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("+calls.quicker", "Calls are quicker.\n"),
        ("calls", "Calls are quicker.\n"),
        ("+calls.fixed", "- Calls are quicker.\n"),
        ("+calls.fixed", "calls are quicker.\n"),
        ("+calls.fixed", "Calls are quicker"),
        ("+calls.fixed", ""),
        ("+calls.fixed", "Calls " * 20 + ".\n"),
    ],
)
def test_what_is_not_is_told(name: str, text: str) -> None:
    assert faults(name, text)


def test_the_changelog_has_the_place_where_they_go() -> None:
    mark = re.search(r'start_string = "(.*)\\n"', (ROOT / "pyproject.toml").read_text())
    assert mark is not None
    assert (ROOT / "CHANGELOG.md").read_text().count(mark[1] + "\n") == 1
