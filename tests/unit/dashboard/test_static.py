"""The page as it is committed: made of the sources beside it, small, and sufficient unto itself."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from lockstitch.dashboard import __file__ as package

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "packaging" / "dashboard"
STATIC = Path(package).parent / "static"


def test_the_page_is_what_its_sources_give() -> None:
    names = ["build.mjs", "package.json", "package-lock.json"]
    names += sorted(f"src/{path.name}" for path in (SOURCES / "src").iterdir())
    made_of = hashlib.sha256()
    for name in names:
        made_of.update(f"{name}\0".encode() + (SOURCES / name).read_bytes())
    assert (STATIC / "sources.sha256").read_text().strip() == made_of.hexdigest(), (
        "the sources of the page have changed: `make dashboard` builds it anew"
    )


def test_it_is_small_and_asks_nobody_else() -> None:
    files = list(STATIC.iterdir())
    assert sum(path.stat().st_size for path in files) < 1_000_000
    for path in files:
        if path.suffix in (".html", ".js", ".css"):
            addresses = re.findall(r"(?:https?:)?//[a-z][\w.-]+\.[a-z]{2,}", path.read_text())
            assert addresses == [], path


def test_the_licences_of_what_is_in_it_are_listed() -> None:
    bundled = json.loads((SOURCES / "package.json").read_text())["dependencies"]
    licences = (STATIC / "LICENSES.txt").read_text()
    assert bundled
    for name, version in bundled.items():
        assert f"{name} {version}\n" in licences
    assert "MIT License" in licences


def test_no_registry_is_named() -> None:
    assert '"resolved"' not in (SOURCES / "package-lock.json").read_text()
