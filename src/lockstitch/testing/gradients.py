"""The proof that a distributed computation computes what one process would: the same program is run
twice, once over the workers of a cluster and once in this process with plain PyTorch.

    def hidden(x):                       # runs on worker1
        return hidden_model()(x)

    def program(call):                   # runs on the driver
        return call("worker1", hidden, torch.ones(4)).sum()

    with LocalCluster(2) as cluster:
        assert_same_gradients(program, cluster, {"worker1": hidden_model})

A program reaches other workers only by the `call` that it is given: a remote call there, a plain
one here. A function that itself calls further takes `call` as one of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch

from lockstitch import autograd, rpc
from lockstitch.runtime.functions import qualified_name

Call = Callable[..., Any]
"""`call(to, function, *args, **kwargs)` runs the function on the worker named `to`."""

Leaves = torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[torch.Tensor]
Gradients = dict[str, dict[str, torch.Tensor | None]]


class Cluster(Protocol):
    """Workers that run programs, such as a `LocalCluster` or a `ProcessCluster`."""

    def run(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs `function` as code of the worker `name`, and returns its value."""
        ...


def assert_same_gradients(
    program: Callable[[Call], torch.Tensor],
    cluster: Cluster,
    leaves: Mapping[str, Callable[[], Leaves]],
    *,
    driver: str = "worker0",
    atol: float = 1e-6,
    rtol: float = 1e-5,
) -> Gradients:
    """Asserts that `program` yields the same loss and gradients over `cluster` as in one process.

    `program(call)` returns a scalar loss; it runs on the worker `driver`. `leaves` says for each
    worker whose gradients are compared, by a function without arguments, what its leaves are: a
    module, tensors by name, or tensors in some order. It must be one that a module holds, since
    any other would travel by value and bring copies; and called in this process it must return
    leaves of the same values, for instance because both begin with the same seed.

    `atol`, `rtol`: as for `torch.allclose`. Returns the gradients of the single process by worker
    and name of the leaf, None where a leaf takes no part. `.grad` is never touched.

    Raises `AssertionError` that lists everything that differs, `ValueError` where no module holds
    a function of `leaves`. The program runs twice, and must compute the same each time.
    """
    for worker, find in leaves.items():
        if qualified_name(find) is None:
            raise ValueError(
                f"{find!r}, which tells the leaves of {worker!r}, is no function that a module "
                "holds: it would travel by value, and the leaves that it finds be copies"
            )
    loss, expected, begun = _run_here(program, leaves)
    there_loss, there, there_begun = cluster.run(driver, _run_distributed, program, dict(leaves))
    differences = _compare(begun, there_begun, "value at the beginning", 0.0, 0.0)
    if not differences:
        differences += _compare({"": {"": loss}}, {"": {"": there_loss}}, "loss", atol, rtol)
        differences += _compare(expected, there, "gradient", atol, rtol)
    if differences:
        raise AssertionError(
            "the cluster does not compute what one process computes:\n  " + "\n  ".join(differences)
        )
    return expected


Outcome = tuple[torch.Tensor, Gradients, Gradients]
"""The loss, the gradients, and the values that the leaves began with."""


def call_here(_to: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function here: the `call` of the run in one process."""
    return function(*args, **kwargs)


def call_remotely(to: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function on a worker: the `call` of the run over the cluster."""
    return rpc.rpc_sync(to, function, args=args, kwargs=kwargs)


def _run_here(
    program: Callable[[Call], torch.Tensor], leaves: Mapping[str, Callable[[], Leaves]]
) -> Outcome:
    named = {worker: _named(find()) for worker, find in leaves.items()}
    begun = {worker: _copies(found) for worker, found in named.items()}
    loss = program(call_here)
    places = [(worker, name) for worker, found in named.items() for name in found]
    gradients = torch.autograd.grad(
        loss, [named[worker][name] for worker, name in places], allow_unused=True
    )
    found: Gradients = {worker: {} for worker in leaves}
    for (worker, name), gradient in zip(places, gradients, strict=True):
        found[worker][name] = gradient
    return loss.detach(), found, begun


def _run_distributed(
    program: Callable[[Call], torch.Tensor], leaves: Mapping[str, Callable[[], Leaves]]
) -> Outcome:
    """Runs the program over the cluster; called on the driver."""
    begun = {worker: rpc.rpc_sync(worker, _values, args=(find,)) for worker, find in leaves.items()}
    with autograd.context() as context_id:
        loss = program(call_remotely)
        autograd.backward(context_id, [loss])
        gradients = {
            worker: rpc.rpc_sync(worker, _gradients, args=(find, context_id))
            for worker, find in leaves.items()
        }
    return loss.detach(), gradients, begun


def _values(find: Callable[[], Leaves]) -> dict[str, torch.Tensor | None]:
    return _copies(_named(find()))


def _gradients(find: Callable[[], Leaves], context_id: int) -> dict[str, torch.Tensor | None]:
    gradients = autograd.get_gradients(context_id)
    return {name: gradients.get(leaf) for name, leaf in _named(find()).items()}


def _named(leaves: Leaves) -> dict[str, torch.Tensor]:
    if isinstance(leaves, torch.nn.Module):
        return dict(leaves.named_parameters())
    if isinstance(leaves, Mapping):
        return dict(leaves)
    return {str(index): leaf for index, leaf in enumerate(leaves)}


def _copies(named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor | None]:
    return {name: leaf.detach().clone() for name, leaf in named.items()}


def _compare(here: Gradients, there: Gradients, what: str, atol: float, rtol: float) -> list[str]:
    """Returns a line for each tensor that differs."""
    lines = []
    for worker in here:
        for name in sorted({*here[worker], *there[worker]}):
            place = f"{what} of {name!r} on {worker!r}" if worker else what
            difference = _difference(here[worker].get(name), there[worker].get(name), atol, rtol)
            if difference:
                lines.append(f"{place}: {difference}")
    return lines


def _difference(
    here: torch.Tensor | None, there: torch.Tensor | None, atol: float, rtol: float
) -> str:
    if here is None or there is None:
        if here is there:
            return ""
        return f"one process has {_brief(here)}, the cluster {_brief(there)}"
    if here.shape != there.shape or here.dtype != there.dtype:
        return f"one process has {_brief(here)}, the cluster {_brief(there)}"
    here, there = (each.to_dense() if each.is_sparse else each for each in (here, there))
    if torch.allclose(here, there, rtol=rtol, atol=atol, equal_nan=True):
        return ""
    return f"they differ by up to {(here - there).abs().max().item():.3g}"


def _brief(tensor: torch.Tensor | None) -> str:
    return "none" if tensor is None else f"{tensor.dtype} of shape {tuple(tensor.shape)}"
