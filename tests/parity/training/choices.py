"""The optimizers and schedulers that random training programs choose from."""

from __future__ import annotations

from typing import Any

import torch
from torch import optim
from torch.optim import lr_scheduler, swa_utils

OPTIMIZERS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (optim.SGD, {"lr": 0.05}),
    (optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (optim.SGD, {"lr": 0.05, "momentum": 0.5, "foreach": True}),
    (optim.SGD, {"lr": 0.05, "momentum": 0.5, "dampening": 0.1, "maximize": True}),
    # With momentum torch's own is wrong: after a step that was not finite it uses memory that
    # nobody has set, and parameters that take part later are refused.
    (optim.SGD, {"lr": 0.05, "weight_decay": 0.1, "fused": True}),
    (optim.Adam, {"lr": 0.01, "amsgrad": True}),
    (optim.Adam, {"lr": 0.01, "foreach": False}),
    (optim.Adam, {"lr": 0.01, "fused": True}),
    (optim.Adam, {"lr": torch.tensor(0.01)}),
    (optim.Adam, {"lr": 0.01, "maximize": True, "weight_decay": 0.1}),
    (optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.9)}),
    (optim.AdamW, {"lr": torch.tensor(0.01), "fused": True}),
    (optim.NAdam, {"lr": 0.01}),
    (optim.NAdam, {"lr": 0.01, "decoupled_weight_decay": True, "weight_decay": 0.1}),
    (optim.RAdam, {"lr": 0.01}),
    (optim.Adamax, {"lr": 0.01}),
    (optim.Adadelta, {}),
    (optim.Adagrad, {"lr": 0.05}),
    (optim.Adagrad, {"lr": 0.05, "lr_decay": 0.1, "fused": True}),
    (optim.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
    (optim.Rprop, {"lr": 0.01}),
    (optim.ASGD, {"lr": 0.05, "t0": 2}),
    (optim.Adafactor, {"lr": 0.01}),
    (optim.SparseAdam, {"lr": 0.01}),
)

FOR_SPARSE = frozenset((optim.SGD, optim.Adagrad, optim.SparseAdam))
"""Classes that take sparse gradients, with some options."""


def takes_sparse(optimizer: tuple[Any, dict[str, Any]]) -> bool:
    """Whether the optimizer takes sparse gradients."""
    kind, options = optimizer
    is_plain = not {"fused", "momentum", "weight_decay"} & {*options}
    return kind in FOR_SPARSE and is_plain


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


def _has_momentum(optimizer: Any) -> bool:
    return bool({"momentum", "betas"} & {*optimizer.defaults}) and not optimizer.defaults.get(
        "fused"
    )


def _cyclic(optimizer: Any) -> Any:
    return lr_scheduler.CyclicLR(
        optimizer,
        0.001,
        0.05,
        step_size_up=3,
        mode="exp_range",
        cycle_momentum=_has_momentum(optimizer),
    )


def _one_cycle(optimizer: Any) -> Any:
    return lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=60, cycle_momentum=_has_momentum(optimizer)
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
