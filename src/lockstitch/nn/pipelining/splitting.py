"""`split`: a model cut into stages of about equal cost, each put onto its worker.

model ─► pieces, in their order ─► costs ─► ranges of pieces ─► stages ─► workers
         (tracing)                 (costs)  (balance)           (tracing)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lockstitch.nn.api import RemoteModule
from lockstitch.nn.pipelining.balance import partition
from lockstitch.nn.pipelining.costs import MEASURES, Measure, cost_of, without_a_trace
from lockstitch.nn.pipelining.tracing import take_apart
from lockstitch.nn.slots.lifting import fill, lift
from lockstitch.rpc import RRef, get_worker_info, rpc_sync
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.nn.pipelining.tracing import Pieces


def split(
    module: nn.Module, workers: Sequence[str], example: Any, by: Measure = "time"
) -> list[RemoteModule]:
    """Cuts a model into as many stages as there are `workers`, of about equal cost, and puts each
    onto its worker; returns them as `Pipeline` takes them.

    `module` is a `Sequential`, whose children are kept whole (but for those that are plain
    `Sequential`s themselves), or a module that `torch.fx` can trace, which is cut between the
    operations of its forward method. A submodule that cannot be traced is kept whole. `workers`:
    names of workers, one for each stage; a name that is there again gets several. `example`: a
    micro-batch with which the parts are tried on this worker, a tuple for several arguments. `by`:
    the cost that is balanced: "time" of a forward and a backward pass, "memory" that parameters,
    their gradients and what is saved for the backward pass take, or the size of the "parameters".
    The most expensive stage is as cheap as contiguous parts can be.

    Names are kept: what the stages have in their `state_dict`s is together what `module` has. A
    stage on this worker has the very parameters of `module`, others get copies, and are in the
    mode (`train`, `eval`) in which `module` is. The model, its buffers and the generator of random
    numbers are left as they were.

    Raises `ValueError` for fewer parts than workers, for a module that cannot be traced (naming the
    operation), for a parameter that stages of two workers share (naming it), for operations that
    write to what another stage sees, and for another `by`; `TypeError` for what is no module or no
    list of names; and what the model raises for the example.
    """
    _check(module, workers, by)
    args = example if type(example) is tuple else (example,)
    pieces = take_apart(module)
    with without_a_trace(module):
        costs = _costs(pieces, args, by)
    stages = pieces.stages(_ranges(pieces, costs, len(workers)))
    for stage in stages:
        stage.training = module.training
    _check_sharing(stages, workers)
    _check_results(module, stages, args)
    return _settle(stages, workers)


def _check(module: object, workers: object, by: object) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(f"module is a module to be cut, not {module!r}")
    if (
        isinstance(workers, str)
        or not isinstance(workers, (list, tuple))
        or not workers
        or not all(isinstance(each, str) for each in workers)
    ):
        raise TypeError(f"workers is a list of names, one for each stage, not {workers!r}")
    if by not in MEASURES:
        raise ValueError(f"by is one of {', '.join(map(repr, MEASURES))}, not {by!r}")


def _costs(pieces: Pieces, example: tuple[Any, ...], by: Measure) -> list[float]:
    costs: list[float] = []
    counted = set[int]()

    def try_one(run: Callable[..., Any], args: Any, parameters: list[torch.Tensor]) -> Any:
        fresh = [each for each in parameters if id(each) not in counted]
        counted.update(map(id, fresh))
        cost, output = cost_of(run, args, fresh, by)
        costs.append(cost)
        return output

    pieces.run(example, try_one)
    return costs


def _ranges(pieces: Pieces, costs: list[float], stages: int) -> list[range]:
    """Which pieces make a stage. Cuts are where one value goes across, if there are enough."""
    groups = pieces.cuts()
    if len(groups) < stages:
        groups = [range(at, at + 1) for at in range(len(costs))]
    if len(groups) < stages:
        raise ValueError(
            f"the module has {len(groups)} parts in which it can be cut, and there are {stages} "
            "workers: name fewer, or make it of more modules"
        )
    parts = partition([sum(costs[at] for at in group) for group in groups], stages)
    return [range(groups[part.start].start, groups[part.stop - 1].stop) for part in parts]


def _check_sharing(stages: list[nn.Module], workers: Sequence[str]) -> None:
    owners: dict[int, tuple[int, str]] = {}
    for number, stage in enumerate(stages):
        for name, tensor in stage.named_parameters(remove_duplicate=False):
            first, first_name = owners.setdefault(id(tensor), (number, name))
            if workers[first] != workers[number]:
                raise ValueError(
                    f"stages {first} and {number} share a parameter ({first_name!r}, {name!r}), "
                    f"and are for different workers, {workers[first]!r} and {workers[number]!r}: "
                    "give both stages the same worker"
                )


def _check_results(module: nn.Module, stages: list[nn.Module], example: tuple[Any, ...]) -> None:
    """Raises `ValueError` where the stages, each with inputs of its own, give something else than
    the module: then they have written to memory that they share with another stage's values."""
    results = []
    for chain in ([module], stages):
        with without_a_trace(module), torch.no_grad():
            value: Any = example
            for each in chain:
                skeleton, tensors = lift(value if type(value) is tuple else (value,))
                value = each(*fill(skeleton, [tensor.detach().clone() for tensor in tensors]))
            results.append(lift(value)[1])
    for one, other in zip(*results, strict=True):
        if one.shape != other.shape or not torch.allclose(one, other, equal_nan=True):
            raise ValueError(
                f"the stages of a {type(module).__name__} give other results than it: an operation "
                "writes to a tensor of which another stage has a view; write to none in place"
            )


def _settle(stages: list[nn.Module], workers: Sequence[str]) -> list[RemoteModule]:
    """Brings all stages of a worker there at once: what they share stays shared."""
    own, settled = get_worker_info().name, dict[int, RRef[nn.Module]]()
    for worker in dict.fromkeys(workers):
        numbers = [number for number, name in enumerate(workers) if name == worker]
        mine = [stages[number] for number in numbers]
        if worker == own:
            references = [RRef(stage) for stage in mine]
        else:
            references = rpc_sync(worker, _keep, (mine,))
        settled.update(zip(numbers, references, strict=True))
    return [
        RemoteModule.init_from_module_rref(worker, settled[number])
        for number, worker in enumerate(workers)
    ]


@needed
def _keep(stages: list[nn.Module]) -> list[RRef[nn.Module]]:
    kept = set[int]()
    for stage in stages:
        for tensor in (*stage.parameters(), *stage.buffers()):
            if id(tensor) not in kept:
                tensor.data = tensor.data.clone()  # it came in memory that is only lent
                kept.add(id(tensor))
    return [RRef(stage) for stage in stages]
