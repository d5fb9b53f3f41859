"""Random training programs, run in one process with plain PyTorch and over workers of a cluster.

A `Program` says what happens: which optimizer, which groups, which scheduler, what is clipped, what
is accumulated, what is saved and loaded on the way. `train_here` and `train_there` do it, each with
the loop that one writes there. What both return must be equal.
"""

from __future__ import annotations

import functools
import operator
import random
import warnings
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler, swa_utils

from lockstitch import autograd, rpc
from lockstitch import optim as remote_optim
from lockstitch.optim import DistributedOptimizer, parameters_of
from tests.parity.held_contexts import HeldContexts

OWNERS = ("trainer", "ps1", "ps2")
WIDTH = 4

OPTIMIZERS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (optim.SGD, {"lr": 0.05}),
    (optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (optim.SGD, {"lr": 0.05, "momentum": 0.5, "foreach": True}),
    (optim.Adam, {"lr": 0.01, "amsgrad": True}),
    (optim.Adam, {"lr": 0.01, "foreach": False}),
    (optim.Adam, {"lr": 0.01, "fused": True}),
    (optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.9)}),
    (optim.NAdam, {"lr": 0.01}),
    (optim.RAdam, {"lr": 0.01}),
    (optim.Adamax, {"lr": 0.01}),
    (optim.Adadelta, {}),
    (optim.Adagrad, {"lr": 0.05}),
    (optim.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
    (optim.Rprop, {"lr": 0.01}),
    (optim.ASGD, {"lr": 0.05, "t0": 2}),
    (optim.Adafactor, {"lr": 0.01}),
)


def halved(epoch: int) -> float:
    return 0.5**epoch


def slower(epoch: int) -> float:
    return 1 / (1 + epoch)


def _chained(optimizer: Any) -> Any:
    parts = [lr_scheduler.ExponentialLR(optimizer, 0.9), lr_scheduler.LinearLR(optimizer)]
    return lr_scheduler.ChainedScheduler(parts, optimizer)


def _sequential(optimizer: Any) -> Any:
    parts = [
        lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=2),
        lr_scheduler.CosineAnnealingLR(optimizer, 5),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])


def _lambdas(optimizer: Any) -> Any:
    each = [halved if index % 2 else slower for index in range(len(optimizer.param_groups))]
    return lr_scheduler.LambdaLR(optimizer, each)


def _cyclic(optimizer: Any) -> Any:
    has_momentum = {"momentum", "betas"} & {*optimizer.defaults}
    return lr_scheduler.CyclicLR(
        optimizer, 0.001, 0.05, step_size_up=3, mode="exp_range", cycle_momentum=bool(has_momentum)
    )


def _one_cycle(optimizer: Any) -> Any:
    has_momentum = {"momentum", "betas"} & {*optimizer.defaults}
    return lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=60, cycle_momentum=bool(has_momentum)
    )


SCHEDULERS: dict[str, Any] = {
    "none": lambda _: None,
    "LambdaLR": _lambdas,
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, slower),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 4], 0.5),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.3, total_iters=3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.2, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 6, 2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5, 0.001),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": _cyclic,
    "OneCycleLR": _one_cycle,
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0),
    "ChainedScheduler": _chained,
    "SequentialLR": _sequential,
    "SWALR": lambda o: swa_utils.SWALR(o, swa_lr=0.02, anneal_epochs=3),
}


