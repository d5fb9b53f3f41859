"""Random trainings: what they are, how ranks run them, and what plain torch makes of them in one
process, one rank's batch after the other."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

from lockstitch import hvd

SHAPES = [(3,), (2, 2), (1,), (70_000,), (3, 30_000), ()]
TABLE = (6, 2)
RATE = 0.05


@dataclass(frozen=True)
class Step:
    """One step of all ranks."""

    passes: int
    """How many backward passes each rank makes."""
    frozen: frozenset[int]
    """Parameters that want no gradient in this step."""
    left_out: frozenset[tuple[int, int]]
    """(rank, parameter): not used by that rank."""
    quiet: int = 0
    """How many of the passes are made within `no_sync`, the first ones."""
    clips: bool = False
    """Whether gradients are halved in place between backward and step."""
    sets_to_none: bool = True
    is_passed_over: bool = False
    """Whether gradients are set to zero in place instead of a step, as around a `GradScaler`."""


@dataclass(frozen=True)
class Stage:
    """A session, with so many ranks and an optimizer made for it."""

    size: int
    members: tuple[int, ...]
    """The process set; others train alone."""
    steps: tuple[Step, ...]
    more: tuple[int, ...] = ()
    """How many steps more each rank has at the end, before it joins; empty: nobody joins."""


@dataclass(frozen=True)
class Training:
    shapes: tuple[tuple[int, ...], ...]
    has_table: bool
    """Whether there is an embedding, too, with sparse gradients: the last parameter."""
    stages: tuple[Stage, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.shapes) + self.has_table

    def steps(self, stage: Stage, rank: int) -> list[Step]:
        """Those of a rank."""
        plain = Step(self.options["backward_passes_per_step"], frozenset(), frozenset())
        return [*stage.steps, *[plain] * (stage.more[rank] if stage.more else 0)]

    def parameters(self) -> list[nn.Parameter]:
        generator = torch.Generator().manual_seed(1)
        shapes = [*self.shapes, *[TABLE] * self.has_table]
        return [
            nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
            for shape in shapes
        ]

    def loss(
        self, parameters: list[nn.Parameter], rank: int, number: int, step: Step, turn: int
    ) -> torch.Tensor | None:
        """Of the `turn`-th pass of a rank's `number`-th step; None where it uses no parameter."""
        total = None
        for i, parameter in enumerate(parameters):
            if i in step.frozen or (rank, i) in step.left_out:
                continue
            factor = 1.0 + 0.3 * rank + 0.1 * number + 0.7 * turn + 0.05 * i
            if self.has_table and i == self.count - 1:
                rows = torch.tensor([(rank + number) % TABLE[0], turn % TABLE[0]])
                used = nn.functional.embedding(rows, parameter, sparse=True)
            else:
                used = parameter
            part = (used * factor + 0.1 * used * used).sum()
            total = part if total is None else total + part
        return total


# ---------------------------------------------------------------- by ranks


def train(training: Training, stage: Stage, begin: list[torch.Tensor]) -> list[torch.Tensor]:
    """One stage, on the calling rank; the parameters at its end."""
    parameters = training.parameters()
    for parameter, value in zip(parameters, begin, strict=True):
        parameter.data.copy_(value)
    optimizer = _optimizer(training, stage, parameters)
    was_passed_over = False
    for number, step in enumerate(training.steps(stage, hvd.rank())):
        if not was_passed_over:
            optimizer.zero_grad(set_to_none=step.sets_to_none)
        was_passed_over = step.is_passed_over
        for i, parameter in enumerate(parameters):
            parameter.requires_grad_(i not in step.frozen)
        for turn in range(step.passes):
            loss = training.loss(parameters, hvd.rank(), number, step, turn)
            with optimizer.no_sync() if turn < step.quiet else contextlib.nullcontext():
                if loss is not None:
                    loss.backward()
        _end(step, optimizer, [each.grad for each in parameters if each.grad is not None])
    if stage.more:
        hvd.join()
    return [parameter.detach().clone() for parameter in parameters]


def _optimizer(training: Training, stage: Stage, parameters: list[nn.Parameter]) -> Any:
    chosen = hvd.global_process_set
    if len(stage.members) < stage.size:
        chosen = hvd.add_process_set(stage.members)
    options = dict(training.options)
    groups = options.get("groups")
    if isinstance(groups, tuple):
        options["groups"] = [[parameters[i] for i in group] for group in groups]
    plain = torch.optim.SGD(parameters, lr=RATE)
    return hvd.DistributedOptimizer(plain, process_set=chosen, **options)


def _end(step: Step, optimizer: Any, gradients: list[torch.Tensor]) -> None:
    if step.is_passed_over:
        for gradient in gradients:
            gradient.zero_()
    elif step.clips:
        optimizer.synchronize()
        for parameter in optimizer.param_groups[0]["params"]:
            if parameter.grad is not None:  # that of `synchronize`, maybe
                parameter.grad.mul_(0.5)
        with optimizer.skip_synchronize():
            optimizer.step()
    else:
        optimizer.step()


