"""The loop of a random training program, but for what is written differently over workers."""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import swa_utils

from tests.parity.training import parts
from tests.parity.training.choices import OPTIMIZERS, SCHEDULERS
from tests.parity.training.outcome import Outcome, assign, options_of
from tests.parity.training.parts import ROWS, WIDTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.parity.training.program import Program, Stepper

LINES = 14
"""Of a batch."""

AVERAGES: dict[str, Callable[[], dict[str, Any]]] = {
    "swa": dict,
    "ema": lambda: {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
    "buffers": lambda: {"use_buffers": True, "avg_fn": swa_utils.get_swa_avg_fn()},
}


class Trainer:
    """The loop. A context is named in calls by those arguments `context`, of which there are none
    in one process."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.outcome = Outcome(steps=[0] * len(program.optimized))
        self.generator = torch.Generator().manual_seed(program.seed)
        self.is_frozen = [False] * len(program.parts)
        self.are_added = [each.added_at is None for each in program.optimized]
        self.optimizers: list[Any] = []
        self.schedulers: list[Any] = []
        self.scaler: Any = None
        self.averages: Any = None
        self.passes = 0
        """Of the step so far."""
        self.early: Any = None
        """What was saved after its first pass."""

    # ------------------------------------------------------------ what differs

    def at(self, place: int, function: Callable[..., Any], *args: Any) -> Any:
        """`function(module, *args)`, where the module of a part is."""
        raise NotImplementedError

    def parameters(self, place: int) -> list[tuple[str, Any]]:
        """Of a part, with names; what stands for them in an optimizer."""
        raise NotImplementedError

    def new_optimizer(self, stepper: Stepper, kind: Any, given: Any, options: Any) -> Any:
        raise NotImplementedError

    def new_scaler(self, **options: Any) -> Any:
        raise NotImplementedError

    def new_averages(self, **options: Any) -> Any:
        raise NotImplementedError

    def averaged_values(self) -> list[list[torch.Tensor]]:
        raise NotImplementedError

    def call(self, place: int, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Runs a part."""
        raise NotImplementedError

    def backward(self, loss: torch.Tensor, *context: int, create_graph: bool) -> None:
        raise NotImplementedError

    def weight(self, place: int) -> torch.Tensor:
        """Of a part, fetched by another one."""
        raise NotImplementedError

    def step(self, optimizer: Any, *context: Any) -> None:
        raise NotImplementedError

    def update_bn(self, place: int, batches: list[torch.Tensor]) -> None:
        """Lets the average of a part see these."""
        raise NotImplementedError

    def penalty(self, loss: torch.Tensor, inputs: Any, *context: int) -> Any:
        """The sum of the squares of the gradients of some inputs."""
        raise NotImplementedError

    def run_pipeline(
        self, x: torch.Tensor, ids: torch.Tensor, factor: float, scale: float, *context: int
    ) -> float:
        """Runs a batch forward and backward; returns its loss."""
        raise NotImplementedError

    def contexts(self, number: int, then: Callable[..., None]) -> list[float]:
        """All passes of a step, and what follows, in their contexts; returns the losses."""
        raise NotImplementedError

    def clip(self, *context: Any) -> None:
        raise NotImplementedError

    def modes(self) -> contextlib.AbstractContextManager[Any]:
        """Within, calls take the modes of this thread along."""
        return contextlib.nullcontext()

    # ------------------------------------------------------------ making

    def make(self) -> None:
        """Makes optimizers and what is around them."""
        program = self.program
        self.optimizers = [self.make_optimizer(number) for number in range(len(program.optimized))]
        self.schedulers = [
            SCHEDULERS[stepper.scheduler](optimizer)
            for stepper, optimizer in zip(program.optimized, self.optimizers, strict=True)
        ]
        if program.scaler is not None:
            self.scaler = self.new_scaler(**program.scaler)

    def make_optimizer(self, number: int, is_plain: bool = False) -> Any:
        """An optimizer; `is_plain`: one of torch's over tensors of the same shapes."""
        stepper = self.program.optimized[number]
        kind, options = OPTIMIZERS[stepper.optimizer]
        given, options = self.given(number, is_plain), copy.deepcopy(options)
        if is_plain:
            return kind(given, **options)
        optimizer = self.new_optimizer(stepper, kind, given, options)
        if stepper.is_hooked:
            optimizer.register_step_pre_hook(functools.partial(self.before_step, number))
            optimizer.register_step_post_hook(functools.partial(self.after_step, number))
        return optimizer

    def given(self, number: int, is_plain: bool = False) -> Any:
        """The parameters, as an optimizer takes them."""
        stepper = self.program.optimized[number]
        if not stepper.groups:
            return [
                each for place in stepper.parts for each in self.members(stepper, place, is_plain)
            ]
        count = len(stepper.groups) - (not self.are_added[number])
        return [self.group(stepper, index, is_plain) for index in range(count)]

    def group(self, stepper: Stepper, index: int, is_plain: bool = False) -> dict[str, Any]:
        """One group, with options of its own."""
        places = stepper.groups[index]
        members = [each for place in places for each in self.members(stepper, place, is_plain)]
        return {"params": members, **stepper.group_options[index]}

    def members(self, stepper: Stepper, place: int, is_plain: bool = False) -> list[Any]:
        named = self.parameters(place)
        if is_plain:
            named = [(name, torch.empty_like(self.value(each))) for name, each in named]
        if self.program.parts[place].shares is not None:
            named = named[1:]  # the other part has it
        if stepper.is_named:
            return [(f"{place}.{name}", each) for name, each in named]
        return [each for _, each in named]

    def value(self, parameter: Any) -> torch.Tensor:
        """The tensor that something stands for."""
        return parameter

    def before_step(self, number: int, optimizer: Any, *_: Any) -> None:
        self.outcome.steps[number] += 1
        optimizer.param_groups[0]["lr"] *= 0.99

    def after_step(self, number: int, *_: Any) -> None:
        self.outcome.steps[number] += 100

    # ------------------------------------------------------------ the loop

    def train(self) -> Outcome:
        program, outcome = self.program, self.outcome
        try:
            self.make()
            if program.average is not None:
                self.averages = self.new_averages(**AVERAGES[program.average]())
            torch.manual_seed(program.seed)
            for number in range(program.steps):
                self.freeze(number)
                for change in program.changes:
                    if change.step == number:
                        self.at(change.part, parts.change, change.how)
                if number in program.abandoned:
                    self.contexts(number, lambda *_: None)
                losses = self.contexts(number, self.update)
                outcome.losses.append(functools.reduce(operator.add, losses))
                self.after(number)
            if program.updates_bn and self.averages is not None:
                self.update_statistics()
        except RecursionError:
            raise
        except Exception as error:  # noqa: BLE001 - compared
            self.error = error
            outcome.error = type(error).__name__
        self.tell()
        return outcome

    def freeze(self, number: int) -> None:
        for place in range(len(self.program.parts)):
            if (number, place) in self.program.frozen:
                self.is_frozen[place] = not self.is_frozen[place]
                self.at(place, parts.want_gradients, not self.is_frozen[place])

    def after(self, number: int) -> None:
        """What follows a step."""
        self.schedule(number)
        if self.averages is not None and number:
            self.update_averages()
        if self.program.evaluation is not None:
            self.outcome.looks.append(self.evaluate())
        if number == self.program.reload_at:
            self.reload()
        self.outcome.options.append([options_of(each) for each in self.optimizers])
        if self.scaler is not None:
            self.outcome.scales.append(self.scaler.get_scale())

    def schedule(self, number: int) -> None:
        for each, stepper in enumerate(self.program.optimized):
            if stepper.scheduler == "ReduceLROnPlateau":
                self.schedulers[each].step(self.outcome.losses[-1])
            elif self.schedulers[each] is not None:
                self.schedulers[each].step()
            if number == stepper.added_at and not self.are_added[each]:
                self.are_added[each] = True
                self.add_group(each, self.group(stepper, len(stepper.groups) - 1))
        for change in self.program.assigned:
            if change.step == number:
                assign(self.optimizers[change.stepper], change)

    def add_group(self, number: int, group: dict[str, Any]) -> None:
        self.optimizers[number].add_param_group(group)

    def update_averages(self) -> None:
        self.averages.update_parameters()

    def update_statistics(self) -> None:
        batches = [
            torch.randn(LINES, WIDTH, generator=self.generator, dtype=self.program.dtype)
            for _ in range(3)
        ]
        for place, part in enumerate(self.program.parts):
            if part.kind == "norm":
                self.update_bn(place, batches)

    def reload(self) -> None:
        """Goes on with new optimizers and schedulers, from what was saved of the old ones."""
        saved, self.early = self.early or self.save(), None
        self.make()
        self.restore(saved)

    def save(self) -> Any:
        """What `restore` goes on from: states of optimizers, of schedulers, and of the scaler."""
        states = [copy.deepcopy(each.state_dict()) for each in self.optimizers]
        schedules = [None if each is None else each.state_dict() for each in self.schedulers]
        scale = None if self.scaler is None else self.scaler.state_dict()
        if self.program.reload_by == "plain":
            for number, state in enumerate(states):
                plain = self.make_optimizer(number, is_plain=True)
                plain.load_state_dict(state)
                states[number] = plain.state_dict()
        return states, schedules, scale

    def restore(self, saved: Any) -> None:
        states, schedules, scale = saved
        for scheduler, state in zip(self.schedulers, schedules, strict=True):
            if scheduler is not None:
                scheduler.load_state_dict(state)
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)
        if self.scaler is not None:
            self.scaler.load_state_dict(scale)

    def tell(self) -> None:
        """Puts down what has become of everything."""
        outcome, places = self.outcome, range(len(self.program.parts))
        if outcome.error and self.program.pipeline is not None:
            return  # where other stages are further
        outcome.values = [self.at(place, parts.values) for place in places]
        if self.program.pipeline is None:  # where passes take turns
            outcome.events += [self.at(place, parts.events) for place in places]
        outcome.states = [each.state_dict() for each in self.optimizers]
        if self.averages is not None:
            outcome.averages = self.averaged_values()

    # ------------------------------------------------------------ a pass

    def go(self, number: int, *context: int) -> float:
        """One forward and one backward pass; returns the loss."""
        loss = self.pass_over(number, *self.batch(number), *context)
        if self.program.saves_early and number == self.program.reload_at and self.early is None:
            self.early = self.save()
        return loss

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor, float]:
        """The next numbers that go in, and what the loss is multiplied by."""
        x = torch.randn(LINES, WIDTH, generator=self.generator, dtype=self.program.dtype)
        ids = torch.randint(ROWS, (LINES,), generator=self.generator)
        is_spoilt = number in self.program.spoilt and self.passes == number % self.program.passes
        self.passes = (self.passes + 1) % self.program.passes
        return x, ids, (torch.inf if is_spoilt else 1.0) / self.program.passes

    def pass_over(
        self, number: int, x: torch.Tensor, ids: torch.Tensor, factor: float, *context: int
    ) -> float:
        program = self.program
        if program.pipeline is not None:
            scale = 1.0
            if self.scaler is not None:
                scale = self.scaler.scale(torch.ones(())).item()
            with self.casting():
                return self.run_pipeline(x, ids, factor, scale, *context)
        if program.penalty == "input":
            x.requires_grad_()
        with self.casting():
            y = self.forward(number, x, ids)
        loss = y.square().mean() * factor
        if program.penalty in ("input", "parameters"):
            inputs = x if program.penalty == "input" else None
            loss = loss + 0.1 * self.penalty(loss, inputs, *context)
        scaled = loss if self.scaler is None else self.scaler.scale(loss)
        self.backward(scaled, *context, create_graph=program.penalty == "graph")
        return loss.item()

    @contextlib.contextmanager
    def casting(self) -> Iterator[None]:
        if not self.program.autocast:
            yield
            return
        with self.modes(), torch.autocast("cpu", torch.bfloat16):
            yield

    def forward(self, number: int, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        for place in self.program.order:
            if place not in self.program.unused or number % 2:
                x = self.call(place, x, ids)
                borrows = self.program.parts[place].borrows
                if borrows is not None:
                    x = x @ self.weight(borrows)
        return x

    def update(self, *context: Any) -> None:
        """Clips and steps."""
        scaler, has_clip = self.scaler, self.program.clip is not None
        if scaler is not None and has_clip:
            for optimizer in self.optimizers:
                scaler.unscale_(optimizer, *context)
        are_fit = not has_clip or self.is_clipped(*context)
        for optimizer in self.optimizers if are_fit else ():
            if scaler is None:
                self.step(optimizer, *context)
            else:
                scaler.step(optimizer, *context)
        if scaler is not None:
            scaler.update()

    def is_clipped(self, *context: Any) -> bool:
        try:
            self.clip(*context)
        except RuntimeError as error:
            if "non-finite" not in str(error):
                raise
            return False
        return True

    @property
    def norm_options(self) -> dict[str, Any]:
        """For the norm of gradients."""
        return {**self.program.clip_options, "error_if_nonfinite": self.program.clips_finite}

    def evaluate(self) -> torch.Tensor:
        program = self.program
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(LINES, WIDTH, generator=generator, dtype=program.dtype)
        ids = torch.randint(ROWS, (LINES,), generator=generator)
        places = range(len(program.parts))
        for place in places:
            self.at(place, parts.set_training, False)
        with contextlib.ExitStack() as stack:
            if program.evaluation == "carried":
                stack.enter_context(self.modes())
            is_free = program.evaluation == "no_grad"
            stack.enter_context(torch.no_grad() if is_free else torch.inference_mode())
            for place in places:
                x = self.call(place, x, ids)
                x = x[0] if isinstance(x, tuple) else x
        for place in places:
            self.at(place, parts.set_training, True)
        return x.clone()
