"""Pipelines made by chance, and the same models in one process.

A stage takes and returns a hidden state, a second tensor of another shape, a text, and skip
connections. What it does with them its `Kind` says. The model in one process runs the same modules
over the same micro-batches, one after the other, with the same random numbers.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies
from torch import nn

from lockstitch import autograd, rpc
from lockstitch.nn.pipelining.micro_batches import sizes_of
from lockstitch.nn.pipelining.pipeline import Pipeline
from lockstitch.nn.slots import generators

if TYPE_CHECKING:
    from lockstitch.testing.cluster import LocalCluster

WORKERS = ["driver", "a", "b", "c"]


@dataclass(frozen=True)
class Kind:
    """What a stage does."""

    width: int
    norm: bool = False
    dropout: bool = False
    writes: bool = False
    frozen: bool = False
    gives_skip: bool = False
    takes_skip: bool = False
    uses_side: bool = False
    scaled: bool = False


class Block(nn.Module):
    """A stage of that kind, after one of `before` features. `widths` are those of the skips that
    come, in their order."""

    def __init__(self, before: int, kind: Kind, widths: list[int]) -> None:
        super().__init__()
        self.kind = kind
        self.linear = nn.Linear(before, kind.width)
        self.norm = nn.BatchNorm1d(kind.width) if kind.norm else None
        takes = kind.takes_skip and widths
        self.mix = nn.Linear(widths[-1], kind.width) if takes else None
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, hidden, side, text="", skips=(), scale=None):
        if self.kind.writes:
            hidden.mul_(1.5)
        hidden = torch.tanh(self.linear(hidden))
        if self.norm is not None:
            hidden = self.norm(hidden)
        if self.kind.dropout:
            hidden = nn.functional.dropout(hidden, 0.3, self.training)
        if self.mix is not None:
            hidden = hidden + self.mix(skips[-1].to_here())
        if scale is not None:
            hidden = hidden * scale.unsqueeze(1)
        if self.kind.uses_side:
            side = side + hidden.sum(1)
        if self.kind.gives_skip:
            skips = [*skips, rpc.RRef(hidden)]
        if self.training:
            self.calls += 1
        return hidden, side, text + "x", skips


class LastBlock(Block):
    """One that hands no skips on."""

    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)[:3]


def loss_of(output: Any, target: torch.Tensor) -> torch.Tensor:
    hidden, side, text = output
    return ((hidden.sum(1) + side - target) ** 2).mean() * len(text)


@dataclass(frozen=True)
class Program:
    """A pipeline and a batch."""

    schedule: str
    placement: tuple[int, ...]
    """The worker of each stage, as a place in `WORKERS`."""
    kinds: tuple[Kind, ...]
    tied: bool
    """Whether two stages of one worker share their weights."""
    recompute: frozenset[int]
    chunks: int
    rows: int
    reduction: str
    seed: int


@strategies.composite
def programs(draw: Any) -> Program:
    flag = strategies.booleans()
    schedule = draw(strategies.sampled_from(["1f1b", "gpipe", "interleaved", "zero_bubble"]))
    if schedule == "interleaved":
        workers = draw(strategies.permutations(range(4)))[: draw(strategies.integers(1, 3))]
        placement = tuple(workers) * draw(strategies.integers(1, 2))
        chunks = len(placement) + len(workers) * draw(strategies.integers(0, 1))
    else:
        placement = tuple(draw(strategies.lists(strategies.integers(0, 3), min_size=1, max_size=5)))
        chunks = len(placement) + draw(strategies.integers(0, 4))
    kinds = tuple(
        Kind(
            draw(strategies.sampled_from([3, 4, 5])),
            *(draw(flag) for _ in range(3)),
            frozen=draw(strategies.integers(0, 3)) == 0,
            gives_skip=draw(flag),
            takes_skip=draw(flag),
            uses_side=draw(flag),
            scaled=draw(flag),
        )
        for _ in placement
    )
    stages = strategies.sampled_from(range(len(placement)))
    return Program(
        schedule,
        placement,
        kinds,
        draw(flag),
        frozenset(draw(strategies.lists(stages, max_size=3))),
        chunks,
        draw(strategies.integers(2 * chunks, 4 * chunks)),
        draw(strategies.sampled_from(["mean", "sum"])),
        draw(strategies.integers(0, 1 << 30)),
    )


def build(program: Program) -> list[nn.Module]:
    """The stages, on this worker."""
    torch.manual_seed(program.seed)
    blocks, before, widths = [], 4, list[int]()
    for number, kind in enumerate(program.kinds):
        made = Block if number + 1 < len(program.kinds) else LastBlock
        blocks.append(made(before, kind, widths).double())
        before = kind.width
        widths = [*widths, kind.width] if kind.gives_skip else widths
    if program.tied:
        _tie(program, blocks)
    for block, kind in zip(blocks, program.kinds, strict=True):
        if kind.frozen:
            block.requires_grad_(False)
    if not any(each.requires_grad for block in blocks for each in block.parameters()):
        blocks[-1].requires_grad_(True)
    return blocks


def _tie(program: Program, blocks: list[nn.Module]) -> None:
    for first in range(len(blocks)):
        for second in range(first + 1, len(blocks)):
            same = blocks[first].linear.weight.shape == blocks[second].linear.weight.shape
            if same and program.placement[first] == program.placement[second]:
                blocks[second].linear.weight = blocks[first].linear.weight
                return


def keep(modules: list[nn.Module]) -> list[rpc.RRef[nn.Module]]:
    return [rpc.RRef(module) for module in modules]


def gradients_of(rref: rpc.RRef[nn.Module], context_id: int) -> list[torch.Tensor | None]:
    found = autograd.get_gradients(context_id)
    return [found.get(parameter) for parameter in rref.local_value().parameters()]


def buffers_of(rref: rpc.RRef[nn.Module]) -> dict[str, torch.Tensor]:
    return dict(rref.local_value().named_buffers())


def place(program: Program, blocks: list[nn.Module]) -> list[Any]:
    """The stages on their workers; those of the driver are modules, the others references."""
    stages: list[Any] = [None] * len(blocks)
    for number, worker in enumerate(WORKERS):
        mine = [stage for stage, at in enumerate(program.placement) if at == number]
        copies = copy.deepcopy([blocks[stage] for stage in mine])
        kept = copies if number == 0 else rpc.rpc_sync(worker, keep, (copies,))
        for stage, module in zip(mine, kept, strict=True):
            stages[stage] = module
    return stages


def check(program: Program, cluster: LocalCluster) -> None:
    """Trains for two steps, and evaluates; all must be as in one process."""
    with cluster["driver"].active():
        _check(program)


def _check(program: Program) -> None:
    blocks = build(program)
    stages = place(program, blocks)
    pipeline = Pipeline(
        stages,
        program.schedule,  # type: ignore[arg-type]
        program.chunks,
        recompute=program.recompute,
        reduction=program.reduction,  # type: ignore[arg-type]
    )
    rrefs = pipeline._team.references
    for step in range(2):
        batch = torch.randn(program.rows, 4).double(), torch.randn(program.rows).double()
        target = torch.randn(program.rows).double()
        scales = {
            stage: {"scale": torch.rand(program.rows).double()}
            for stage, kind in enumerate(program.kinds)
            if kind.scaled
        }
        seed = generators.seed_for(generators.fingerprint(), step)
        with autograd.context() as context_id:
            given = tuple(each.clone() for each in batch)
            loss = pipeline.step(
                context_id,
                given,
                target,
                loss_of,
                kwargs=scales.get(0),
                stage_kwargs={stage: each for stage, each in scales.items() if stage},
            )
            found = [rpc.rpc_sync(each.owner(), gradients_of, (each, context_id)) for each in rrefs]
        expected = _in_one_process(program, blocks, batch, target, scales, seed)
        _compare(program, blocks, loss, expected, found)
        record = pipeline.last_step
        assert record is not None
        if program.schedule in ("1f1b", "zero_bubble"):
            assert max(record.most_live.values()) <= len(blocks)
    for rref, block in zip(rrefs, blocks, strict=True):
        for name, value in rpc.rpc_sync(rref.owner(), buffers_of, (rref,)).items():
            torch.testing.assert_close(value, dict(block.named_buffers())[name], rtol=0, atol=0)
    _check_evaluation(pipeline, blocks, batch)


def _in_one_process(
    program: Program,
    blocks: list[nn.Module],
    batch: tuple[torch.Tensor, ...],
    target: torch.Tensor,
    scales: dict[int, dict[str, torch.Tensor]],
    seed: int,
) -> torch.Tensor:
    for block in blocks:
        block.zero_grad(set_to_none=True)
    sizes = sizes_of(program.rows, program.chunks)
    total, begin = torch.zeros(()).double(), 0
    for number, size in enumerate(sizes):
        rows = slice(begin, begin + size)
        begin += size
        value: Any = tuple(each[rows].clone() for each in batch)
        for stage, block in enumerate(blocks):
            kwargs = {name: each[rows] for name, each in scales.get(stage, {}).items()}
            with generators.kept():
                generators.seed(generators.seed_for(generators.seed_for(seed, stage), number))
                value = block(value[0].clone(), *value[1:], **kwargs)
        weight = size / program.rows if program.reduction == "mean" else 1.0
        loss = loss_of(value, target[rows])
        loss.backward(torch.full_like(loss, weight))
        total += loss.detach() * weight
    return total


def _compare(
    program: Program,
    blocks: list[nn.Module],
    loss: torch.Tensor,
    expected: torch.Tensor,
    found: list[list[torch.Tensor | None]],
) -> None:
    # Sums of more than two terms may be added in another order.
    takers = sum(isinstance(block.mix, nn.Linear) for block in blocks)
    tolerance = 1e-12 if program.tied or takers > 1 else 0.0
    torch.testing.assert_close(loss, expected, rtol=1e-13, atol=0)
    for block, gradients in zip(blocks, found, strict=True):
        for parameter, gradient in zip(block.parameters(), gradients, strict=True):
            if parameter.grad is None:
                assert gradient is None
            else:
                assert gradient is not None
                torch.testing.assert_close(gradient, parameter.grad, rtol=tolerance, atol=tolerance)


def _check_evaluation(
    pipeline: Pipeline, blocks: list[nn.Module], batch: tuple[torch.Tensor, ...]
) -> None:
    pipeline.eval()
    value: Any = batch
    with torch.no_grad():
        for block in blocks:
            block.eval()
            value = block(value[0].clone(), *value[1:])
    hidden, side, text = pipeline(batch)
    torch.testing.assert_close(hidden, value[0], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(side, value[1], rtol=1e-13, atol=1e-13)
    assert text == value[2]
