"""One program, run twice: over the workers of a cluster, and in one process with plain PyTorch.

A program is `program(leaves) → roots`. Its `call(worker, function, *tensors)` is a remote call
there and a plain one here. `leaves` is a dictionary by name; functions that run on workers reach it
as `OWNED`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from lockstitch import autograd, rpc
from lockstitch.testing.time_limits import ActiveTimeLimit

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.testing.cluster import LocalCluster

OWNED: dict[str, torch.Tensor] = {}
"""The leaves of the program that runs now, as remote functions see them."""

NAMES = ("x", "y", "w", "v")


def make_leaves() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.rand(3, dtype=torch.float64, generator=generator).requires_grad_()
        for name in NAMES
    }


class Way:
    """How calls are made by the program that runs now."""

    is_remote = False


def call(worker: str, function: Callable[..., Any], *tensors: Any) -> Any:
    if Way.is_remote:
        return rpc.rpc_sync(worker, function, args=tensors)
    value = function(*map(_copy, tensors))
    return tuple(map(_copy, value)) if isinstance(value, tuple) else _copy(value)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def gradients_of(cluster: LocalCluster, context_id: int) -> dict[torch.Tensor, torch.Tensor]:
    """The gradients of a context, summed over the workers: here they may share leaves."""
    total: dict[torch.Tensor, torch.Tensor] = {}
    for worker in cluster:
        with worker.active():
            known = [context.id for context in autograd.api.service().contexts]
            found = autograd.get_gradients(context_id) if context_id in known else {}
        for leaf, gradient in found.items():
            total[leaf] = total[leaf] + gradient if leaf in total else gradient
    return total


def run_plain(program: Callable[..., Any], prepare: Any = None) -> dict[str, torch.Tensor]:
    """Name of leaf → gradient."""
    leaves = make_leaves()
    OWNED.update(leaves)
    if prepare is not None:
        prepare(leaves)
    Way.is_remote = False
    torch.autograd.backward([root.sum() for root in program(leaves)])
    return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def run_on(
    cluster: LocalCluster, program: Callable[..., Any], mode: Any = "smart", prepare: Any = None
) -> dict[str, torch.Tensor]:
    """Name of leaf → gradient."""
    leaves = make_leaves()
    OWNED.update(leaves)
    if prepare is not None:
        prepare(leaves)
    Way.is_remote = True
    with cluster[0].active(), autograd.context() as context_id:
        roots = [root.sum() for root in program(leaves)]
        autograd.backward(context_id, roots, mode=mode)
        found = gradients_of(cluster, context_id)
    assert all(leaf.grad is None for leaf in leaves.values())
    return {name: found[leaf] for name, leaf in leaves.items() if leaf in found}


def assert_same(
    cluster: LocalCluster,
    program: Callable[..., Any],
    modes: tuple[str, ...] = ("smart", "fast"),
    prepare: Any = None,
) -> None:
    plain = run_plain(program, prepare)
    for mode in modes:
        distributed = run_on(cluster, program, mode, prepare)
        assert distributed.keys() == plain.keys()
        for name, gradient in plain.items():
            torch.testing.assert_close(distributed[name], gradient, rtol=1e-12, atol=1e-12)


def wait_until(holds: Callable[[], bool], timeout_seconds: float = 5.0) -> bool:
    """Whether `holds()` becomes true in time."""
    time_limit = ActiveTimeLimit(timeout_seconds)
    pause = threading.Event()
    while not holds():
        if time_limit.is_over():
            return False
        pause.wait(0.005)
    return True


def run_in_threads(tasks: list[Callable[[], None]], timeout_seconds: float = 30.0) -> None:
    """Runs all at once; raises the first error of any."""
    errors: list[BaseException] = []

    def guard(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=guard, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_seconds)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]
