"""Random training programs over the workers of a cluster."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import tempfile
from typing import TYPE_CHECKING, Any

import torch

from lockstitch import autograd, hvd, rpc
from lockstitch import checkpoint as saving
from lockstitch import optim as remote_optim
from lockstitch.collectives import LocalSessions
from lockstitch.hvd.job import active
from lockstitch.nn import DataParallel, Pipeline, RemoteModule
from lockstitch.optim import DistributedOptimizer, named_parameters_of
from lockstitch.testing.cluster import LocalCluster
from tests.parity.held_contexts import HeldContexts
from tests.parity.training import parts
from tests.parity.training.loop import AVERAGES, Trainer
from tests.parity.training.parts import Layer
from tests.parity.training.program import OTHER_OWNERS, OWNERS
from tests.parity.training.served import (
    Guest,
    apply,
    forward_there,
    greet,
    produce,
    share,
    step_there,
    weight_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.parity.training.program import Program, Stepper


class There(Trainer):
    """Over the workers of a cluster, whose trainer is active."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.stack = contextlib.ExitStack()
        self.owners = [part.owner for part in program.parts]
        self.workers: tuple[str, ...] = OWNERS
        if any(stepper.is_hvd for stepper in program.optimized):
            session = LocalSessions(1)[0]
            self.stack.callback(session.shutdown)
            self.stack.enter_context(active(session))
        self.build(0)

    def __enter__(self) -> There:
        return self

    def __exit__(self, *_error: object) -> None:
        self.forget()
        self.stack.close()

    def build(self, seed: int) -> None:
        """Makes all parts."""
        program = self.program
        is_stage = program.pipeline is not None
        self.layers = [
            rpc.remote(
                self.owners[place],
                Layer,
                (seed + place, part.kind, part.quirks, program.dtype, is_stage),
            )
            for place, part in enumerate(program.parts)
        ]
        for layer, part in zip(self.layers, program.parts, strict=True):
            if part.shares is not None:
                rpc.rpc_sync(layer.owner(), share, (layer, self.layers[part.shares]))
        self.modules = [
            RemoteModule.init_from_module_rref(owner, layer)
            for owner, layer in zip(self.owners, self.layers, strict=True)
        ]
        self.slots: dict[int, Any] = {}
        self.pipeline: Any = None
        if program.pipeline is not None:
            name, chunks, recompute = program.pipeline
            stages = [
                module if place % 2 else layer
                for place, (module, layer) in enumerate(zip(self.modules, self.layers, strict=True))
            ]
            self.pipeline = Pipeline(stages, name, chunks, recompute=recompute)

    def forget(self) -> None:
        """Drops all references to what is elsewhere."""
        for each in self.slots.values():
            each.close()
        self.layers, self.modules, self.pipeline = [], [], None
        self.optimizers, self.schedulers, self.averages, self.slots = [], [], None, {}

    def at(self, place: int, function: Callable[..., Any], *args: Any) -> Any:
        layer = self.layers[place]
        return rpc.rpc_sync(layer.owner(), apply, (layer, function, *args))

    def parameters(self, place: int) -> list[tuple[str, Any]]:
        return named_parameters_of(self.layers[place])

    def weight(self, place: int) -> torch.Tensor:
        return rpc.rpc_sync(self.owners[place], weight_of, (self.layers[place],))

    def step(self, optimizer: Any, *context: Any) -> None:
        if self.program.other_steps and isinstance(optimizer, DistributedOptimizer):
            rpc.rpc_sync(self.workers[1], step_there, (optimizer, *context))
        else:
            optimizer.step(*context)

    def update_bn(self, place: int, batches: list[torch.Tensor]) -> None:
        remote_optim.update_bn(batches, self.averages.averages[place])

    def value(self, parameter: Any) -> torch.Tensor:
        return parameter.to_here().detach()

    def new_optimizer(self, stepper: Stepper, kind: Any, given: Any, options: Any) -> Any:
        if not stepper.is_hvd:
            return DistributedOptimizer(kind, given, **options)
        return hvd.DistributedOptimizer(kind(_local(given), **options))

    def add_group(self, number: int, group: dict[str, Any]) -> None:
        if self.program.optimized[number].is_hvd:
            (group,) = _local([group])
        super().add_group(number, group)

    def new_scaler(self, **options: Any) -> Any:
        return remote_optim.GradScaler(**options)

    def new_averages(self, **options: Any) -> Any:
        modules = self.modules if self.program.seed % 2 else self.layers
        return remote_optim.AveragedModel(modules, **options)

    def averaged_values(self) -> list[list[torch.Tensor]]:
        return [
            rpc.rpc_sync(average.owner(), apply, (average, parts.values))
            for average in self.averages.averages
        ]

    # ------------------------------------------------------------ passes

    def forward(self, number: int, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if self.program.compiled is not None:
            return torch.compile(super().forward, backend=self.program.compiled)(number, x, ids)
        return super().forward(number, x, ids)

    def call(self, place: int, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        layer, module = self.layers[place], self.modules[place]
        owner, way = self.owners[place], self.program.parts[place].way
        others = [name for name in self.workers if name != owner]
        ways: dict[str, Callable[[], Any]] = {
            "async": lambda: layer.rpc_async().__call__(x, ids).wait(),
            "remote": lambda: layer.remote().__call__(x, ids).to_here(),
            "module": lambda: module(x, ids),
            "method": lambda: layer.rpc_sync().__call__(x, ids),
            "by another": lambda: rpc.rpc_sync(
                others[place % len(others)], forward_there, (layer, x, ids)
            ),
            "group": lambda: rpc.group([owner]).call(apply, (layer, parts.run, x, ids))[0],
            "mapped": lambda: rpc.group([owner]).map(
                functools.partial(apply, layer, parts.run, x), [ids]
            )[0],
            "stream": lambda: self.streamed(place, x, ids),
            "recomputed": lambda: parts.recompute(self.carried(module), x, ids),
            "slots": lambda: self.in_slots(place)(x, ids),
            "forks": lambda: self.in_slots(place)(x, ids),
        }
        return ways[way]()

    def streamed(self, place: int, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        with rpc.stream(self.owners[place], produce, (self.layers[place], x, ids)) as items:
            return next(items)

    def in_slots(self, place: int) -> Any:
        """A part of this worker, on two slots."""
        if place not in self.slots:
            places = ["thread", self.workers[1]] if place % 2 else ["thread", "thread"]
            if self.program.parts[place].way == "forks":
                places = ["fork", "fork"]
            self.slots[place] = DataParallel(self.layers[place].local_value(), places)
        return self.slots[place]

    def carried(self, module: Any) -> Callable[..., Any]:
        """The module, which is called with the modes of this thread where the model is: when it is
        run again nobody is in `carry_modes`."""

        def call(*args: Any) -> Any:
            with self.modes() if self.program.autocast else contextlib.nullcontext():
                return module(*args)

        return call

    def backward(self, loss: torch.Tensor, *context: int, create_graph: bool) -> None:
        autograd.backward(*context, [loss], create_graph=create_graph)

    def penalty(self, loss: torch.Tensor, inputs: Any, *context: int) -> Any:
        if inputs is None:
            inputs = self.penalized()
            if not inputs:
                return 0.0
        found = autograd.grad(*context, loss, inputs, create_graph=True, allow_unused=True)
        return sum(_measured(each) for each in found if each is not None)

    def penalized(self) -> list[Any]:
        chosen = []
        for number, stepper in enumerate(self.program.optimized):
            optimizer = self.optimizers[number]
            for group in optimizer.param_groups:
                for each in group["params"]:
                    if stepper.is_hvd:
                        chosen += [each] if each.requires_grad else []
                    elif rpc.rpc_sync(each.owner(), apply, (each, _wants_gradients)):
                        chosen.append(each)
        return chosen

    def run_pipeline(
        self, x: torch.Tensor, ids: torch.Tensor, factor: float, scale: float, *context: int
    ) -> float:
        def loss_of(output: Any, _target: Any) -> torch.Tensor:
            return output[0].square().mean() * factor

        return self.pipeline.step(*context, (x, ids), x, loss_of, scale=scale).item()

    def contexts(self, number: int, then: Callable[..., None]) -> list[float]:
        contexts = self.program.contexts
        for optimizer in self.optimizers if self.program.zeroes else ():
            optimizer.zero_grad(set_to_none=False)
        if not contexts[-1]:
            with autograd.context() as context_id:
                losses = [self.go(number, context_id) for _ in contexts]
                then(context_id)
            return losses
        with HeldContexts() as held, contextlib.ExitStack() as visit:
            losses = []
            guest = rpc.remote(self.workers[1], Guest) if self.program.has_guest else None
            if guest is not None:
                visit.callback(guest.rpc_sync().leave)  # also where a pass raises
            theirs = []
            for context, passes in itertools.groupby(contexts):
                if context and guest is not None:
                    for _ in passes:
                        loss, context_id = self.have_trained(guest, number)
                        losses.append(loss)
                        theirs.append(context_id)
                else:
                    losses += held.run(self.go_on, number, len([*passes]))
            then([*held.ids, *theirs])
        return losses

    def have_trained(self, guest: Any, number: int) -> tuple[float, int]:
        scale = 1.0 if self.scaler is None else self.scaler.get_scale()
        order = [
            each for each in self.program.order if each not in self.program.unused or number % 2
        ]
        layers = [self.layers[place] for place in order]
        batch = self.batch(number)
        return guest.rpc_sync().train(layers, *batch, scale, self.program.autocast)

    def go_on(self, context_id: int, number: int, passes: int) -> list[float]:
        rpc.rpc_sync(self.workers[1], greet)
        return [self.go(number, context_id) for _ in range(passes)]

    def modes(self) -> contextlib.AbstractContextManager[Any]:
        return rpc.carry_modes()

    # ------------------------------------------------------------ clipping

    def clip(self, *context: Any) -> None:
        every: list[Any] = []
        for number, stepper in enumerate(self.program.optimized):
            optimizer = self.optimizers[number]
            if self.program.clips_references or stepper.is_hvd:
                members = [each for group in optimizer.param_groups for each in group["params"]]
                every.append([*map(rpc.RRef, members)] if stepper.is_hvd else members)
            else:
                every.append(optimizer)
        if self.program.clips_references:
            every = [[each for members in every for each in members]]
        assert self.program.clip is not None
        (kind, limit), options = self.program.clip, self.program.clip_options
        for what in every:
            if kind == "value":
                remote_optim.clip_grad_value_(what, *context, limit, **options)
            elif self.program.clips_in_two:
                norm = remote_optim.get_total_norm(what, *context, kind, **self.norm_options)
                remote_optim.clip_grads_with_norm_(what, *context, limit, norm, **options)
                self.outcome.norms.append(norm)
            else:
                norm = remote_optim.clip_grad_norm_(
                    what, *context, limit, kind, **self.norm_options
                )
                self.outcome.norms.append(norm)

    # ------------------------------------------------------------ checkpoints

    def save(self) -> Any:
        if self.program.reload_by in ("states", "plain"):
            return super().save()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        things = self.things(self.program.reload_by == "new world")
        if self.program.reload_by == "async":
            return folder, saving.save_async(folder, things)
        saving.save(folder, things)
        return folder, None

    def make(self) -> None:
        if self.optimizers and self.program.reload_by == "new world":
            if self.program.pipeline is None:
                places = range(len(self.layers))
                self.outcome.events += [self.at(place, parts.events) for place in places]
            self.settle_elsewhere()
        super().make()

    def restore(self, saved: Any) -> None:
        if self.program.reload_by in ("states", "plain"):
            super().restore(saved)
            return
        folder, future = saved
        if future is not None:
            future.wait()
        saving.load(folder, self.things(self.program.reload_by == "new world"))

    def settle_elsewhere(self) -> None:
        """Goes on in a new cluster of other workers, with parts of other numbers."""
        had_averages = self.averages is not None
        self.forget()
        cluster = self.stack.enter_context(LocalCluster(OTHER_OWNERS))
        self.stack.enter_context(cluster["trainer"].active())
        self.workers = OTHER_OWNERS
        self.owners = self.new_owners()
        self.build(1000)
        for place, is_frozen in enumerate(self.is_frozen):
            if is_frozen:
                self.at(place, parts.want_gradients, False)
        if had_averages:
            self.averages = self.new_averages(**AVERAGES[self.program.average or ""]())

    def new_owners(self) -> list[str]:
        """What the trainer has stays there, for its slots and ranks, and what is shared together;
        in a pipeline all of a worker."""
        source, owners = random.Random(self.program.seed), []
        moved = dict(zip(OWNERS, ("trainer", *source.sample(OTHER_OWNERS, 2)), strict=True))
        for part in self.program.parts:
            if part.shares is not None:
                owners.append(owners[part.shares])
            elif part.owner == "trainer" or self.program.pipeline is not None:
                owners.append(moved[part.owner])
            else:
                owners.append(source.choice(OTHER_OWNERS))
        return owners

    def things(self, with_parts: bool) -> dict[str, Any]:
        """All that is saved."""
        things: dict[str, Any] = {}
        if with_parts:
            things |= {f"part {place}": each for place, each in enumerate(self.modules)}
            if self.averages is not None:
                averages = enumerate(self.averages.averages)
                things |= {f"average {place}": each for place, each in averages}
        things |= {f"optimizer {number}": each for number, each in enumerate(self.optimizers)}
        schedulers = enumerate(self.schedulers)
        things |= {f"scheduler {number}": each for number, each in schedulers if each is not None}
        if self.scaler is not None:
            things["scaler"] = self.scaler
        return things


def _local(given: list[Any]) -> list[Any]:
    """The tensors behind references of this worker, in the same form."""
    local = []
    for each in given:
        if isinstance(each, dict):
            local.append({**each, "params": _local(each["params"])})
        elif isinstance(each, tuple):
            local.append((each[0], each[1].local_value()))
        else:
            local.append(each.local_value())
    return local


def _wants_gradients(parameter: torch.Tensor) -> bool:
    return parameter.requires_grad


def _measured(gradient: Any) -> torch.Tensor:
    if isinstance(gradient, torch.Tensor):
        return parts.measure(gradient)
    return rpc.rpc_sync(gradient.owner(), apply, (gradient, parts.measure))
