"""Every public name is found by type checkers, which read the sources and run nothing."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from tests.unit.test_public_api import PUBLIC_NAMES

MODULES = [
    *PUBLIC_NAMES,
    "lockstitch.collectives",
    "lockstitch.attach.values",
    "lockstitch.errors",
    "lockstitch.pytest_plugin",
    "lockstitch.hvd.common",
    "lockstitch.hvd.common.elastic",
    "lockstitch.hvd.common.exceptions",
    "lockstitch.hvd.common.process_sets",
    "lockstitch.hvd.common.util",
    "lockstitch.hvd.compression",
    "lockstitch.hvd.elastic.handlers",
    "lockstitch.hvd.elastic.objects",
    "lockstitch.hvd.elastic.running",
    "lockstitch.hvd.elastic.sampler",
    "lockstitch.hvd.elastic.state",
    "lockstitch.hvd.exceptions",
    "lockstitch.hvd.functions",
    "lockstitch.hvd.mpi_ops",
    "lockstitch.hvd.optimizer",
    "lockstitch.hvd.process_sets",
    "lockstitch.hvd.runner",
    "lockstitch.hvd.sync_batch_norm",
    "lockstitch.nn.api",
    "lockstitch.nn.parallel.comm",
    "lockstitch.rpc.api",
    "lockstitch.rpc.backend_registry",
    "lockstitch.rpc.constants",
    "lockstitch.rpc.functions",
    "lockstitch.rpc.internal",
    "lockstitch.rpc.options",
    "lockstitch.rpc.rref_proxy",
]
ALL_OF_ANOTHER = "lockstitch.hvd.torch"
"""It has what `lockstitch.hvd` has, and spells nothing out."""

USE = """
from collections.abc import AsyncIterator, Iterator

import torch

import lockstitch
from lockstitch import autograd, hvd, optim, rpc
from lockstitch.hvd import DistributedOptimizer as HvdOptimizer, allreduce
from lockstitch.optim import ZeroRedundancyOptimizer

x = torch.ones(2)
reveal_type(allreduce(x, op=hvd.Sum))
reveal_type(hvd.alltoall(x))
reveal_type(hvd.alltoall(x, [1, 1]))
reveal_type(hvd.synchronize(hvd.allreduce_async_(x)))
reveal_type(hvd.broadcast_object({"a": 1}, root_rank=0))
reveal_type(hvd.allgather_object("a"))
reveal_type(hvd.elastic.TorchState)
reveal_type(hvd.ProcessSet([0]).size())
reveal_type(hvd.rank())
reveal_type(lockstitch.explain_waits)
reveal_type(rpc.remote("w", torch.nn.Linear, args=(1, 2)).owner_name())

def count(n: int) -> int:
    return n

async def late(n: int) -> str:
    return str(n)

def future(n: int) -> torch.futures.Future[float]:
    return torch.futures.Future()

def several(n: int) -> Iterator[int]:
    yield n

async def several_late(n: int) -> AsyncIterator[str]:
    yield str(n)

