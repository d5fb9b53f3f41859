"""Calls whose functions must still be imported, several at once."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

from lockstitch import rpc
from lockstitch.imports import IMPORTS
from lockstitch.runtime.agent import AgentOptions
from lockstitch.testing.cluster import LocalCluster
from tests.circles import Circles
from tests.unit.runtime.stage import Background, Stage

if TYPE_CHECKING:
    from pathlib import Path

    from lockstitch.wire.messages import Call


@pytest.mark.parametrize("parts", [2, 3])
def test_requests_that_import_modules_in_a_circle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    circles = Circles(tmp_path, monkeypatch)
    with Stage() as stage:
        caller = stage.caller()
        for _ in range(5):
            names = circles.make(parts)
            requests: list[Call] = [caller.call(f"{each}:run") for each in reversed(names)]
            caller.send(*requests)
            assert [caller.answer() for _ in requests] == [7] * len(requests)


@pytest.mark.parametrize("ours", [1, 16])
def test_a_module_that_makes_calls_while_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: int
) -> None:
    """What it calls calls back, and that imports another module, and uses what is there of the
    first."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"calling{ours}"
    (tmp_path / f"{name}.py").write_text(
        "from lockstitch import rpc\n"
        "from tests.cluster.runtime.test_imports import relay\n"
        "def early(): return 3\n"
        f"FOUND = rpc.rpc_sync('worker1', relay, ('{name}_other', '{name}'))\n"
        "def run(): return FOUND\n"
    )
    (tmp_path / f"{name}_other.py").write_text("def run(): return 4\n")
    importlib.invalidate_caches()
    options = AgentOptions(num_threads=ours)
    with LocalCluster(2, options=options) as cluster, cluster[1].active():
        assert Background(_call_by_name, cluster, name).result() == 7


class _Named:
    """Crosses as what a module holds under a name, there only."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __reduce__(self) -> Any:
        return _found, (self.module, self.name)


def _found(module: str, name: str) -> Any:
    def find(module: str, name: str) -> Any:
        return getattr(importlib.import_module(module), name)

    return IMPORTS.find(module, name, find)


def run_it(function: Any) -> Any:
    return function()


def _call_by_name(cluster: LocalCluster, module: str) -> Any:
    with cluster[1].active():
        return rpc.rpc_sync("worker0", run_it, (_Named(module, "run"),))


def relay(other: str, first: str) -> int:
    """On the worker that a module calls while worker0 imports it."""
    return sum(
        rpc.rpc_sync("worker0", run_it, (_Named(module, name),))
        for module, name in ((other, "run"), (first, "early"))
    )
