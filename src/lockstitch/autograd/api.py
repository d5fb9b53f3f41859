"""The face of distributed autograd: `context`, `backward`, `get_gradients`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from lockstitch.autograd.conductor import flags_of
from lockstitch.autograd.inputs import Inputs
from lockstitch.autograd.roots import enter_with
from lockstitch.autograd.service import AutogradService
from lockstitch.compiling import opaque
from lockstitch.rref.rref import RRef
from lockstitch.runtime.worker import current_worker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from lockstitch.autograd.context import DistAutogradContext
    from lockstitch.autograd.inputs import Input, Result

Mode: TypeAlias = Literal["smart", "fast"]


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
        self._context = self._service.new_context(self)
        return self._context.id

    def __exit__(self, *_error: object) -> None:
        self._service.leave_context(self._context)


@opaque
def backward(
    context_id: int,
    roots: Sequence[torch.Tensor],
    retain_graph: bool = False,
    create_graph: bool = False,
    *,
    mode: Mode = "smart",
) -> None:
    """Computes the gradients of the sum of `roots` for the context's leaf tensors on all workers.

    `roots` are tensors of this worker, of one element each and with a history. Gradients are added
    to those that the context has; see `get_gradients`. `.grad` is never touched. The graph's memory
    is freed unless `retain_graph`. Returns when every worker has finished its part.

    `create_graph`: the gradients have a history themselves, over all workers, and the graph is
    kept. A further pass of this context from what is computed of them gives second derivatives;
    one that creates a graph again, third ones, and so on.

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
    _check_mode(mode)
    if not torch.is_inference_mode_enabled():
        service().backward(context_id, roots, retain_graph, mode, create_graph)
        return
    with _outside_inference_mode():
        service().backward(context_id, roots, retain_graph, mode, create_graph)


@opaque
def grad(  # noqa: PLR0913, PLR0917 - the signature of torch.autograd.grad
    context_id: int,
    outputs: torch.Tensor | Sequence[torch.Tensor],
    inputs: Input | Sequence[Input],
    grad_outputs: torch.Tensor | Sequence[torch.Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    *,
    materialize_grads: bool = False,
    mode: Mode = "smart",
) -> tuple[Result, ...]:
    """Returns the gradients of `outputs` with respect to `inputs`, over all workers of the context;
    adds nothing to the gradients that the context has, nor to any `.grad`.

    `outputs` are tensors of this worker, with a history. `inputs` are tensors of this worker, leaf
    or not, and references (`RRef`) to tensors of any worker: parameters of a remote module, say.
    The gradient of a tensor is a tensor of its shape, dtype and device; that of a reference is a
    reference to the gradient, which stays on the owner (`to_here()` fetches it, on the graph within
    the context). `grad_outputs`: the gradients to begin with, of the shapes of the outputs; None
    stands for one, at outputs of one element.

    `retain_graph` (default: the value of `create_graph`): the graph is kept for further passes.
    `create_graph`: the gradients have a history, so that higher derivatives can be computed.
    `allow_unused` (default: the value of `materialize_grads`): the gradient of an input that takes
    no part is None, or zeros with `materialize_grads`, which is for tensors of this worker; else it
    is an error. `mode`: "smart" first asks which calls lead to inputs, and runs nothing else;
    "fast" does not ask, so it also goes back through calls that lead to none.

    Raises `TypeError` for arguments of the wrong kind, `RuntimeError` for unknown contexts, empty
    lists, tensors that do not require grad and unused inputs; and what `backward` raises.

    After `torch.autograd.grad`.

        >>> with autograd.context() as context_id:
        ...     loss = rpc.rpc_sync("worker1", critic, args=(x,)).sum()
        ...     (slope,) = autograd.grad(context_id, loss, x, create_graph=True)
        ...     autograd.backward(context_id, [loss + (slope.norm() - 1) ** 2])
    """
    _check_mode(mode)
    chosen = _as_sequence(inputs, "inputs", (torch.Tensor, RRef))
    ends = _as_sequence(outputs, "outputs", (torch.Tensor,))
    given = grad_outputs
    if given is not None:
        given = _as_sequence(given, "grad_outputs", (torch.Tensor, type(None)))
    flags = flags_of(create_graph if retain_graph is None else retain_graph, create_graph, mode)
    with _outside_inference_mode():
        found = Inputs(chosen)
        here = service().gradients_at(
            context_id, enter_with(ends, given), found.edges, flags, found
        )
    results = found.results(here)
    if materialize_grads:
        results = [
            torch.zeros_like(each) if result is None and isinstance(each, torch.Tensor) else result
            for each, result in zip(chosen, results, strict=True)
        ]
    allows = materialize_grads if allow_unused is None else allow_unused
    for place, result in enumerate(results):
        if result is None and not allows:
            raise RuntimeError(
                f"inputs[{place}] appears to not have been used in the graph of the outputs. Set "
                "allow_unused=True if this is the desired behavior: its gradient is None then"
            )
    return tuple(results)


def _check_mode(mode: str) -> None:
    if mode not in ("smart", "fast"):
        raise ValueError(f"mode is 'smart' or 'fast', not {mode!r}")


def _as_sequence(value: Any, name: str, kinds: tuple[type, ...]) -> Sequence[Any]:
    values = [value] if isinstance(value, kinds) else value
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"grad(): {name} is a tensor or a list of some, not {value!r}")
    if not values:
        raise RuntimeError(f"grad(): {name} cannot be empty")
    for place, each in enumerate(values):
        if not isinstance(each, kinds):
            wanted = " or ".join([kind.__name__ for kind in kinds])
            raise TypeError(f"grad(): {name}[{place}] is a {type(each).__name__}, not {wanted}")
    return values


def _outside_inference_mode() -> AbstractContextManager[object]:
    """Gradients are kept, and added to by later passes outside of that mode."""
    if not torch.is_inference_mode_enabled():
        return contextlib.nullcontext()
    stack = contextlib.ExitStack()
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.no_grad())
    return stack


@opaque
def get_gradients(context_id: int) -> dict[torch.Tensor, torch.Tensor]:
    """The gradients that the context has on this worker: leaf tensor → gradient, keyed by identity.

    Each gradient has its leaf's shape, dtype and device, and a history if a pass created a graph; a
    leaf that took no part has none. The
    dictionary is the caller's own; the gradients are the context's, and no two share memory.
    Raises `RuntimeError` for an unknown context. After `torch.distributed.autograd.get_gradients`.
    """
    return service().find_context(context_id).gradients