group = rpc.group("w*")
reveal_type(group.call(count, (1,)))
reveal_type(group.call(late, (1,)))
reveal_type(group.call(future, (1,)))
reveal_type(rpc.rpc_sync("w", future, (1,)))
reveal_type(group.call_async(count, (1,)).wait())
reveal_type(group.map(late, [1]))
reveal_type(group.reduce(count, (1,)))
reveal_type(group.reduce(count, (1,), op="mean"))
reveal_type(group.remote(torch.nn.Linear, (1, 2)))
reveal_type(group.remote(torch.nn.Linear, (1, 2))[0].to_here())
reveal_type(group.broadcast(x).to_here())
reveal_type(group.broadcast(x).call(count))
reveal_type([future.wait() for _, future in group.as_completed(late, (1,))])
reveal_type([item for _, item in group.stream(several, (1,))])
reveal_type(list(rpc.stream("w", several, (1,))))
reveal_type(rpc.stream("w", several_late, (1,)))
group.call(count, (1,))[0].upper()
hvd.allreduse(x)
rpc.rpc_synk("w", hvd.rank)
optim.DistributedOptimiser
lockstitch.explain_weights
"""

REVEALED = [
    "torch._tensor.Tensor",
    "torch._tensor.Tensor",
    "tuple[torch._tensor.Tensor, torch._tensor.Tensor]",
    "torch._tensor.Tensor",
    "dict[str, int]",
    "list[str]",
    None,
    "int | None",
    "int",
    None,
    "str",
    "list[int]",
    "list[str]",
    "list[float]",
    "float",
    "list[int]",
    "list[str]",
    "int",
    "Any",
    "lockstitch.rpc.worker_groups.references.RRefGroup[torch.nn.modules.linear.Linear]",
    "torch.nn.modules.linear.Linear",
    "list[torch._tensor.Tensor]",
    "list[int]",
    "list[str]",
    "list[int]",
    "list[int]",
    "lockstitch.rpc.worker_groups.streams.Stream[str]",
]


def names_of(module: str) -> list[str]:
    found = importlib.import_module(module)
    own = [
        name
        for name, value in vars(found).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module
    ]
    return list(getattr(found, "__all__", own))


def modules_within(module: str) -> set[str]:
    """It, and the modules that it lists as public names, and so on."""
    found = importlib.import_module(module)
    parts = [getattr(found, name) for name in getattr(found, "__all__", ())]
    within = {part.__name__ for part in parts if inspect.ismodule(part)} - {module}
    return {module}.union(*map(modules_within, within))


def test_these_are_all_public_modules():
    pages = (Path(__file__).parents[2] / "docs" / "reference").glob("*.md")
    described = re.findall(r"automodule:: (\S+)", "\n".join(page.read_text() for page in pages))
    listed = set().union(*(modules_within(module) for module in [*MODULES, ALL_OF_ANOTHER]))
    assert {*described, *listed} == {*MODULES, ALL_OF_ANOTHER}


def tree_of(module: str) -> ast.Module:
    return ast.parse(Path(inspect.getfile(importlib.import_module(module))).read_text())


def bound_in(body: list[ast.stmt]) -> set[str]:
    """The names that statements bind where they stand."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {each.asname or each.name.split(".")[0] for each in node.names}
        elif isinstance(node, ast.If):
            found |= bound_in(node.body) | bound_in(node.orelse)
        elif isinstance(node, ast.With | ast.Try):
            found |= bound_in(node.body)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_is_written_where_a_type_checker_looks(module):
    bound = bound_in(tree_of(module).body)
    assert "*" not in bound
    assert not set(names_of(module)) - bound


def list_of(module: str) -> ast.expr:
    """What `__all__` is, which must be spelt out."""
    lists = [
        node.value
        for node in tree_of(module).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    (only,) = lists
    return only


@pytest.mark.parametrize("module", MODULES)
def test_what_is_public_is_spelt_out_and_nothing_stands_for_names_that_are_not_there(module):
    for node in tree_of(module).body:
        assert not isinstance(node, ast.AugAssign), ast.unparse(node)
        assert not (isinstance(node, ast.FunctionDef) and node.name == "__getattr__")
    if hasattr(importlib.import_module(module), "__all__"):
        assert ast.literal_eval(list_of(module))


def test_all_operations_of_horovod_are_found_under_both_names():
    from lockstitch import hvd  # noqa: PLC0415 - of these two only

    parts = {
        f"lockstitch.hvd.{each}" for each in ("asynchronous", "basics", "handles", "synchronous")
    }
    operations = {
        name for name in hvd.__all__ if getattr(getattr(hvd, name), "__module__", "") in parts
    }
    assert len(operations) > 40
    assert operations <= set(hvd.mpi_ops.__all__) <= set(hvd.__all__)


@pytest.mark.slow
def test_a_program_that_uses_every_public_name_passes_a_strict_type_checker(tmp_path):
    mypy = pytest.importorskip("mypy.api")
    modules = [*MODULES, ALL_OF_ANOTHER]
    lines = [f"import {module}" for module in modules]
    lines += [f"{module}.{name}" for module in modules for name in names_of(module)]
    names, use = tmp_path / "names.py", tmp_path / "use.py"
    names.write_text("\n".join(lines))
    use.write_text(USE)
    options = ["--strict", "--cache-dir", str(tmp_path / "cache")]
    output, _, _ = mypy.run([*options, str(names), str(use)])
    assert "names.py" not in output
    revealed = re.findall(r'Revealed type is "(?:builtins\.)?(.*)"', output)
    for found, expected in zip(revealed, REVEALED, strict=True):
        assert expected in (None, found)
    missing = re.findall(r'no attribute "(\w+)"', output)
    assert missing == ["upper", "allreduse", "rpc_synk", "DistributedOptimiser", "explain_weights"]
    assert output.count("error:") == len(missing), output
