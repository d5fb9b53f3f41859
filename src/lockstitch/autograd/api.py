"""The face of distributed autograd: `context`, `backward`, `get_gradients`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from lockstitch.autograd.service import AutogradService
from lockstitch.runtime.worker import current_worker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from lockstitch.autograd.context import DistAutogradContext


def service() -> AutogradService:
    """Distributed autograd of the current worker. Raises `NotInitializedError` without one."""
    return current_worker().service(AutogradService)


class context:  # noqa: N801 - torch's name, used as a statement: `with context() as context_id`
    """Everything called by RPC within belongs to one forward pass, over all workers.

    Entering returns the context's id, an integer that names it on every worker. Leaving releases it
    everywhere: its graph, its gradients. Contexts of different threads are independent. A call that
    is made under `torch.no_grad()` or `inference_mode()` gives a result without a history, as does
    `to_here()` under them.

    Raises `RuntimeError` where the thread is inside a context already, `NotInitializedError`
    without a worker.

        >>> with autograd.context() as context_id:
        ...     loss = rpc.rpc_sync("worker1", model, args=(batch,)).sum()
        ...     autograd.backward(context_id, [loss])
        ...     gradients = autograd.get_gradients(context_id)

    After `torch.distributed.autograd.context`.
    """

    _service: AutogradService
    _context: DistAutogradContext

    def __enter__(self) -> int:
        self._service = service()
        self._context = self._service.new_context()
        return self._context.id

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._service.leave_context(self._context)


def backward(
    context_id: int,
    roots: Sequence[torch.Tensor],
    retain_graph: bool = False,
    *,
    mode: Literal["smart", "fast"] = "smart",
) -> None:
    """Computes the gradients of the sum of `roots` for the context's leaf tensors on all workers.

    `roots` are tensors of this worker, of one element each and with a history. Gradients are added
    to those that the context has; see `get_gradients`. `.grad` is never touched. The graph's memory
    is freed unless `retain_graph`. Returns when every worker has finished its part.

    `mode`: "smart" is right whatever part of what was called takes part in the loss, and asks only
    where that matters; "fast" assumes that every tensor sent from a worker that the pass reaches
    takes part, as `torch.distributed.autograd` does.

    Raises `TypeError` for arguments of the wrong kind, `ValueError` for another mode;
    `RuntimeError` for unknown contexts and unfit roots; `DistAutogradError` "Error on Node N: …"
    when a worker's part of the graph fails, with the original exception as its cause, or when the
    assumption of "fast" is false; `PeerDiedError` when a worker of the context dies. After an error
    the context keeps what was added before it.

    After `torch.distributed.autograd.backward`.
    """
    if (
        type(context_id) is not int
        or not isinstance(roots, (list, tuple))
        or not all(isinstance(root, torch.Tensor) for root in roots)
    ):
        is_rref = isinstance(roots, (list, tuple)) and any(hasattr(it, "to_here") for it in roots)
        advice = ". Take a reference's value: rref.to_here(), within the context" if is_rref else ""
        raise TypeError(
            "backward(): incompatible function arguments: wanted (context_id: int, roots: list of "
            f"tensors, retain_graph: bool = False), got ({context_id!r}, {roots!r}){advice}"
        )
    if mode not in ("smart", "fast"):
        raise ValueError(f"mode is 'smart' or 'fast', not {mode!r}")
    if torch.is_inference_mode_enabled():
        # Gradients are kept, and added to by later passes outside of that mode.
        with torch.inference_mode(False), torch.no_grad():
            service().backward(context_id, roots, retain_graph, mode)
    else:
        service().backward(context_id, roots, retain_graph, mode)


def get_gradients(context_id: int) -> dict[torch.Tensor, torch.Tensor]:
    """The gradients that the context has on this worker: leaf tensor → gradient, keyed by identity.

    Each gradient has its leaf's shape, dtype and device; a leaf that took no part has none. The
    dictionary is the caller's own; the gradients are the context's, and no two share memory.
    Raises `RuntimeError` for an unknown context. After `torch.distributed.autograd.get_gradients`.
    """
    return service().find_context(context_id).gradients
