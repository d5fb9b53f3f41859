"""Pipelines made by chance, and the same models in one process.

A stage takes and returns a hidden state, a second tensor of another shape, a text, and skip
connections. What it does with them its `Kind` says. The model in one process runs the same modules
over the same micro-batches, one after the other, with the same random numbers.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies
from torch import nn
from torch.utils.checkpoint import checkpoint

from lockstitch import autograd, rpc
from lockstitch.nn.pipelining.micro_batches import sizes_of
from lockstitch.nn.pipelining.pipeline import Pipeline
from lockstitch.nn.slots import generators

if TYPE_CHECKING:
    from lockstitch.testing.cluster import LocalCluster

WORKERS = ["driver", "a", "b", "c"]

QUIRKS = (
    "returns its input",
    "returns views",
    "returns a buffer",
    "writes to what it returns",
    "counts some calls",
    "is in eval mode",
    "has no gradients",
    "recomputes within",
    "has a hook",
    "has a function of its own",
    "uses a parameter twice",
)


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
    quirks: frozenset[str] = frozenset()
    """Of `QUIRKS`."""


ENDS = frozenset(["has no gradients", "returns its input"])
"""Quirks that would leave the last stage without a history of the loss."""


class Cubed(torch.autograd.Function):
    """A function that is not torch's."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient


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
        self.square = nn.Linear(kind.width, kind.width)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("level", torch.zeros(1))

    def forward(self, hidden, side, text="", skips=(), scale=None):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.has("has no gradients")):
            return self.run(hidden, side, text, skips, scale)

    def has(self, quirk):
        return quirk in self.kind.quirks

    def layers(self, hidden):
        hidden = torch.tanh(self.linear(hidden))
        if self.has("uses a parameter twice"):
            hidden = self.square(torch.tanh(self.square(hidden)))
        return hidden

    def quirky(self, hidden, side):
        """What the quirks do to what is returned."""
        if self.has("has a function of its own"):
            hidden = Cubed.apply(hidden)
        if self.has("has a hook") and hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * 2)
        if self.has("counts some calls") and self.training:
            if hidden.detach().sum() > 0:
                self.level += 1
            hidden = hidden * (1 + self.level)
        if self.has("writes to what it returns"):
            hidden = (hidden * 2).relu_()
        if self.has("returns a buffer") and self.training:
            self.level += 0.5
            side = self.level
        if self.has("returns views"):
            side = hidden[:, 0]
        return hidden, side

    def run(self, hidden, side, text, skips, scale):
        if self.kind.writes:
            hidden.mul_(1.5)
        if self.has("returns its input") and hidden.shape[1] == self.kind.width:
            return hidden, side, text + "x", self.with_skip(skips, hidden)
        if self.has("recomputes within"):
            hidden = checkpoint(self.layers, hidden, use_reentrant=False, preserve_rng_state=False)
        else:
            hidden = self.layers(hidden)
        if self.norm is not None:
            hidden = self.norm(hidden)
        if self.kind.dropout:
            hidden = nn.functional.dropout(hidden, 0.3, self.training)
        if self.mix is not None:
            hidden = hidden + self.mix(skips[-1].to_here())
        if scale is not None:
            hidden = hidden * scale.unsqueeze(1)
        hidden, side = self.quirky(hidden, side)
        if self.kind.uses_side:
            side = side + hidden.sum(1)
        if self.training:
            self.calls += 1
        return hidden, side, text + "x", self.with_skip(skips, hidden)

    def with_skip(self, skips, hidden):
        return [*skips, rpc.RRef(hidden)] if self.kind.gives_skip else skips


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
    autocast: bool
    seed: int

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.autocast else torch.float64


@strategies.composite
def programs(draw: Any) -> Program:
    flag, quirks = strategies.booleans(), strategies.sampled_from(QUIRKS)
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
            quirks=frozenset(draw(strategies.lists(quirks, max_size=2))),
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
        draw(strategies.integers(0, 3)) == 0,
        draw(strategies.integers(0, 1 << 30)),
    )


def build(program: Program) -> list[nn.Module]:
    """The stages, on this worker."""
    torch.manual_seed(program.seed)
    blocks, before, widths = [], 4, list[int]()
    kinds = [
        *program.kinds[:-1],
        replace(program.kinds[-1], quirks=program.kinds[-1].quirks - ENDS),
    ]
    for number, kind in enumerate(kinds):
        made = Block if number + 1 < len(program.kinds) else LastBlock
        blocks.append(made(before, kind, widths).to(program.dtype))
        before = kind.width
        widths = [*widths, kind.width] if kind.gives_skip else widths
    if program.tied:
        _tie(program, blocks)
    for block, kind in zip(blocks, program.kinds, strict=True):
        if kind.frozen:
            block.requires_grad_(False)
        if "is in eval mode" in kind.quirks:
            block.eval()
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
        of = partial(torch.empty, dtype=program.dtype)
        batch = of(program.rows, 4).normal_(), of(program.rows).normal_()
        target = of(program.rows).normal_()
        scales = {
            stage: {"scale": of(program.rows).uniform_()}
            for stage, kind in enumerate(program.kinds)
            if kind.scaled
        }
        seed = generators.seed_for(generators.fingerprint(), step)
        casting = torch.autocast("cpu", enabled=program.autocast)
        with autograd.context() as context_id, casting:
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
    total, begin = torch.zeros(()), 0
    for number, size in enumerate(sizes):
        rows = slice(begin, begin + size)
        begin += size
        value: Any = tuple(each[rows].clone() for each in batch)
        for stage, block in enumerate(blocks):
            kwargs = {name: each[rows] for name, each in scales.get(stage, {}).items()}
            # As a stage casts: what autocast has cast in one pass it uses again within that only.
            casting = torch.autocast("cpu", enabled=program.autocast)
            with generators.kept(), casting:
                generators.seed(generators.seed_for(generators.seed_for(seed, stage), number))
                value = block(value[0].clone(), *value[1:], **kwargs)
                loss = loss_of(value, target[rows]) if block is blocks[-1] else None
        assert loss is not None
        weight = size / program.rows if program.reduction == "mean" else 1.0
        loss.backward(torch.full_like(loss, weight))
        total = total.to(loss.dtype) + loss.detach() * weight
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
    rounding = 1e-5 if program.autocast else 1e-12
    tolerance = rounding if program.tied or takers > 1 else 0.0
    torch.testing.assert_close(loss, expected, rtol=1e-6 if program.autocast else 1e-13, atol=0)
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
    rounding = 1e-5 if hidden.dtype is torch.float32 else 1e-13
    torch.testing.assert_close(hidden, value[0], rtol=rounding, atol=rounding)
    torch.testing.assert_close(side, value[1], rtol=rounding, atol=rounding)
    assert text == value[2]
