"""`DistributedOptimizer`: one ordinary optimizer on each worker that owns parameters, one `step`
for all.

    trainer                                   owner "ps1"          owner "ps2"
    DistributedOptimizer(SGD, refs, lr=0.1) ─→ LocalOptimizer       LocalOptimizer
    step(context_id)                        ─→ step(gradients)      step(gradients)     in parallel

Only names of contexts and references cross: gradients lie already where their parameters are, since
a backward pass leaves them there (`autograd.get_gradients`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from lockstitch import autograd
from lockstitch.errors import add_note
from lockstitch.optim.local import LocalOptimizer
from lockstitch.optim.states import join_states, split_state
from lockstitch.optim.update_lock import UpdateLock
from lockstitch.rpc import RRef, rpc_async
from lockstitch.runtime.worker import current_worker
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch
    from torch.futures import Future
    from torch.optim import Optimizer

    from lockstitch.ids import WorkerInfo

T = TypeVar("T")

_OF_OWNERS: Final = (
    "each owner of parameters has an optimizer of its own; state_dict() shows what all of them "
    "have, and load_state_dict() changes it, learning rates too"
)
_ELSEWHERE: Final = {
    "zero_grad": "there is nothing to set to zero: gradients belong to an autograd context, and "
    "each new one begins without any",
    "param_groups": _OF_OWNERS,
    "state": _OF_OWNERS,
    "defaults": _OF_OWNERS,
}
"""What of an ordinary optimizer is not here, and why."""


class DistributedOptimizer:
    """Applies `optimizer_class` to parameters scattered over workers.

    `optimizer_class`: any `torch.optim.Optimizer` class; `params_rref`: references to the
    parameters, leaf tensors of any shape and dtype, owned by any workers, this one included. `args`
    and `kwargs` go to the constructor on each owner. What a constructor raises is raised here, and
    `TypeError` for anything else than a class and references.

    Steps of several optimizers, also of several trainers, on parameters of one owner take turns. A
    step may come while other trainers' forward and backward passes are in flight: updates are those
    of Hogwild (`lockstitch.optim.local` says what this means for the numbers).

        >>> with autograd.context() as context_id:
        ...     autograd.backward(context_id, [model(batch).sum()])
        ...     optimizer.step(context_id)
    """

    remote_optimizers: list[RRef[LocalOptimizer]]
    """References to the local optimizers, one for each owner."""

    def __init__(
        self,
        optimizer_class: Callable[..., Optimizer],
        params_rref: Iterable[RRef[torch.Tensor]],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if not callable(optimizer_class):
            raise TypeError(
                "optimizer_class is a class, such as torch.optim.SGD, which each owner of "
                f"parameters makes its optimizer of, not {optimizer_class!r}"
            )
        if isinstance(params_rref, RRef):
            raise TypeError(
                "params_rref is a list of references to parameters, not one reference: where it "
                "refers to a module, have its owner make [RRef(parameter) for parameter in "
                "module.parameters()]"
            )
        by_owner = _by_owner(params_rref)
        self._positions = [list(owned) for owned in by_owner.values()]
        """For each owner, where its parameters stand among all."""
        self.remote_optimizers = _wait_for_all(
            list(by_owner),
            [
                rpc_async(
                    owner,
                    _new_local_optimizer,
                    (optimizer_class, list(owned.values()), args, kwargs),
                )
                for owner, owned in by_owner.items()
            ],
        )

    def __getattr__(self, name: str) -> NoReturn:
        """Tells whoever looks for what an ordinary optimizer has."""
        advice = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}{advice}",
            name=name,
            obj=self,
        )

    def step(self, context_id: int) -> None:
        """Lets each owner update its parameters by the gradients of the autograd context
        `context_id`, all owners in parallel; returns when all have.

        Parameters without a gradient in the context stay as they are. Raises `RuntimeError` for an
        unknown context, and what an owner's optimizer raised; when several failed, the first one's
        exception, with notes about the others.
        """
        autograd._is_valid_context(context_id)
        owners = [reference.owner() for reference in self.remote_optimizers]
        _wait_for_all(
            owners,
            [
                rpc_async(owner, _step_local_optimizer, (reference, context_id))
                for owner, reference in zip(owners, self.remote_optimizers, strict=True)
            ],
        )

    def state_dict(self) -> dict[str, Any]:
        """The states of all owners' optimizers as that of one optimizer over all parameters, in the
        order of `params_rref`. So it fits the same parameters on other workers.

        The options of the first owner stand for those of all. Tensors travel here. Raises
        `RuntimeError` where an owner does not answer: `PeerDiedError`, `RpcTimeoutError`.
        """
        owners = [reference.owner() for reference in self.remote_optimizers]
        futures = [
            rpc_async(owner, _state_of_local_optimizer, (reference,))
            for owner, reference in zip(owners, self.remote_optimizers, strict=True)
        ]
        states = _wait_for_all(owners, futures)
        return join_states(states, self._positions)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Gives each owner its part of a state of all parameters. Raises `ValueError` where the
        number of parameters is another, and what an owner's optimizer raises."""
        owners = [reference.owner() for reference in self.remote_optimizers]
        parts = split_state(state, self._positions)
        _wait_for_all(
            owners,
            [
                rpc_async(owner, _load_local_optimizer, (reference, part))
                for owner, reference, part in zip(
                    owners, self.remote_optimizers, parts, strict=True
                )
            ],
        )


def _by_owner(
    references: Iterable[RRef[torch.Tensor]],
) -> dict[WorkerInfo, dict[int, RRef[torch.Tensor]]]:
    """The references to each owner's parameters, by their positions among all."""
    found: dict[WorkerInfo, dict[int, RRef[torch.Tensor]]] = {}
    for position, reference in enumerate(references):
        if not isinstance(reference, RRef):
            raise TypeError(
                f"params_rref is a list of references, but number {position} is a "
                f"{type(reference).__name__}: wrap parameters of this worker in RRef(…)"
            )
        found.setdefault(reference.owner(), {})[position] = reference
    return found


@needed
def _new_local_optimizer(
    optimizer_class: Callable[..., Optimizer],
    references: Sequence[RRef[torch.Tensor]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> RRef[LocalOptimizer]:
    """Makes the optimizer of one owner; runs on the owner of `references`."""
    parameters = [reference.local_value() for reference in references]
    update_lock = UpdateLock.of(current_worker())
    return RRef(LocalOptimizer(optimizer_class, parameters, update_lock, *args, **kwargs))


@needed
def _step_local_optimizer(reference: RRef[LocalOptimizer], context_id: int) -> None:
    """Steps the optimizer of one owner; runs there."""
    reference.local_value().step(autograd.get_gradients(context_id))


@needed
def _state_of_local_optimizer(reference: RRef[LocalOptimizer]) -> dict[str, Any]:
    return reference.local_value().state_dict()


@needed
def _load_local_optimizer(reference: RRef[LocalOptimizer], state: dict[str, Any]) -> None:
    reference.local_value().load_state_dict(state)


def _wait_for_all(owners: Sequence[WorkerInfo], futures: Sequence[Future[T]]) -> list[T]:
    """The results of all, after all have ended one way or the other."""
    results: list[T] = []
    failures: list[tuple[WorkerInfo, Exception]] = []
    for owner, future in zip(owners, futures, strict=True):
        try:
            results.append(future.wait())
        except Exception as error:  # noqa: BLE001 - raised below, after the others have ended
            failures.append((owner, error))
    if failures:
        (_, first), *others = failures
        for owner, other in others:
            note = f"also on worker {owner.name!r}: {type(other).__name__}: {other}"
            add_note(first, note)
        raise first
    return results
