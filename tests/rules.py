"""Rules that can be read off the sources: `python -m tests.rules`, a part of `make lint`.

Each rule names the files that may do what no other file may, with the reason where there is one
to give. What import-linter checks, the floors, is not repeated here.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SOURCES = Path(__file__).parents[1] / "src" / "lockstitch"


@dataclass(frozen=True)
class Rule:
    """`find` yields the lines of a file that break the rule, unless the file is one of `allowed`:
    the name of a file or of a folder (with a slash behind it) → the reason."""

    text: str
    find: Callable[[ast.Module], Iterator[int]]
    allowed: Mapping[str, str] = field(default_factory=dict)

    def broken(self, sources: Path = SOURCES) -> list[str]:
        """Where it is broken, as `file:line`."""
        return [
            f"{name}:{line}: {self.text}"
            for name, tree in parsed(sources)
            if not any(name == each or name.startswith(each) for each in self.allowed)
            for line in self.find(tree)
        ]

    def needless(self, sources: Path = SOURCES) -> list[str]:
        """Exceptions that nothing needs any more."""
        trees = list(parsed(sources))
        return [
            f"{each}: needs no exception: {self.text}"
            for each in self.allowed
            if not any(name.startswith(each) and any(self.find(tree)) for name, tree in trees)
        ]


def parsed(sources: Path) -> Iterator[tuple[str, ast.Module]]:
    """Each file below, by its name there."""
    for path in sorted(sources.rglob("*.py")):
        yield path.relative_to(sources).as_posix(), ast.parse(path.read_text())


def dotted(node: ast.AST) -> str:
    """`torch.cuda.Event` as it stands in the source; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def _asks_for_gpus(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        name = dotted(node)
        of_device = node.attr == "type" and dotted(node.value).endswith("device")
        if name in ("torch.cuda", "torch.accelerator") or node.attr == "is_cuda" or of_device:
            yield node.lineno


RULES = (
    Rule(
        "only lockstitch.devices asks for the kind of a device, or for GPUs and their streams",
        _asks_for_gpus,
        {"devices/": "where it is answered"},
    ),
)


def circles(sources: Path = SOURCES) -> list[list[str]]:
    """Files that import each other in a circle, imports for annotations included."""
    trees = dict(parsed(sources))
    modules = {_module(name): name for name in trees}
    edges = {
        name: {
            modules[target]
            for target in _imported(tree, modules)
            if modules[target] != name and not modules[target].endswith("__init__.py")
        }
        for name, tree in trees.items()
    }
    return [sorted(each) for each in _components(edges) if len(each) > 1]


def _module(name: str) -> str:
    parts = ["lockstitch", *Path(name).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(tree: ast.Module, modules: Mapping[str, str]) -> Iterator[str]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if name:
                yield name


def _components(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """The strongly connected components: of each file, who reaches it and is reached by it."""
    reached = {name: _reached(name, edges) for name in edges}
    found: list[set[str]] = []
    for name in edges:
        if not any(name in each for each in found):
            found.append({name} | {other for other in reached[name] if name in reached[other]})
    return found


def _reached(name: str, edges: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    ahead = [name]
    while ahead:
        for target in edges[ahead.pop()] - seen:
            seen.add(target)
            ahead.append(target)
    return seen


def main() -> int:
    """The exit status: 1 if a rule is broken."""
    found = [line for rule in RULES for line in (*rule.broken(), *rule.needless())]
    found += [f"{', '.join(each)}: import each other in a circle" for each in circles()]
    for line in found:
        print(line)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