# ---------------------------------------------------------------- in one process


def expected(
    training: Training, stage: Stage, begin: list[torch.Tensor]
) -> list[list[torch.Tensor]]:
    """What each rank has at the end of a stage."""
    results: dict[int, list[torch.Tensor]] = {}
    for team in [stage.members, *[(r,) for r in range(stage.size) if r not in stage.members]]:
        values = [value.clone() for value in begin]
        for number in range(max(len(training.steps(stage, rank)) for rank in team)):
            still = [rank for rank in team if number < len(training.steps(stage, rank))]
            step = training.steps(stage, still[0])[number]
            sums = [torch.zeros_like(value) for value in values]
            for rank in still:
                for turn in range(step.passes):
                    parameters = [nn.Parameter(value.clone()) for value in values]
                    loss = training.loss(parameters, rank, number, step, turn)
                    if loss is None:
                        continue
                    loss.backward()
                    for total, parameter in zip(sums, parameters, strict=True):
                        if parameter.grad is not None:
                            total += parameter.grad.to_dense()
            if training.options["op"] is hvd.Average:
                sums = [total / len(team) for total in sums]
            for value, total in zip(values, sums, strict=True):
                if not step.is_passed_over:
                    value -= RATE * total * (0.5 if step.clips else 1.0)
            for rank in still:  # who joins keeps the parameters of its last step
                results[rank] = [value.clone() for value in values]
    return [results[rank] for rank in range(stage.size)]


# ---------------------------------------------------------------- any


@st.composite
def steps(draw: st.DrawFn, size: int, count: int, passes: int) -> Step:
    """`count` parameters, `passes` at most."""
    made = draw(st.integers(1, passes))
    is_passed_over = made == passes and draw(st.integers(0, 4)) == 0
    some = st.frozensets(st.integers(0, count - 1), max_size=count)
    pairs = st.tuples(st.integers(0, size - 1), st.integers(0, count - 1))
    nobody, some_pairs = st.just(frozenset()), st.frozensets(pairs, max_size=2 * count)
    return Step(
        passes=made,
        frozen=draw(st.one_of(st.just(frozenset()), some)),
        # Without a step, a rank that made no backward pass would give nothing.
        left_out=frozenset() if is_passed_over else draw(st.one_of(nobody, some_pairs)),
        quiet=0 if is_passed_over else draw(st.integers(0, made - 1)),
        clips=draw(st.booleans()),
        sets_to_none=draw(st.booleans()),
        is_passed_over=is_passed_over,
    )


def with_all_of(step: Step, parameter: int) -> Step:
    """The step, where every rank uses that parameter."""
    left_out = frozenset(pair for pair in step.left_out if pair[1] != parameter)
    return replace(step, frozen=step.frozen - {parameter}, left_out=left_out)


@st.composite
def trainings(draw: st.DrawFn) -> Training:
    """One or two stages by one to four ranks."""
    shapes = tuple(draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4)))
    has_table = draw(st.booleans())
    count = len(shapes) + has_table
    passes = draw(st.integers(1, 3))
    options: dict[str, Any] = {
        "op": draw(st.sampled_from([hvd.Average, hvd.Sum])),
        "backward_passes_per_step": passes,
        "sparse_as_dense": draw(st.booleans()),
        "compression": draw(st.sampled_from([hvd.Compression.none] * 3 + [hvd.Compression.fp16])),
    }
    if options["op"] is hvd.Average:
        options["gradient_predivide_factor"] = draw(st.sampled_from([1.0, 1.0, 2.0, 0.5]))
    kind = draw(st.sampled_from(["none", "number", "lists"]))
    if kind == "number":
        options["groups"] = draw(st.integers(1, count))
    elif kind == "lists":
        order = draw(st.permutations(range(count)))
        cut = draw(st.integers(1, count))
        options["groups"] = tuple(part for part in (tuple(order[:cut]), tuple(order[cut:])) if part)
    stages = []
    for _ in range(draw(st.integers(1, 2))):
        size = draw(st.integers(1, 4))
        members = tuple(range(size))
        more: tuple[int, ...] = ()
        if draw(st.booleans()):
            members = tuple(sorted(draw(st.sets(st.integers(0, size - 1), min_size=1))))
        elif (not has_table or options["sparse_as_dense"]) and draw(st.booleans()):
            more = tuple(draw(st.integers(0, 2)) for _ in range(size))
        made = draw(st.lists(steps(size, count, passes), min_size=1, max_size=3))
        if options["op"] is hvd.Sum:  # which may not be summed again
            made = [replace(step, is_passed_over=False) for step in made]
        if has_table:  # a rank knows by its first gradient that it will be sparse
            made[0] = with_all_of(made[0], count - 1)
        stages.append(Stage(size, members, tuple(made), more))
    return Training(shapes, has_table, tuple(stages), options)
