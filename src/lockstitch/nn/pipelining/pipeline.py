"""`Pipeline`: a model in stages on several workers, through which micro-batches flow.

    driver ── Order ──► worker of stage 0 ─► worker of stage 1 ─► … ─► worker of the last stage
      ◄── Report ──────────┘  ◄── gradients ──┘  ◄──────────── … ◄──────┘

The driver decides on the table (`schedules`), tells each worker its row and what its stages need of
the batch, which is cut there (`micro_batches`), and waits (`steps`); between the stages nothing
passes it (`running`). Workers keep nothing from one step to the next but the stages.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from typing_extensions import Self

from lockstitch.autograd.service import AutogradService
from lockstitch.devices.kinds import HOST
from lockstitch.errors import SerializationError
from lockstitch.modes import Modes
from lockstitch.nn.api.remote_module import _RemoteModule
from lockstitch.nn.parallel.scatter_gather import gather
from lockstitch.nn.pipelining.inbox import Inboxes
from lockstitch.nn.pipelining.micro_batches import count_rows, cut, sizes_of
from lockstitch.nn.pipelining.picture import draw
from lockstitch.nn.pipelining.schedules import (
    Schedule,
    ScheduleName,
    check_name,
    forward_only,
    make_schedule,
)
from lockstitch.nn.pipelining.steps import StepRecord, Team, carry_out
from lockstitch.nn.pipelining.weights import weights_of
from lockstitch.nn.slots.generators import fingerprint, seed_for
from lockstitch.nn.slots.lifting import lift
from lockstitch.rpc import RRef
from lockstitch.runtime.worker import current_worker

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence

    StageLike = nn.Module | RRef[nn.Module]


class Pipeline:
    """A model whose stages live on several workers, trained micro-batch by micro-batch.

    `stages`: in their order, each a `RemoteModule`, an `RRef` of a module, or a module of this
    worker; `split` makes them out of one model. A worker may have several; modules of one worker
    may share parameters. `schedule`: "1f1b", "gpipe", "interleaved" (the stages go round the
    workers; stages and `chunks` are multiples of the number of workers) or "zero_bubble". `chunks`:
    the number of micro-batches into which each batch is cut, by default that of the stages, and not
    fewer. `recompute`: the stages, by number, that keep only their inputs between a forward and a
    backward pass, and run forward twice; True for all. `dim`: the dimension in which tensors of
    batches are cut.

    `reduction`: what the loss function does over the rows of a micro-batch: "mean" (the losses of
    micro-batches are weighted by their rows, so that their sum is the mean over the batch), "sum",
    or a function that is given a micro-batch's targets and returns the number of terms of its mean,
    for losses that leave some out or weigh them. By default what `loss_fn.reduction` says, and
    "mean" where it says nothing; what `ignore_index` and `weight` of torch's cross entropy and
    negative log likelihood do to a mean is known.

    A stage's module is called with what the stage before has returned: a tuple as positional
    arguments, anything else as the only one. Tensors may be anywhere in it, of any shapes; all else
    is handed on as it is. An `RRef` of a tensor that a stage makes among its outputs is a *skip
    connection*: it can be handed on, and `to_here()` in a later stage fetches the tensor from where
    it was made; its gradient goes back the same way.

    Gradients are added up in the order of micro-batches, so they are those of a loop over the
    micro-batches in one process, bit for bit where its kernels are the same. Each forward pass of a
    stage draws random numbers of its own, which follow from the state of this worker's generator
    and the number of the step, and leaves the worker's generator alone. Autocast and the other
    modes of the calling thread hold in the stages.

    Raises `ValueError` for an unknown schedule, for fewer chunks than stages and for stages that do
    not fit an interleaved schedule; `TypeError` for stages that are no modules;
    `NotInitializedError` without a worker; `SerializationError` in a job with a registry.

        >>> pipeline = Pipeline([embedding, blocks, head], chunks=8)
        >>> optimizer = DistributedOptimizer(torch.optim.SGD, pipeline.remote_parameters(), lr=0.1)
        >>> with autograd.context() as context_id:
        ...     loss = pipeline.step(context_id, batch, target, nn.functional.cross_entropy)
        ...     optimizer.step(context_id)
    """

    def __init__(
        self,
        stages: Sequence[StageLike],
        schedule: ScheduleName = "1f1b",
        chunks: int | None = None,
        *,
        recompute: bool | Iterable[int] = False,
        reduction: Literal["mean", "sum"] | Callable[[Any], float] | None = None,
        dim: int = 0,
    ) -> None:
        self._worker = current_worker()
        if self._worker.agent.allowed is not None:
            raise SerializationError(
                "a Pipeline is not possible in a job with a registry: what stages hand on is "
                "pickled"
            )
        check_name(schedule)
        references = [_reference(number, stage) for number, stage in enumerate(stages)]
        if not references:
            raise ValueError("a pipeline wants at least one stage")
        self.chunks = len(references) if chunks is None else _checked_count(chunks)
        """Into how many micro-batches a batch is cut."""
        self._dim = dim
        self._reduction = reduction
        self._recomputes = _numbers(recompute, len(references))
        self._team = Team(self._worker, references)
        self.schedule: Schedule = make_schedule(schedule, self._team.placement, self.chunks)
        """The table by which steps are carried out."""
        self._steps = itertools.count()
        self.last_step: StepRecord | None = None
        """How the latest step went; None before the first."""
        self._team.check()

    def __repr__(self) -> str:
        names = [owner.name for owner in self._team.owners]
        return (
            f"<Pipeline · {self.schedule.name} · {len(names)} stages on {', '.join(names)} · "
            f"{self.chunks} micro-batches>"
        )

    # ------------------------------------------------------------ training

    def step(  # noqa: PLR0913 - the last three are rare
        self,
        context_id: int,
        batch: Any,
        target: Any = None,
        loss_fn: Callable[..., Any] | None = None,
        *,
        kwargs: Mapping[str, Any] | None = None,
        stage_kwargs: Mapping[int, Mapping[str, Any]] | None = None,
        scale: float = 1.0,
    ) -> torch.Tensor:
        """Runs a batch forward and backward through all stages; adds the gradients to the autograd
        context `context_id` on each worker. Returns the loss of the batch, a tensor of no dimension
        without a history.

        `batch`: what the first stage is called with, a tuple for several arguments; `kwargs`: its
        keyword arguments, `stage_kwargs` those of other stages by their number. Tensors in all of
        these and in `target` are cut into micro-batches along `dim`; `Replicate` and `Shard` (of
        `lockstitch.nn`) say otherwise. `loss_fn(output, target)`, or `loss_fn(output)` without a
        target, runs on the worker of the last stage and returns a tensor of one element; without
        `loss_fn` the last stage returns the loss itself. `scale`: by what gradients are multiplied,
        and the loss that is returned is not: `scaler.get_scale()` of a `GradScaler`.

        Raises what a stage raised, as its own type, saying which stage it was and what it was
        given; `PeerDiedError`, naming worker and stages, when one is gone; `RuntimeError` for an
        unknown context; `ValueError` for a batch of fewer rows than chunks, tensors of different
        lengths, and a `loss_fn` with parameters; `TypeError` for tensors with a history. After an
        error the context keeps what was added before it: leave it, and begin another one.
        """
        context = self._worker.service(AutogradService).find_context(context_id)
        by_stage = {0: kwargs or {}, **(stage_kwargs or {})}
        self._check_step(target, loss_fn, by_stage)
        given = {"batch": batch, "target": target, "kwargs": by_stage}
        sizes = self._sizes(given, self.chunks)
        orders = self._team.orders(
            self.schedule,
            step=Inboxes.of(self._worker).next_step(),
            modes=dataclasses.replace(
                Modes.of_this_thread(), is_grad_enabled=True, is_inference=False
            ),
            trains=True,
            seed=self._next_seed(),
            recomputes=self._recomputes,
            sizes=sizes,
            dim=self._dim,
        )
        self._give(orders, batch, by_stage)
        last = orders[self.schedule.placement[-1]]
        last.loss_fn, last.target = loss_fn, target
        targets = None if target is None else cut(target, sizes, self._dim)
        weights = weights_of(sizes, targets, loss_fn, self._reduction)
        last.weights = [weight * scale for weight in weights]
        self.last_step, losses = carry_out(self._team, self.schedule, orders, context)
        total = torch.zeros_like(losses[0]).reshape(())
        for loss, weight in zip(losses, weights, strict=True):
            total += loss.reshape(()) * weight if weight else 0
        return total

    def _check_step(
        self, target: Any, loss_fn: Callable[..., Any] | None, by_stage: Mapping[int, Any]
    ) -> None:
        unknown = [stage for stage in by_stage if stage not in range(self.schedule.stages)]
        if unknown:
            raise ValueError(
                f"stage_kwargs are for stages 0 to {self.schedule.stages - 1}, not {unknown[0]!r}"
            )
        if loss_fn is None and target is not None:
            raise ValueError(
                "a target was given without a loss_fn(output, target) that would use it"
            )
        if isinstance(loss_fn, nn.Module) and any(
            each.requires_grad for each in loss_fn.parameters()
        ):
            raise ValueError(
                "loss_fn has parameters of its own, of which the last stage's worker gets a copy: "
                "make it a part of the last stage, which may return the loss"
            )

    def _next_seed(self) -> int:
        return seed_for(fingerprint(), next(self._steps) & 0xFFFF)

    # ------------------------------------------------------------ evaluation

    def forward(
        self,
        batch: Any,
        *,
        kwargs: Mapping[str, Any] | None = None,
        stage_kwargs: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Any:
        """Runs a batch forward through all stages, without gradients; returns what the last stage
        returns, with the tensors of all micro-batches joined along `dim`. Arguments are those of
        `step`. The modules are in the modes in which they are: see `eval`. A batch of fewer rows
        than `chunks` makes fewer micro-batches. Raises what `step` raises."""
        by_stage = {0: kwargs or {}, **(stage_kwargs or {})}
        self._check_step(None, None, by_stage)
        given = {"batch": batch, "kwargs": by_stage}
        rows = count_rows(given, self._dim)
        chunks = self.chunks if rows is None else max(1, min(rows, self.chunks))
        sizes = self._sizes(given, chunks) if rows else [0 if rows == 0 else 1] * chunks
        schedule = forward_only(self._team.placement, chunks)
        orders = self._team.orders(
            schedule,
            step=Inboxes.of(self._worker).next_step(),
            modes=dataclasses.replace(Modes.of_this_thread(), is_grad_enabled=False),
            trains=False,
            seed=self._next_seed(),
            sizes=sizes,
            dim=self._dim,
        )
        self._give(orders, batch, by_stage)
        _, outputs = carry_out(self._team, schedule, orders, None)
        return outputs[0] if chunks == 1 else gather(outputs, HOST, self._dim)

    __call__ = forward

    def train(self, mode: bool = True) -> Self:
        """Sets the mode of all stages."""
        self._team.set_training(mode)
        return self

    def eval(self) -> Self:
        """Does what `train(False)` does."""
        return self.train(False)

    # ------------------------------------------------------------ what is known of it

    def remote_parameters(self) -> list[RRef[nn.Parameter]]:
        """References to the parameters of all stages, in their order, each once: as
        `DistributedOptimizer` takes them."""
        return self._team.parameters()

    def picture(self, path: str | os.PathLike[str] | None = None) -> str:
        """The schedule as it is planned, and below it the latest step as it was measured, as an
        SVG; also written to `path` if one is given. The plan takes its durations from that step, if
        there was one."""
        drawn = draw(self.schedule, [each.name for each in self._team.members], self.last_step)
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(drawn)
        return drawn

    # ------------------------------------------------------------ batches

    def _sizes(self, given: Mapping[str, Any], chunks: int) -> list[int]:
        if any(tensor.requires_grad for tensor in lift(given)[1]):
            raise TypeError(
                "a tensor of the batch has a history or wants a gradient, which would end here: "
                "make what computes it the first stage, or detach it"
            )
        rows = count_rows(given, self._dim)
        return [1] * chunks if rows is None else sizes_of(rows, chunks)

    def _give(
        self, orders: Sequence[Any], batch: Any, by_stage: Mapping[int, Mapping[str, Any]]
    ) -> None:
        """Gives each stage its arguments."""
        orders[self.schedule.placement[0]].batch = batch
        for stage, kwargs in by_stage.items():
            if kwargs:
                orders[self.schedule.placement[stage]].kwargs[stage] = dict(kwargs)


def _reference(number: int, stage: object) -> RRef[nn.Module]:
    if isinstance(stage, _RemoteModule):
        return stage.get_module_rref()
    if isinstance(stage, RRef):
        return stage
    if isinstance(stage, nn.Module):
        return RRef(stage)
    raise TypeError(
        f"stage {number} is a {type(stage).__name__}: a stage is a RemoteModule, an RRef of a "
        "module, or a module of this worker"
    )


def _checked_count(chunks: object) -> int:
    if isinstance(chunks, bool) or not isinstance(chunks, int):
        raise TypeError(f"chunks is a number of micro-batches, not {chunks!r}")
    return chunks


def _numbers(recompute: bool | Iterable[int], stages: int) -> frozenset[int]:
    if isinstance(recompute, bool):
        return frozenset(range(stages) if recompute else ())
    numbers = frozenset(recompute)
    unknown = sorted(numbers - frozenset(range(stages)))
    if unknown:
        raise ValueError(f"recompute names stage {unknown[0]!r}, and there are 0 to {stages - 1}")
    return numbers
