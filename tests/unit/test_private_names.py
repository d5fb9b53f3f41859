"""What is private to torch is used in one package only, where each name has a probe.

Torch may change such names from one version to the next. So nothing outside of `torch_internals`
says one: no attribute, no import, no string.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch

from lockstitch.torch_internals.names import NAMES_OF_AUTOGRAD, NAMES_OF_RPC
from lockstitch.torch_internals.registry import PRIVATES

if TYPE_CHECKING:
    from collections.abc import Iterable

SOURCES = Path(__file__).parents[2] / "src" / "lockstitch"
HOME = SOURCES / "torch_internals"

# Private names of others than torch, and attributes of ours that others keep for us.
OTHERS = {
    "_DeadlockError": "importlib",
    "_DummyThread": "threading",
    "_ZSt13set_terminatePFvvE": "the C++ library",
    "_active_spark_context": "PySpark",
    "_current_frames": "sys",
    "_exit": "os",
    "_fields": "named tuples",
    "_jsc": "PySpark",
    "_make": "named tuples",
    "_register_atexit": "threading",
    "_resource_tracker": "multiprocessing",
    "_sslobj": "ssl",
    "_notes_replicas": "ours, on a function of torch's",
    "_knows_our_futures": "ours, on a function of torch's",
    "_wrapped_async_rpc_function": "ours, on functions of programs, under the original's name",
}

# Objects of torch whose private attributes may be called as some of ours are.
TORCHS = (
    torch,
    torch.Tensor,
    torch.nn.Module(),
    torch.futures.Future,
    torch.UntypedStorage,
    torch.autograd.Function,
    torch.zeros(1, requires_grad=True).clone().grad_fn,
)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text) if is_private(word)}


REGISTERED = set().union(*(private_words(private.name) for private in PRIVATES))
OF_TORCH = REGISTERED.union(*(filter(is_private, dir(each)) for each in TORCHS))


class Source(NamedTuple):
    """What matters of a file."""

    nodes: list[ast.AST]
    for_people: set[int]
    """Docstrings, and names of ours in `__slots__` and `__all__`."""

    @classmethod
    def of(cls, text: str) -> Source:
        source = cls([], set())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                source.for_people.add(id(node.value))
            elif isinstance(node, ast.Assign) and is_listing(node):
                names = [each for each in ast.walk(node) if isinstance(each, ast.Constant)]
                source.for_people.update(map(id, names))
            elif isinstance(node, (ast.Attribute, ast.Constant, ast.Import, ast.ImportFrom)):
                source.nodes.append(node)
        return source


# What a file defines, and what may be somebody else's: a look at the text, since to parse all files
# takes seconds.
DEFINITION = re.compile(
    r"\b(?:def|class) (_\w+)|\bself\.(_\w+)(?=[:,]| =)|^ *(_\w+)(?=[:,]| =)", re.MULTILINE
)
SUSPECT = re.compile(
    r"(?<!\bself)(?<!\bcls)(?<!\(\))\._[a-z]|import .*\b_[a-z]|[\"'](_[a-z]|torch\.)|super\(\)\._",
    re.IGNORECASE,
)


def own_names(texts: Iterable[str]) -> set[str]:
    """What the sources define: functions, classes, variables, attributes of `self`."""
    return {name for text in texts for found in DEFINITION.findall(text) for name in found if name}


def is_listing(node: ast.Assign) -> bool:
    """Whether it lists names of ours."""
    return any(getattr(target, "id", None) in ("__slots__", "__all__") for target in node.targets)


def is_own_object(node: ast.expr) -> bool:
    """`self`, `cls`, `super()`: private attributes of these are private to us."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def privates_of_torch(source: Source, own: set[str]) -> list[tuple[int, str]]:
    """The lines on which something private to torch is named, and what."""
    return [
        (node.lineno, name)
        for node in source.nodes
        if id(node) not in source.for_people
        for name in sorted(named_by(node, own))
    ]


def named_by(node: ast.AST, own: set[str]) -> set[str]:
    """What is private to torch and named by this very node."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
        return private_words(" ".join([node.module or "", *(it.name for it in node.names)]))
    if isinstance(node, ast.Import):
        paths = [it.name for it in node.names if it.name.partition(".")[0] == "torch"]
        return private_words(" ".join(paths))
    if isinstance(node, ast.Attribute) and is_private(node.attr):
        is_unknown = node.attr not in own and node.attr not in OTHERS
        is_theirs = node.attr in OF_TORCH and not is_own_object(node.value)
        return {node.attr} if is_unknown or is_theirs else set()
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return words_of_torch(node.value)
    return set()


def words_of_torch(text: str) -> set[str]:
    """Private names in a string, which is a dotted name of torch's or one that is registered."""
    if re.fullmatch(r"torch(\.\w+)+", text):
        return private_words(text)
    return {text} & REGISTERED


def read(folder: Path) -> dict[str, str]:
    return {str(it.relative_to(SOURCES)): it.read_text() for it in sorted(folder.rglob("*.py"))}


def test_no_other_file_names_anything_that_is_private_to_torch():
    everything = read(SOURCES)
    outside = {file: it for file, it in everything.items() if not file.startswith(HOME.name)}
    own = own_names(outside.values())
    guilty = [
        f"{file}:{line}: {name}"
        for file, text in outside.items()
        if SUSPECT.search(text)
        for line, name in privates_of_torch(Source.of(text), own)
    ]
    assert guilty == []


def test_every_private_name_in_that_package_has_a_probe():
    texts = read(HOME).values()
    own = own_names(texts)
    without = {
        name
        for text in texts
        for _, name in privates_of_torch(Source.of(text), own)
        if name not in REGISTERED
    }
    only_named = {"_C", "_distributed_rpc", "_distributed_autograd", "_shard"}
    assert without - only_named - {*NAMES_OF_RPC, *NAMES_OF_AUTOGRAD} == set()
    assert all(callable(private.probe) and private.feature for private in PRIVATES)


def test_the_registry_names_nothing_that_is_not_used():
    text = "\n".join(path.read_text() for path in HOME.glob("*.py"))
    for name in REGISTERED:
        assert len(re.findall(rf"\b{name}\b", text)) > 0
    assert {"_foreach_copy_", "_version", "_parameters", "_execution_engine"} <= REGISTERED


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("import torch._C", "_C"),
        ("from torch.overrides import _pop_mode", "_pop_mode"),
        ("from torch._utils import ExceptionWrapper", "_utils"),
        ("torch._foreach_copy_(a, b)", "_foreach_copy_"),
        ("def f(tensor): return tensor._something_new", "_something_new"),
        ("def f(module): return module._parameters", "_parameters"),
        ("def f(tensor): tensor._is_param = True", "_is_param"),
        ("x = getattr(module, '_parameters')", "_parameters"),
        ("x = import_module('torch._dynamo')", "_dynamo"),
    ],
)
def test_it_is_noticed_wherever_it_is_named(program, name):
    assert SUSPECT.search(program)
    own = {"_parameters", "_values"}
    assert name in [found for _, found in privates_of_torch(Source.of(program), own)]


@pytest.mark.parametrize(
    "program",
    [
        "class A:\n    '''As torch._foreach_copy_.'''\n    __slots__ = ('_parameters',)",
        "def f(self): return self._parameters",
        "def f(other): return other._ours",
        "import torch.nn.functional",
        "os._exit(1)",
    ],
)
def test_what_is_ours_may_be_called_as_we_like(program):
    assert privates_of_torch(Source.of(program), {"_parameters", "_ours"}) == []
