"""Every Python block in the README and in docs/ is a program that runs; every link leads somewhere.

A block is run as `python` would, or, below a line `<!-- workers: 2 -->`, as `lockstitch run -n 2`
would; that of the README by this command itself. What is no whole program stands in a block of
another kind (diff, text). Where a block of text follows that begins with such a command, what
stands below it is what the program prints, to the letter.

The site itself is built by `make docs`, which continuous integration runs; the slow test here also
looks at what its reference shows.
"""

from __future__ import annotations

import importlib
import os
import re
import runpy
import subprocess
import sys
import types
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lockstitch
from tests.unit.test_public_api import public_values
from tests.warm import Done

if TYPE_CHECKING:
    from tests.warm import WarmInterpreter

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- workers: (?P<workers>\d+) -->\n\n?)?^```python\n(?P<code>.*?)^```$"
    r"(?:\n+^```text\n\$ (?P<command>[^\n]*)\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
INNER = set(
    """
    copy_of add_note check_callee check_method apply landed complete attach channel estimate attend
    add_inner_callback set_attribute text_of repr_of worker function part holds
    """.split()
)
BESIDE = {
    "lockstitch.rpc.functions.async_execution",
    "lockstitch.rpc.backend_registry.register_backend",
    "lockstitch.nn.slots.base.SlotStatistics",
    "lockstitch.optim.groups.ParameterGroup",
    "lockstitch.nn.slots.cuda.on_stream",
    "lockstitch.nn.pipelining.steps.StepRecord",
    "lockstitch.nn.pipelining.schedules.Schedule",
    "lockstitch.nn.pipelining.schedules.Action",
}
"""Public, too, in modules below the faces."""
VARIABLE = re.compile(r"\b(?:LOCKSTITCH|HOROVOD)_[A-Z_]*[A-Z]\b")


@dataclass(frozen=True)
class Snippet:
    place: str
    code: str
    workers: int
    command: str | None
    output: str | None


def snippets() -> list[Snippet]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("code")) + 1
            place = f"{page.relative_to(ROOT)}:{line}"
            workers = int(match["workers"] or 0)
            found.append(Snippet(place, match["code"], workers, match["command"], match["output"]))
    return found


def launch(script: Path, workers: int) -> Done:
    """Runs the script by `lockstitch run`."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "lockstitch", "run", "-n", str(workers), str(script)],
        cwd=script.parent,
        env={**os.environ, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def run_ranks(python: WarmInterpreter, script: Path, workers: int) -> Done:
    """The same in processes that have imported torch already."""
    ranks = python.run_ranks(script, script.parent, workers)
    lines = [
        f"[w{rank}] {line}"
        for rank, each in enumerate(ranks)
        for line in each.output.splitlines(keepends=True)
    ]
    errors = "".join(each.errors for each in ranks)
    return Done(max(abs(each.status) for each in ranks), "".join(lines), errors)


@pytest.mark.parametrize("snippet", snippets(), ids=lambda snippet: snippet.place)
def test_snippet_runs(snippet: Snippet, warm_python: WarmInterpreter, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(snippet.code)
    if not snippet.workers:
        done = warm_python.run(script, tmp_path)
    elif snippet.place.startswith("README"):
        done = launch(script, snippet.workers)
    else:
        done = run_ranks(warm_python, script, snippet.workers)
    assert done.status == 0, f"{snippet.place}\n{done.output}\n{done.errors}"
    if snippet.output is not None:
        how = f"lockstitch run -n {snippet.workers}" if snippet.workers else "python"
        assert snippet.command == f"{how} program.py"
        assert done.output == snippet.output


def test_what_programs_of_the_pages_print_is_on_the_pages() -> None:
    silent = [each.place for each in snippets() if "print(" in each.code and each.output is None]
    # What every worker waits for, and since when, is another each time.
    assert [place.partition(":")[0] for place in silent] == ["docs/how-to/see-a-job.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_each_python_block_is_found() -> None:
    fences = sum(page.read_text().count("```python") for page in PAGES)
    assert len(snippets()) == fences


def test_files_on_the_map_exist() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / "ARCHITECTURE.md").read_text()))
    files = [path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert {name for name in named if not any(path.match(name) for path in files)} == set()


def test_every_variable_of_the_environment_is_on_its_page() -> None:
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    names = {name for text in sources for name in VARIABLE.findall(text)}
    assert sorted(name for name in names if f"`{name}`" not in page) == []


def described(inventory: Path) -> set[str]:
    """The names that the reference of a site has a description of, as it tells other sites; not
    those under which only their description elsewhere is found."""
    head, _, packed = inventory.read_bytes().partition(b"using zlib.\n")
    assert head.startswith(b"# Sphinx inventory")
    lines = zlib.decompress(packed).decode().splitlines()
    entries = [line.split() for line in lines]
    return {name for name, kind, rank, *_ in entries if kind.startswith("py:") and rank != "-1"}


def object_of(name: str) -> Any:
    """What a full name stands for; None for what only instances have."""
    found: Any = lockstitch
    place, *parts = name.split(".")
    for part in parts:
        place = f"{place}.{part}"
        if isinstance(found, types.ModuleType) and not hasattr(found, part):
            importlib.import_module(place)
        found = getattr(found, part, None)
    return found


def times_described(names: set[str]) -> dict[str, int]:
    """How often each public class and function is described under its own name. (One that has
    another name besides, as RRef is PyRRef, may be mentioned there.)"""
    shown = [object_of(name) for name in names]
    own = [
        id(each)
        for each, name in zip(shown, names, strict=True)
        if getattr(each, "__name__", None) == name.rpartition(".")[2]
    ]
    public = {str(each.id): each.values[0] for each in public_values()}
    return {name: own.count(id(value)) for name, value in public.items()}


def unknown(names: set[str]) -> list[str]:
    """Classes and functions that are described, but that nobody has agreed to be public."""
    public = [each.values[0] for each in public_values()]
    return sorted(
        name
        for name in names
        if isinstance(value := object_of(name), type | types.FunctionType)
        and value.__name__ == name.rpartition(".")[2] == value.__qualname__
        and not any(value is each for each in public)
        and name not in BESIDE
        and not name.startswith(("lockstitch.errors.", "lockstitch.nn.parallel.comm."))
    )


@pytest.mark.slow
def test_site_is_built_from_clean_without_a_warning_and_shows_what_is_public(
    tmp_path: Path,
) -> None:
    pytest.importorskip("sphinx")
    pytest.importorskip("pyspark")  # what is described is imported
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-b", "html", "docs", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names = described(tmp_path / "objects.inv")
    assert "lockstitch.rpc.functions.async_execution" in names
    for module in ("rpc", "autograd", "optim", "checkpoint", "hvd", "c10d", "testing", "errors"):
        assert f"lockstitch.{module}" in names
    future = {name for name in names if name.startswith("lockstitch.rpc.Future.")}
    assert {name.rpartition(".")[2] for name in future} == {
        "done",
        "wait",
        "then",
        "add_done_callback",
        "cancel",
    }
    ours = [name for name in names if not name.startswith("lockstitch.attach.values")]
    assert [name for name in ours if INNER & set(name.split("."))] == []
    times = times_described(names)
    assert {name: each for name, each in times.items() if each != 1} == {}
    assert unknown(names) == []


def test_pictures_are_what_their_program_draws() -> None:
    folder = ROOT / "docs" / "drawings"
    pictures = runpy.run_path(str(folder / "draw.py"))["drawn"]()
    assert {path: path.read_text() for path in folder.glob("*.svg")} == pictures
