"""`GradScaler`: mixed precision over parameters of many workers.

Torch's own scaler does what happens on this worker. Unscaling is done by all owners of parameters,
each of its own gradients; if any of them has found a number that is not finite, none steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lockstitch.optim import owners
from lockstitch.optim.clipping import own_gradients
from lockstitch.optim.distributed import DistributedOptimizer
from lockstitch.optim.gradients import checked_contexts
from lockstitch.torch_internals.gradients import ScalerWithoutGradients, unscale
from lockstitch.torch_internals.tensors import values_of
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from lockstitch.optim.gradients import ContextIds
    from lockstitch.optim.local import LocalOptimizer
    from lockstitch.rpc import RRef

    _Scaler = torch.amp.GradScaler
else:
    _Scaler = ScalerWithoutGradients

_NOBODY = "no owner has stepped"


class GradScaler(_Scaler):
    """A `torch.amp.GradScaler` whose optimizers may be distributed ones. For these `unscale_` and
    `step` take the autograd context, or several that count as one.

        >>> with autograd.context() as context_id:
        ...     autograd.backward(context_id, [scaler.scale(loss)])
        ...     scaler.unscale_(optimizer, context_id)  # if gradients are to be clipped
        ...     clip_grad_norm_(optimizer, context_id, 1.0)
        ...     scaler.step(optimizer, context_id)
        ...     scaler.update()

    Torch's fused optimizers divide by the scale within their step. Here gradients are unscaled
    before it, as for all others: that is the same where the scale is a power of two, as it is by
    default, and gradients in float16 are refused.

    `device`: where losses are ("cpu"; torch's own default is "cuda", without which its scaler turns
    itself off). Everything else, `state_dict` too, is torch's.

    All owners step, or none: an owner that is gone when a step begins, or when gradients are
    unscaled, keeps all others from stepping. Where one dies later, all others have stepped. Its
    error says which.
    """

    def __init__(
        self,
        device: str = "cpu",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__(
            device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )
        self._losses_on = device
        self._contexts: dict[int, list[int]] = {}
        """The contexts whose gradients have been unscaled since the last `update`, by optimizer."""
        self._half_unscaled: set[int] = set()
        """Contexts whose gradients some owners have unscaled, and others have not."""

    def get_scale(self) -> float:
        """Returns the scale. Whoever asks may scale by it without `scale`, as `Pipeline.step`
        does."""
        if self.is_enabled():
            self.scale(torch.zeros((), device=self._losses_on))  # torch makes its state only then
        return super().get_scale()

    def unscale_(
        self, optimizer: torch.optim.Optimizer, context_id: ContextIds | None = None
    ) -> None:
        """Divides the gradients of the optimizer's parameters in the context by the scale, on all
        owners at once. Raises `RuntimeError` when they have been unscaled since the last `update`,
        and where an owner does not answer; `ValueError` for gradients in float16; `TypeError` for a
        context with another optimizer."""
        if not self.is_enabled() or not isinstance(optimizer, DistributedOptimizer):
            self._check_other(optimizer, context_id)
            super().unscale_(optimizer)
            return
        was_unscaled = id(optimizer) in self._contexts
        self._note(optimizer, context_id)
        try:
            super().unscale_(optimizer)
        except BaseException:
            if not was_unscaled:  # then another context may follow, without an `update`
                del self._contexts[id(optimizer)]
            raise

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Unscales gradients, unless that was done, and steps the optimizer, unless any owner has
        found a gradient that is not finite. `args` and `kwargs` are those of the optimizer's
        `step`: the context. Raises what `unscale_` and that do."""
        if self.is_enabled() and isinstance(optimizer, DistributedOptimizer):
            if id(optimizer) in self._contexts:
                self._note(optimizer, *args, **kwargs)
                _look_for_owners(optimizer)  # who has died since keeps the others from stepping
            else:
                self.unscale_(optimizer, *args, **kwargs)
        else:
            self._check_other(optimizer, args[0] if args else kwargs.get("context_id"))
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Adapts the scale to what the steps since the last `update` have found."""
        super().update(new_scale)
        self._contexts.clear()

    def _check_other(self, optimizer: torch.optim.Optimizer, context_id: object) -> None:
        """Torch looks at `.grad` alone, and would say that it has found nothing there."""
        if self.is_enabled() and isinstance(context_id, int):
            raise TypeError(
                "a GradScaler unscales gradients of an autograd context for a "
                f"lockstitch.optim.DistributedOptimizer, which {type(optimizer).__name__} is not: "
                "put them into .grad (autograd.get_gradients(context_id) has them) and call "
                "scaler.step(optimizer). With an optimizer of hvd first reduce them, by "
                "optimizer.synchronize(context_id), and step within optimizer.skip_synchronize()"
            )

    def _note(self, optimizer: DistributedOptimizer, context_id: ContextIds | None = None) -> None:
        known = self._contexts.get(id(optimizer))
        if context_id is None and known is None:
            raise TypeError(
                "gradients of a DistributedOptimizer belong to an autograd context: name it, as in "
                "scaler.step(optimizer, context_id)"
            )
        if context_id is None:
            return
        contexts = checked_contexts(context_id)
        if known is not None and known != contexts:
            raise RuntimeError(
                f"since the last update() gradients of contexts {known} were unscaled, and now "
                f"those of {contexts} are named: call update() after each step"
            )
        if not self._half_unscaled.isdisjoint(contexts):
            raise RuntimeError(
                f"of contexts {contexts} some owners have unscaled gradients, when others failed: "
                "begin a new context"
            )
        self._contexts[id(optimizer)] = contexts

    def unscale(
        self, optimizer: torch.optim.Optimizer, inverse_scale: torch.Tensor, allow_fp16: bool
    ) -> Any:
        """Unscales the gradients of an optimizer; torch's scaler calls it."""
        if not isinstance(optimizer, DistributedOptimizer):
            return NotImplemented
        contexts = self._contexts[id(optimizer)]
        references = optimizer.remote_optimizers
        arguments = [(contexts, inverse_scale, allow_fp16)] * len(references)
        outcomes = owners.ask_owners(references, _unscale, arguments)
        if any(outcome.error is not None for outcome in outcomes):
            self._half_unscaled.update(contexts)
        found = [each for each in owners.values(outcomes, "unscaled", _NOBODY) if each is not None]
        return any(found) if found else None


def _look_for_owners(optimizer: DistributedOptimizer) -> None:
    references = optimizer.remote_optimizers
    outcomes = owners.ask_owners(references, _is_there, [()] * len(references))
    owners.values(outcomes, consequence=_NOBODY)


# ---------------------------------------------------------------- on the owners


@needed
def _is_there(reference: RRef[LocalOptimizer]) -> None:
    reference.local_value()


@needed
@torch.no_grad()
def _unscale(
    reference: RRef[LocalOptimizer],
    contexts: list[int],
    inverse_scale: torch.Tensor,
    allow_fp16: bool,
) -> bool | None:
    """Unscales this owner's gradients; returns whether any is not finite, None without any."""
    kinds: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for gradient in own_gradients(reference, contexts):
        if gradient is None:
            continue
        if gradient.dtype == torch.float16 and not allow_fp16:
            raise ValueError("Attempting to unscale FP16 gradients.")
        numbers = values_of(gradient) if gradient.is_sparse else gradient
        kinds.setdefault((numbers.device, numbers.dtype), []).append(numbers)
    found = False
    for (device, _), gradients in kinds.items():
        is_found = torch.zeros((), dtype=torch.float32, device=device)
        unscale(gradients, is_found, inverse_scale.to(device))
        found |= bool(is_found)
    return found if kinds else None