@dataclass
class Program:
    """A training; `layers` says for each layer who owns it."""

    layers: list[str]
    optimizer: tuple[Any, dict[str, Any]]
    scheduler: str = "none"
    steps: int = 6
    groups: list[list[int]] = field(default_factory=list)
    """Which layers are in which group; empty: one group, not given as a dict."""
    group_options: list[dict[str, Any]] = field(default_factory=list)
    unused: frozenset[int] = frozenset()
    """Layers that take no part in some of the steps."""
    passes: int = 1
    """How many backward passes are accumulated for a step."""
    reload_at: int = -1
    """After which step everything is made anew, from states."""
    clip: tuple[str, float] | None = None
    """What is clipped: "value", or the type of the norm; and to what."""
    clips_references: bool = False
    """Whether parameters are named for it, and not the optimizer."""
    scaler: dict[str, Any] | None = None
    """Options of a scaler, if there is one."""
    spoilt: frozenset[int] = frozenset()
    """Steps whose loss is not finite."""
    has_contexts: bool = False
    """Whether each backward pass has a context of its own."""
    is_reused: bool = False
    """Whether the first layer stands at the end, too."""
    added_at: int = -1
    """After which step the last group is added; -1: at the beginning."""
    seed: int = 0

    @classmethod
    def random(cls, seed: int) -> Program:
        """A program drawn by that seed."""
        draw = random.Random(seed)
        count = draw.randint(1, 5)
        program = cls(
            layers=[draw.choice(OWNERS) for _ in range(count)],
            optimizer=draw.choice(OPTIMIZERS),
            scheduler=draw.choice([*SCHEDULERS]),
            seed=seed,
            passes=draw.choice((1, 1, 2, 3)),
            reload_at=draw.choice((-1, 2)),
            unused=frozenset(index for index in range(1, count) if draw.random() < 0.2),
        )
        if draw.random() < 0.6:
            kind = draw.choice(("value", 1.0, 2.0, 3.0, float("inf")))
            program.clip = kind, draw.choice((0.05, 0.5, 1e4))
            program.clips_references = draw.random() < 0.3
        if draw.random() < 0.4:
            # Torch's fused optimizers divide by the scale; the others multiply by its inverse.
            is_fused = program.optimizer[1].get("fused", False)
            scale = draw.choice((2.0**10, 2.0**10 if is_fused else 7.0))
            program.scaler = {"init_scale": scale, "growth_interval": 2}
            program.spoilt = frozenset(n for n in range(6) if draw.random() < 0.2)
        program.is_reused = draw.random() < 0.3
        program.has_contexts = program.passes > 1 and draw.random() < 0.5
        if draw.random() < 0.6:
            cuts = sorted(draw.sample(range(1, count), draw.randint(0, min(2, count - 1))))
            order = draw.sample(range(count), count)
            program.groups = [order[a:b] for a, b in zip([0, *cuts], [*cuts, count], strict=True)]
            for group in program.groups:
                options = {"lr": 0.02, "weight_decay": 0.1}
                kept = {name: options[name] for name in options if draw.random() < 0.4}
                program.group_options.append(kept if group else {})
            if len(program.groups) > 1 and program.scheduler == "none":
                program.added_at = draw.choice((-1, 1))
                if program.scaler:  # which must find gradients, before the group is added too
                    program.unused = frozenset()
        return program


