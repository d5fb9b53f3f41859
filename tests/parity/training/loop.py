"""The loop of a random training program, but for what is written differently over workers."""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import swa_utils

from tests.parity.training import parts
from tests.parity.training.choices import OPTIMIZERS, SCHEDULERS
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


@dataclass
class Outcome:
    """What is compared."""

    losses: list[float] = field(default_factory=list)
    norms: list[torch.Tensor] = field(default_factory=list)
    options: list[Any] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    looks: list[torch.Tensor] = field(default_factory=list)
    events: list[list[str]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    values: list[list[torch.Tensor]] = field(default_factory=list)
    averages: list[list[torch.Tensor]] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    error: str = ""


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

    def backward(self, loss: torch.Tensor, *context: int) -> None:
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
                if number in program.abandoned:
                    self.contexts(number, lambda *_: None)
                losses = self.contexts(number, self.update)
                outcome.losses.append(functools.reduce(operator.add, losses))
                self.after(number)
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
        self.outcome.options.append([_options(each) for each in self.optimizers])
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
                _assign(self.optimizers[change.stepper], change)

    def add_group(self, number: int, group: dict[str, Any]) -> None:
        self.optimizers[number].add_param_group(group)

    def update_averages(self) -> None:
        self.averages.update_parameters()

    def reload(self) -> None:
        """Goes on with new optimizers and schedulers, from the states of the old ones."""
        states = [copy.deepcopy(each.state_dict()) for each in self.optimizers]
        schedules = [None if each is None else each.state_dict() for each in self.schedulers]
        scale = None if self.scaler is None else self.scaler.state_dict()
        if self.program.reload_by == "plain":
            for number, state in enumerate(states):
                plain = self.make_optimizer(number, is_plain=True)
                plain.load_state_dict(state)
                states[number] = plain.state_dict()
        self.make()
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
        program = self.program
        x = torch.randn(LINES, WIDTH, generator=self.generator, dtype=program.dtype)
        ids = torch.randint(ROWS, (LINES,), generator=self.generator)
        factor = (torch.inf if number in program.spoilt else 1.0) / program.passes
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
        if program.penalty is not None:
            inputs = x if program.penalty == "input" else None
            loss = loss + 0.1 * self.penalty(loss, inputs, *context)
        self.backward(loss if self.scaler is None else self.scaler.scale(loss), *context)
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
        return x

    def update(self, *context: Any) -> None:
        """Clips and steps."""
        scaler, has_clip = self.scaler, self.program.clip is not None
        if scaler is not None and has_clip:
            for optimizer in self.optimizers:
                scaler.unscale_(optimizer, *context)
        if has_clip:
            self.clip(*context)
        for optimizer in self.optimizers:
            if scaler is None:
                optimizer.step(*context)
            else:
                scaler.step(optimizer, *context)
        if scaler is not None:
            scaler.update()

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


def _options(optimizer: Any) -> list[dict[str, Any]]:
    """The options of all groups, as one sees them."""
    return [
        {
            key: value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)
            for key, value in group.items()
            if key != "params"
        }
        for group in optimizer.param_groups
    ]


def _assign(optimizer: Any, change: Any) -> None:
    groups = optimizer.param_groups
    group = groups[change.group % len(groups)]
    value = group.get(change.key)
    if change.key == "note":
        group["note"] = change.factor
    elif isinstance(value, torch.Tensor):
        value.mul_(change.factor)
    elif isinstance(value, bool):
        group[change.key] = not value
    elif value is not None:
        group[change.key] = value * change.factor or 0.1
