"""Random training programs in one process, with plain PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import swa_utils

from lockstitch.nn.pipelining.micro_batches import sizes_of
from lockstitch.nn.slots import generators
from tests.parity.training import parts
from tests.parity.training.loop import LINES, Trainer
from tests.parity.training.parts import Layer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.parity.training.program import Program, Stepper


class Here(Trainer):
    """In one process."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        is_stage = program.pipeline is not None
        self.layers = [
            Layer(place, part.kind, part.quirks, program.dtype, is_stage)
            for place, part in enumerate(program.parts)
        ]
        for layer, part in zip(self.layers, program.parts, strict=True):
            if part.shares is not None:
                parts.take_weight(layer, self.layers[part.shares])
        self.pipeline_steps = 0

    def at(self, place: int, function: Callable[..., Any], *args: Any) -> Any:
        return function(self.layers[place], *args)

    def parameters(self, place: int) -> list[tuple[str, Any]]:
        return list(self.layers[place].named_parameters())

    def new_optimizer(self, stepper: Stepper, kind: Any, given: Any, options: Any) -> Any:
        del stepper
        return kind(given, **options)

    def new_scaler(self, **options: Any) -> Any:
        return torch.amp.GradScaler("cpu", **options)

    def new_averages(self, **options: Any) -> Any:
        return [swa_utils.AveragedModel(layer, **options) for layer in self.layers]

    def update_averages(self) -> None:
        for average, layer in zip(self.averages, self.layers, strict=True):
            average.update_parameters(layer)

    def averaged_values(self) -> list[list[torch.Tensor]]:
        return [parts.values(average) for average in self.averages]

    def call(self, place: int, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        layer = self.layers[place]
        if self.program.parts[place].way == "recomputed":
            return parts.recompute(layer, x, ids)
        return layer(x, ids)

    def weight(self, place: int) -> torch.Tensor:
        return self.layers[place].weight

    def step(self, optimizer: Any, *context: Any) -> None:
        del context
        optimizer.step()

    def update_bn(self, place: int, batches: list[torch.Tensor]) -> None:
        swa_utils.update_bn(batches, self.averages[place])

    def backward(self, loss: torch.Tensor, *context: int, create_graph: bool) -> None:
        del context
        loss.backward(create_graph=create_graph)

    def penalty(self, loss: torch.Tensor, inputs: Any, *context: int) -> Any:
        del context
        if inputs is None:
            inputs = [
                each
                for optimizer in self.optimizers
                for group in optimizer.param_groups
                for each in group["params"]
                if each.requires_grad
            ]
        if isinstance(inputs, list) and not inputs:
            return 0.0
        found = torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)
        return sum(parts.measure(each) for each in found if each is not None)

    def run_pipeline(
        self, x: torch.Tensor, ids: torch.Tensor, factor: float, scale: float, *context: int
    ) -> float:
        del context
        assert self.program.pipeline is not None
        seed = generators.seed_for(generators.fingerprint(), self.pipeline_steps)
        self.pipeline_steps += 1
        total, begin = torch.zeros((), dtype=x.dtype), 0
        for number, size in enumerate(sizes_of(LINES, self.program.pipeline[1])):
            rows = slice(begin, begin + size)
            begin += size
            value: Any = x[rows].clone(), ids[rows].clone()
            for stage in range(len(self.layers)):
                with generators.kept():
                    generators.seed(generators.seed_for(generators.seed_for(seed, stage), number))
                    value = self.call(stage, value[0].clone(), value[1])
            loss = value[0].square().mean() * factor
            weight = size / LINES
            loss.backward(torch.full_like(loss, weight * scale))
            total = total.to(loss.dtype) + loss.detach() * weight
        return total.item()

    def contexts(self, number: int, then: Callable[..., None]) -> list[float]:
        for each in (*self.layers, *self.optimizers):  # which may have what were a layer's
            each.zero_grad(set_to_none=not self.program.zeroes)
        losses = [self.go(number) for _ in self.program.contexts]
        then()
        return losses

    def clip(self, *context: Any) -> None:
        del context
        every = [
            [each for group in optimizer.param_groups for each in group["params"]]
            for optimizer in self.optimizers
        ]
        if self.program.clips_references:
            every = [[each for members in every for each in members]]
        assert self.program.clip is not None
        (kind, limit), options = self.program.clip, self.program.clip_options
        for members in every:
            if kind == "value" and all(each.grad is None for each in members):
                continue  # which torch does not take
            if kind == "value":
                nn.utils.clip_grad_value_(members, limit, **options)
            elif self.program.clips_in_two:
                gradients = [each.grad for each in members if each.grad is not None]
                norm = nn.utils.get_total_norm(gradients, kind, **self.norm_options)
                nn.utils.clip_grads_with_norm_(members, limit, norm, **options)
                self.outcome.norms.append(norm)
            else:
                norm = nn.utils.clip_grad_norm_(members, limit, kind, **self.norm_options)
                self.outcome.norms.append(norm)

    def reload(self) -> None:
        """In another world events and steps begin anew."""
        if self.program.reload_by == "new world":
            self.pipeline_steps = 0
            if self.program.pipeline is None:
                self.outcome.events += [[*parts.events(layer)] for layer in self.layers]
            for layer in self.layers:
                layer.events.clear()
        super().reload()
