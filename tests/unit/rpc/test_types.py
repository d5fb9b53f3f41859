"""A type checker knows what a call returns."""

from __future__ import annotations

import re

import pytest

PROGRAM = """
from torch import Tensor
from torch.futures import Future

from lockstitch import rpc
from lockstitch.rpc.functions import async_execution


def length(text: str) -> int:
    return len(text)


@async_execution
def later(text: str) -> Future[float]:
    return Future()


async def as_coroutine(text: str) -> complex:
    return 1j


class Model:
    def __init__(self, size: int) -> None: ...


reveal_type(rpc.rpc_sync("w", length, args=("a",)))
reveal_type(rpc.rpc_async("w", length, args=("a",)))
reveal_type(rpc.remote("w", length, args=("a",)))
reveal_type(rpc.rpc_sync("w", later, args=("a",)))
reveal_type(rpc.rpc_async("w", later, args=("a",)))
reveal_type(rpc.remote("w", Model, args=(3,)))
reveal_type(rpc.remote("w", Model, args=(3,)).to_here())
reveal_type(rpc.rpc_sync("w", as_coroutine, args=("a",)))
reveal_type(rpc.rpc_async("w", as_coroutine, args=("a",)))
reveal_type(rpc.remote("w", as_coroutine, args=("a",)))
reveal_type(rpc.group("w*")[1:].call_async(length, args=("a",)))
reveal_type(rpc.wait_all([rpc.rpc_async("w", length, args=("a",))]))
"""

REVEALED = [
    "int",
    "lockstitch.runtime.pending.Future[int]",
    "lockstitch.rref.rref.RRef[int]",
    "float",
    "lockstitch.runtime.pending.Future[float]",
    "lockstitch.rref.rref.RRef[program.Model]",
    "program.Model",
    "complex",
    "lockstitch.runtime.pending.Future[complex]",
    "lockstitch.rref.rref.RRef[complex]",
    "lockstitch.rpc.worker_groups.future.GroupFuture[int]",
    "list[int]",
]


@pytest.mark.slow
def test_a_type_checker_knows_what_calls_return(tmp_path) -> None:
    mypy = pytest.importorskip("mypy.api")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    output, _, _ = mypy.run(["--strict", "--cache-dir", str(tmp_path / "cache"), str(program)])
    assert "error" not in output
    assert re.findall(r'Revealed type is "(?:builtins\.)?(.*)"', output) == REVEALED
