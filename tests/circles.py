"""Packages whose modules import each other in a circle, and are found slowly: Python then sees two
threads that each hold what the other one wants."""

from __future__ import annotations

import importlib
import sys
import threading
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_FINDING_SECONDS = 0.003


class Circles:
    """Makes such packages in `folder`. Whoever begins at a part has that part's lock, and needs the
    package first, which imports all its parts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._prefix = f"circle_of_{folder.name}_"
        self._numbers = count()
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setattr(sys, "meta_path", [self, *sys.meta_path])

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """As a finder of Python's: finds nothing, and takes its time."""
        if name.startswith(self._prefix):
            threading.Event().wait(_FINDING_SECONDS)

    def make(self, size: int) -> list[str]:
        """A package with so many parts; the names of all its modules. Each has a `run`."""
        package = f"{self._prefix}{next(self._numbers)}"
        parts = [f"{package}.part{number}" for number in range(size)]
        folder = self._folder / package
        folder.mkdir()
        run = "def run(): return 7\n"
        imports = "".join(f"import {part}\n" for part in parts)
        (folder / "__init__.py").write_text(imports + run)
        for number in range(size):
            text = f"import {parts[(number + 1) % size]}\n{run}"
            (folder / f"part{number}.py").write_text(text)
        importlib.invalidate_caches()
        return [package, *parts]
