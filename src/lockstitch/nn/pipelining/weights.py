"""By what the losses of micro-batches are multiplied, so that their sum is the loss of the batch.

A sum counts as it is. A mean counts by the number of its terms: the rows of the micro-batch, unless
the loss leaves targets out or weighs them. Of the two of torch that do so, cross entropy and
negative log likelihood, it is known here; for others a program says how many terms there are. A
mean of no terms at all is NaN, as in one process.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Reduction = str | Callable[[Any], float]

_CLASSES: Final = (nn.CrossEntropyLoss, nn.NLLLoss)
_FUNCTIONS: Final = (nn.functional.cross_entropy, nn.functional.nll_loss)
_IGNORED: Final = -100
"""The index of targets that both leave out by default."""


def weights_of(
    sizes: Sequence[int],
    targets: Sequence[Any] | None,
    loss_fn: object,
    reduction: Reduction | None,
) -> list[float]:
    """The weight of each micro-batch, from its rows and its target. `reduction`: "mean", "sum", or
    what counts the terms of a target; None: as `loss_fn` says, and "mean" where it says nothing."""
    if reduction is None:
        reduction = _option(loss_fn, "reduction", "mean")
    if reduction == "sum":
        return [1.0] * len(sizes)
    targets = [None] * len(sizes) if targets is None else targets
    count = reduction if callable(reduction) else _terms_of(loss_fn, targets)
    counts = (
        [float(size) for size in sizes] if count is None else [*map(float, map(count, targets))]
    )
    total = sum(counts)
    return [each / total if total else math.nan for each in counts]  # a mean of nothing is 0/0


def _option(loss_fn: object, name: str, default: Any) -> Any:
    """What a loss was given under this name, be it an object or a partial function."""
    if isinstance(loss_fn, functools.partial):
        return loss_fn.keywords.get(name, _option(loss_fn.func, name, default))
    return getattr(loss_fn, name, default)


def _terms_of(loss_fn: object, targets: Sequence[Any]) -> Callable[[torch.Tensor], float] | None:
    """Counts the terms of a mean over targets that are classes; None: all have as many."""
    function = loss_fn.func if isinstance(loss_fn, functools.partial) else loss_fn
    if not isinstance(function, _CLASSES) and function not in _FUNCTIONS:
        return None
    if not all(map(_has_classes, targets)):
        return None
    ignored, weight = _option(loss_fn, "ignore_index", _IGNORED), _option(loss_fn, "weight", None)

    def count(target: torch.Tensor) -> float:
        kept = target[target != ignored]
        return float(kept.numel() if weight is None else weight.to(kept.device)[kept].sum())

    return count


def _has_classes(target: object) -> bool:
    return isinstance(target, torch.Tensor) and not target.is_floating_point()
