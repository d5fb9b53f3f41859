"""Random messages of overlapping tensors, written and read on both sides, against plain PyTorch.

In one process crossing means: each tensor that is on the graph is cloned, the others are copied
together and share with each other what they shared. A program that raises an error there (a write
to a leaf, a gradient for which something overwritten is needed) must raise one here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstitch import autograd, rpc
from tests.cluster.autograd.comparison import OWNED, gradients_of, make_leaves

NAMES = ("x", "y", "w")
WAYS = ("sync", "async", "remote", "self")
MODES = ("plain", "no_grad", "inference_mode")


class Marked(torch.Tensor):
    """Adds nothing."""


class Program(NamedTuple):
    """`views` of what the caller has are sent; the callee does `steps` with them, sends some on to
    a third worker which does `further` ones, and returns `results`; the caller does `after`."""

    views: list[str]
    way: str
    mode: str
    steps: list[tuple[str, int]]
    further: list[tuple[str, int]] | None
    results: list[str]
    after: list[tuple[str, int]]


VIEWS = {
    "x": lambda t, _: t,
    "x again": lambda t, _: t.view(3),
    "tail": lambda t, _: t[1:],
    "head": lambda t, _: t[:2],
    "detached": lambda t, _: t.detach(),
    "detached tail": lambda t, _: t.detach()[1:],
    "detached column": lambda t, _: t.detach().view(3, 1),
    "expanded": lambda t, _: t.expand(2, 3),
    "windows": lambda t, _: t.unfold(0, 2, 1),
    "marked": lambda t, _: t.as_subclass(Marked),
    "marked detached": lambda t, _: t.detach().as_subclass(Marked),
    "complex": lambda t, u: torch.complex(t, u),
    "buffer": lambda _, u: u.detach(),
    "buffer head": lambda _, u: u.detach()[:2],
    "reversed": lambda _, u: torch.view_as_real(torch.complex(u, u).detach().conj().resolve_conj()),
    "y": lambda _, u: u,
    "leaf": lambda _, __: OWNED["y"],
}

RESULTS = {
    "all": lambda ts, acc: [acc, *ts],
    "acc": lambda ts, acc: [acc],
    "tails": lambda ts, acc: [acc, ts[0], ts[0][1:], ts[-1].detach()],
    "fresh": lambda ts, acc: (lambda z: [z, z[0], z.detach(), z.t()])(
        acc * torch.arange(4.0, dtype=torch.float64).view(2, 2)
    ),
}

STEPS = ("use", "save", "mul_", "write", "part", "quiet", "inference", "set", "replace")


def do(steps: list[tuple[str, int]], tensors: list[torch.Tensor]) -> torch.Tensor:
    """Does what a program says, in place where it says so; returns a number on the graph."""
    acc = OWNED["w"].sum()
    for number, (step, place) in enumerate(steps):
        place %= len(tensors)
        tensor = tensors[place]
        if step == "use":
            acc = acc + (number + 2) * torch.view_as_real(tensor.to(torch.complex128)).sum()
        elif step == "save":
            acc = acc + (tensor * tensor.conj()).abs().sum()
        elif step == "mul_":
            tensor.mul_(number + 2)
        elif step == "write":
            tensor.mul_(OWNED["w"].sum())
        elif step == "part" and tensor.dim():
            tensor[0].mul_(3)
        elif step == "set" and tensor.dim():
            tensor[-1] = acc.detach()
        elif step == "quiet":
            with torch.no_grad():
                tensor.add_(1)
        elif step == "inference":
            with torch.inference_mode():
                acc.detach() + tensor.sum()
        elif step == "replace":
            tensors[place] = tensor * 2
    return acc


def callee(program: Program, third: str | None, *tensors: torch.Tensor) -> Any:
    held = list(tensors)
    acc = do(program.steps, held)
    if program.further is not None:
        acc = acc + sum(each.abs().sum() for each in go(third, further, program.further, *held))
    return RESULTS[program.results[0]](held, acc)


def further(steps: list[tuple[str, int]], *tensors: torch.Tensor) -> Any:
    held = list(tensors)
    return [do(steps, held), held[0]]


def go(worker: str | None, function: Any, *arguments: Any, way: str = "sync") -> Any:
    """A call; `worker` None: in this process."""
    if worker is None:
        return crossed(function(*crossed(arguments)))
    if way == "async":
        return rpc.rpc_async(worker, function, args=arguments).wait()
    if way == "remote":
        return rpc.remote(worker, function, args=arguments).to_here()
    return rpc.rpc_sync("worker0" if way == "self" else worker, function, args=arguments)


def crossed(values: Any) -> list[Any]:
    """What crossing means, in one process."""
    records = torch.is_grad_enabled()
    new: dict[int, torch.Tensor] = {}
    known: dict[int, Any] = {}
    with torch.inference_mode(False):
        for value in values:
            if isinstance(value, torch.Tensor) and id(value) not in known:
                known[id(value)] = _copy(value, new, records=records)
    return [known.get(id(value), value) for value in values]


def _copy(value: torch.Tensor, new: dict[int, torch.Tensor], *, records: bool) -> torch.Tensor:
    if value.requires_grad and records:
        dense = value.clone(memory_format=torch.contiguous_format)
        return dense.as_subclass(type(value))
    storage = value.untyped_storage()
    base = new.get(storage.data_ptr())
    if base is None:
        flat = torch.empty(0, dtype=value.dtype).set_(storage).detach().clone()
        base = new[storage.data_ptr()] = flat
    if value.is_complex() != base.is_complex():
        base = torch.view_as_real(base).view(-1) if base.is_complex() else base
    view = base.as_strided(value.shape, value.stride(), value.storage_offset())
    if value.requires_grad:  # a mode that records nothing: it arrives as a leaf
        view = view.detach().requires_grad_()
    return view.as_subclass(type(value)) if type(value) is not torch.Tensor else view


def run(program: Program, worker: str | None, third: str | None) -> torch.Tensor:
    x, y = OWNED["x"].tanh(), OWNED["y"].sin()
    sent = [VIEWS[name](x, y) for name in program.views]
    if program.mode == "plain":
        results = go(worker, callee, program, third, *sent, way=program.way)
    else:
        with getattr(torch, program.mode)():
            if worker is None:
                arguments = crossed((program, third, *sent))
                with torch.inference_mode(False):  # the callee has modes of its own
                    results = crossed(callee(*arguments))
                    cut = {id(each): each.detach() for each in results if each.requires_grad}
                    results = [cut.get(id(each), each) for each in results]
            else:
                results = go(worker, callee, program, third, *sent, way=program.way)
    acc = do(program.after, results)
    return acc + sum((each * each.conj()).abs().sum() for each in results)


def gradients(program: Program, cluster: Any) -> Any:
    leaves = make_leaves()
    OWNED.update(leaves)
    try:
        if cluster is None:
            root = run(program, None, None)
            root.backward()
            return root.item(), {name: leaves[name].grad for name in NAMES}
        with cluster[0].active(), autograd.context() as context_id:
            root = run(program, "worker1", "worker2")
            autograd.backward(context_id, [root])
            found = gradients_of(cluster, context_id)
            return root.item(), {name: found.get(leaves[name]) for name in NAMES}
    except RuntimeError as error:
        return error


def steps(most: int) -> Any:
    return st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=most)


PROGRAMS = st.builds(
    Program,
    st.lists(st.sampled_from(sorted(VIEWS)), min_size=1, max_size=4),
    st.sampled_from(WAYS),
    st.sampled_from((*MODES[:1], *MODES)),
    steps(5),
    st.none() | steps(3),
    st.lists(st.sampled_from(sorted(RESULTS)), min_size=1, max_size=1),
    steps(3),
)


def test_whatever_overlaps_and_is_written_gives_the_gradients_of_one_process(cluster):
    @settings(suppress_health_check=list(HealthCheck))
    @given(PROGRAMS)
    def compare(program):
        plain, distributed = gradients(program, None), gradients(program, cluster)
        if isinstance(plain, Exception):
            assert isinstance(distributed, Exception), f"{plain!r} is not raised"
            return
        assert not isinstance(distributed, Exception), repr(distributed)
        assert abs(plain[0] - distributed[0]) <= 1e-9 * max(1, abs(plain[0]))
        for name, gradient in plain[1].items():
            other = distributed[1][name]
            assert (gradient is None) == (other is None), name
            assert gradient is None or torch.allclose(gradient, other), name

    compare()
