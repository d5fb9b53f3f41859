"""Rules that can be read off the sources: `python -m tests.rules`, a part of `make lint`.

Each rule names the files that may do what no other file may, with the reason where there is one
to give. What import-linter checks, the floors, is not repeated here.
"""

from __future__ import annotations

import ast
import functools
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
        yield path.relative_to(sources).as_posix(), _parsed(path.read_text())


_parsed = functools.cache(ast.parse)


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


OPENING = {"socket", "create_connection", "create_server", "socketpair", "fromfd", "SocketType"}
OF_ASYNCIO = {"open_connection", "start_server", "open_unix_connection", "start_unix_server"}
SERVERS = {"socketserver", "http.server", "asyncio.streams", "_socket"}
BY_NAME = {"Client", "Listener"}


def _opens_sockets(tree: ast.Module) -> Iterator[int]:
    """Where something is called that makes a socket, or imported by another name."""
    for node in ast.walk(tree):
        is_import = isinstance(node, (ast.Import, ast.ImportFrom))
        names = {each.name: each.asname for each in node.names} if is_import else {}
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            is_connection = module == "multiprocessing.connection" and BY_NAME & names.keys()
            if module == "socket" or module in SERVERS or is_connection:
                yield node.lineno
        elif isinstance(node, ast.Import):
            if names.keys() & SERVERS or names.get("socket"):
                yield node.lineno
        elif isinstance(node, ast.Call):
            module, _, function = dotted(node.func).rpartition(".")
            if function in {"socket": OPENING, "asyncio": OF_ASYNCIO}.get(module, ()):
                yield node.lineno


RULES = (
    Rule(
        "only lockstitch.devices asks for the kind of a device, or for GPUs and their streams",
        _asks_for_gpus,
        {"devices/": "where it is answered"},
    ),
    Rule(
        "what passes between two processes takes one route, and proves itself there: only "
        "lockstitch.link and lockstitch.transport open sockets",
        _opens_sockets,
        {
            "link/": "the proof",
            "attach/": "processes of one user on one host, for which the kernel vouches",
            "transport/": "the route",
            "collectives/shared_memory/introduction.py": "hands descriptors to ranks of the same "
            "host, which only a unix socket can; the kernel says whose the other end is",
            "launch/stopping.py": "a pair within one process, on which Python tells signals",
            "memory/handover.py": "a pair that one worker hands another over their connection",
            "nn/slots/fork.py": "a pair between a process and its own child",
            "rendezvous/reaching.py": "asks whether the store of torch answers",
        },
    ),
)


def state_born_late(sources: Path = SOURCES) -> list[str]:
    """Where a method gives its object an attribute that was not born with it, as `file:line`.

    Born with it is what `__init__` assigns, what methods assign that `__init__` calls, and what the
    body of the class declares; also in the classes that it derives from, which are told by name.
    """
    classes: dict[str, list[ast.ClassDef]] = {}
    found = []
    trees = list(parsed(sources))
    for _, tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)
    for name, tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                born = _born(node, classes)
                found += [
                    f"{name}:{line}: {node.name}.{attribute} is not there from the beginning: "
                    "assign it in __init__, or declare it in the class"
                    for method in _methods(node).values()
                    for attribute, line in _assigned(method).items()
                    if attribute not in born
                ]
    return found


_BEGINNING = ("__init__", "__new__", "__post_init__", "__setstate__")


def _born(node: ast.ClassDef, classes: Mapping[str, list[ast.ClassDef]]) -> set[str]:
    methods = _methods(node)
    born = _declared(node) | methods.keys()
    ahead = [name for name in _BEGINNING if name in methods]
    seen = set(ahead)
    while ahead:
        method = methods[ahead.pop()]
        born |= _assigned(method).keys()
        called = _called(method) & methods.keys() - seen
        seen |= called
        ahead += called
    for base in map(_name_of_base, node.bases):
        for each in classes.get(base, ()):
            if each is not node:
                born |= _born(each, classes)
    return born


def _declared(node: ast.ClassDef) -> set[str]:
    """The names that the body of the class itself assigns or annotates."""
    targets: list[ast.expr] = []
    for each in node.body:
        if isinstance(each, ast.Assign):
            targets += each.targets
        elif isinstance(each, ast.AnnAssign):
            targets.append(each.target)
    return {each.id for each in targets if isinstance(each, ast.Name)}


def _name_of_base(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return dotted(node).rpartition(".")[2]


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {
        each.name: each
        for each in node.body
        if isinstance(each, ast.FunctionDef)
        and not any(dotted(by) in ("classmethod", "staticmethod") for by in each.decorator_list)
    }


def _of_self(node: ast.AST, method: ast.FunctionDef) -> bool:
    first = method.args.args[0].arg if method.args.args else None
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == first
    )


def _assigned(method: ast.FunctionDef) -> dict[str, int]:
    """The attributes that a method assigns to its object, and where first."""
    found: dict[str, int] = {}
    for node in ast.walk(method):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and _of_self(node, method)
        ):
            found.setdefault(node.attr, node.lineno)
    return found


def _called(method: ast.FunctionDef) -> set[str]:
    """The methods of its object that a method calls."""
    return {
        node.func.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and _of_self(node.func, method)
    }


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
    found += state_born_late()
    found += [f"{', '.join(each)}: import each other in a circle" for each in circles()]
    for line in found:
        print(line)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