class Layer(nn.Module):
    """A linear layer and a non-linearity, with numbers drawn by `seed`."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        shape = (WIDTH, WIDTH)
        self.weight = nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        self.bias = nn.Parameter(torch.randn(WIDTH, generator=generator, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weight + self.bias)

    def values(self) -> list[torch.Tensor]:
        """Copies of the parameters."""
        return [each.detach().clone() for each in self.parameters()]


@dataclass
class Outcome:
    """What is compared."""

    losses: list[float]
    norms: list[torch.Tensor]
    rates: list[list[float]]
    values: list[torch.Tensor]
    state: dict[str, Any]


class Trainer:
    """The loop, but for what is written differently here and there."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.generator = torch.Generator().manual_seed(program.seed)
        self.losses: list[float] = []
        self.rates: list[list[float]] = []
        self.optimizer: Any = self.make_optimizer(self.given(program.added_at < 0))
        self.scheduler = SCHEDULERS[program.scheduler](self.optimizer)
        self.scaler = None if program.scaler is None else self.make_scaler(**program.scaler)
        self.norms: list[torch.Tensor] = []

    # what differs

    def parameters(self, index: int) -> list[Any]:
        raise NotImplementedError

    def make_optimizer(self, given: Any) -> Any:
        raise NotImplementedError

    def make_scaler(self, **options: Any) -> Any:
        raise NotImplementedError

    def run_layer(self, index: int, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def step(self, number: int) -> float:
        raise NotImplementedError

    def clip(self, *context: Any) -> None:
        raise NotImplementedError

    # what does not

    def given(self, whole: bool = True) -> Any:
        """The parameters, as an optimizer takes them."""
        if not self.program.groups:
            return [each for i in range(len(self.program.layers)) for each in self.parameters(i)]
        groups = [self.group(number) for number in range(len(self.program.groups))]
        return groups if whole else groups[:-1]

    def group(self, number: int) -> dict[str, Any]:
        """One group, with options of its own."""
        members = [each for index in self.program.groups[number] for each in self.parameters(index)]
        return {"params": members, **self.program.group_options[number]}

    def loss(self, number: int) -> torch.Tensor:
        """The loss of one batch."""
        shape = (3, WIDTH)
        x = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        order = [*range(len(self.program.layers)), *([0] if self.program.is_reused else [])]
        for index in order:
            if index not in self.program.unused or number % 2:
                x = self.run_layer(index, x)
        return (
            x.square().mean()
            / self.program.passes
            * (torch.inf if number in self.program.spoilt else 1.0)
        )

    def train(self) -> None:
        for number in range(self.program.steps):
            self.losses.append(self.step(number))
            self.schedule()
            if number == self.program.added_at:
                self.optimizer.add_param_group(self.group(len(self.program.groups) - 1))
            if number == self.program.reload_at:
                self.reload()
            self.rates.append([group["lr"] for group in self.optimizer.param_groups])

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss, as it goes backward."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def update(self, *context: Any) -> None:
        """Clips and steps; `context` stands there in each call, and is empty here."""
        if self.scaler is None:
            self.clip(*context)
            self.optimizer.step(*context)
            return
        if self.program.clip is not None:
            self.scaler.unscale_(self.optimizer, *context)
            self.clip(*context)
        self.scaler.step(self.optimizer, *context)
        self.scaler.update()

    def schedule(self) -> None:
        if self.program.scheduler == "ReduceLROnPlateau":
            self.scheduler.step(self.losses[-1])
        elif self.scheduler is not None:
            self.scheduler.step()
        else:
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.95

    def reload(self) -> None:
        """Goes on with a new optimizer and a new scheduler, from the states of the old ones."""
        saved = self.optimizer.state_dict()
        schedule = None if self.scheduler is None else self.scheduler.state_dict()
        is_whole = len(self.optimizer.param_groups) >= len(self.program.groups)
        self.optimizer = self.make_optimizer(self.given(is_whole))
        self.scheduler = SCHEDULERS[self.program.scheduler](self.optimizer)
        if self.scheduler is not None:
            self.scheduler.load_state_dict(schedule)
        self.optimizer.load_state_dict(saved)
        if self.scaler is not None:
            scale = self.scaler.state_dict()
            self.scaler = self.make_scaler(**(self.program.scaler or {}))
            self.scaler.load_state_dict(scale)


class Here(Trainer):
    """In one process."""

    def __init__(self, program: Program) -> None:
        self.layers = [Layer(index) for index in range(len(program.layers))]
        super().__init__(program)

    def parameters(self, index: int) -> list[Any]:
        return list(self.layers[index].parameters())

    def make_optimizer(self, given: Any) -> Any:
        optimizer_class, options = self.program.optimizer
        return optimizer_class(given, **options)

    def run_layer(self, index: int, x: torch.Tensor) -> torch.Tensor:
        return self.layers[index](x)

    def step(self, number: int) -> float:
        self.optimizer.zero_grad()
        total = 0.0
        for _ in range(self.program.passes):
            loss = self.loss(number)
            self.scaled(loss).backward()
            total += loss.item()
        self.update()
        return total

    def make_scaler(self, **options: Any) -> Any:
        return torch.amp.GradScaler("cpu", **options)

    def clip(self, *context: Any) -> None:
        if self.program.clip is None:
            return
        kind, limit = self.program.clip
        groups = self.optimizer.param_groups
        members = [each for group in groups for each in group["params"]]
        if kind == "value":
            nn.utils.clip_grad_value_(members, limit)
        else:
            self.norms.append(nn.utils.clip_grad_norm_(members, limit, kind))

    def values(self) -> list[torch.Tensor]:
        return [value for layer in self.layers for value in layer.values()]


class There(Trainer):
    """Over the workers of a cluster."""

    def __init__(self, program: Program) -> None:
        self.layers = [
            rpc.remote(owner, Layer, (index,)) for index, owner in enumerate(program.layers)
        ]
        self.references = [parameters_of(layer) for layer in self.layers]
        super().__init__(program)

    def parameters(self, index: int) -> list[Any]:
        return self.references[index]

    def make_optimizer(self, given: Any) -> Any:
        optimizer_class, options = self.program.optimizer
        return DistributedOptimizer(optimizer_class, given, **options)

    def run_layer(self, index: int, x: torch.Tensor) -> torch.Tensor:
        return self.layers[index].rpc_sync().forward(x)

    def step(self, number: int) -> float:
        self.optimizer.zero_grad()
        if self.program.has_contexts:
            with HeldContexts() as held:
                losses = [held.run(self.go, number) for _ in range(self.program.passes)]
                self.update(held.ids)
            return functools.reduce(operator.add, losses)  # `sum` is exacter from 3.12 on
        with autograd.context() as context_id:
            losses = [self.go(context_id, number) for _ in range(self.program.passes)]
            self.update(context_id)
        return functools.reduce(operator.add, losses)  # `sum` is exacter from 3.12 on

    def go(self, context_id: int, number: int) -> float:
        """One forward and one backward pass."""
        loss = self.loss(number)
        autograd.backward(context_id, [self.scaled(loss)])
        return loss.item()

    def make_scaler(self, **options: Any) -> Any:
        return remote_optim.GradScaler(**options)

    def clip(self, *context: Any) -> None:
        if self.program.clip is None:
            return
        kind, limit = self.program.clip
        what: Any = self.optimizer
        if self.program.clips_references:
            what = [each for group in self.optimizer.param_groups for each in group["params"]]
        if kind == "value":
            remote_optim.clip_grad_value_(what, *context, limit)
        else:
            self.norms.append(remote_optim.clip_grad_norm_(what, *context, limit, kind))

    def values(self) -> list[torch.Tensor]:
        return [value for layer in self.layers for value in layer.rpc_sync().values()]


def outcome_of(trainer: Any) -> Outcome:
    """Trains, and returns what comes of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of|Please also save or load the state")
        warnings.filterwarnings("ignore", "To get the last learning rate")
        trainer.train()
    state = trainer.optimizer.state_dict()
    return Outcome(trainer.losses, trainer.norms, trainer.rates, trainer.values(), state)


def assert_trains_alike(program: Program) -> None:
    """Both trainings are equal, bit for bit.

    But for one case: where a parameter is used by two calls, and its gradients of several passes
    are accumulated, one process adds up those of a pass first, and the owner adds each as it comes.
    """
    is_rounded_otherwise = program.is_reused and program.passes > 1
    ours, plain = outcome_of(There(program)), outcome_of(Here(program))
    assert_same(vars(ours), vars(plain), 1e-9 if is_rounded_otherwise else 0.0, repr(program))


def assert_same(ours: Any, plain: Any, tolerance: float, path: str) -> None:
    """Both are equal, numbers within a tolerance."""
    if isinstance(plain, torch.Tensor):
        torch.testing.assert_close(
            ours, plain, rtol=tolerance, atol=tolerance, equal_nan=True, msg=path
        )
    elif isinstance(plain, dict):
        assert ours.keys() == plain.keys(), path
        for key, value in plain.items():
            assert_same(ours[key], value, tolerance, f"{path}.{key}")
    elif isinstance(plain, (list, tuple)):
        assert len(ours) == len(plain), path
        for index, value in enumerate(plain):
            assert_same(ours[index], value, tolerance, f"{path}[{index}]")
    elif isinstance(plain, float):
        assert ours == pytest.approx(plain, rel=tolerance, abs=tolerance, nan_ok=True), path
    else:
        assert ours == plain, path
