"""A slot's part of the batch on the autograd graph: two nodes that are one seam.

    forward                              backward, which takes later nodes first
    [1] Begin posts the slot's part      [5] Begin waits for the gradients
    [2] slot 0 runs                      [4] slot 0 goes back
    [3] End waits for the outputs        [3] End posts the outputs' gradients

So the slots work at the same time in both directions, on torch's own engine, and `.grad`, hooks,
`retain_graph`, accumulation and several forward passes at once are what they always are. The token
that Begin returns and End takes ties the two together.

With `create_graph=True` the slot's gradients have to be differentiable here. Then they are outputs
of the slot themselves, which depend on what the outputs before depended on, and on the gradients of
these: one more call, on the slot's graph of the first, with two nodes of its own, and so on.
Nothing is computed again, so what counts is the module as it was in the forward pass.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

import torch

from lockstitch.modes import Modes
from lockstitch.nn.slots.base import BackwardRequest, Request, VjpOf
from lockstitch.nn.slots.lifting import fill, lift
from lockstitch.torch_internals.autograd import keeps_graph as keeps_graph_now
from lockstitch.torch_internals.tensors import versions_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from lockstitch.nn.slots.base import Gradients, Outcome, Slot

_AGAIN = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)
_MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace "
    "operation: a parameter of shape {shape} is at version {now}; expected version {then} instead. "
    "{slot} computes its gradients with the parameter's memory as it is now; call backward before "
    "parameters are changed."
)


class PassContext(Protocol):
    """The state that passes of several slots share; a `ReplicaPool` is one."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while a slot is asked, which is not thread-safe."""
        ...

    in_flight: dict[int, Slot]
    """Those of which the graph may still be gone back through."""
    fills_unused: bool
    syncs_gradients: bool

    def new_number(self) -> int:
        """Returns the number for a pass."""
        ...

    def limit_threads_until_end_of_backward(self) -> None:
        """The caller's thread is to leave processors to the slots."""
        ...

    def note_kept_gradients(self, slot: Slot, leaves: Sequence[torch.Tensor]) -> None:
        """The slot keeps gradients of these until they are asked for."""
        ...


class Call:
    """One forward pass of one slot, from its request until nobody can go back through it."""

    def __init__(
        self,
        pool: PassContext,
        slot: Slot,
        request: Request,
        tensors: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor],
    ) -> None:
        self.pool = pool
        self.slot = slot
        self.number = request.number
        self._request: Request | None = request
        self.inputs = [t for t, w in zip(tensors, request.wants_gradient, strict=True) if w]
        self.leaves = leaves
        self.written: Sequence[int] = ()
        self._token: torch.Tensor | None = None
        self._outcome: Outcome | None = None
        self._requires_grad: Sequence[bool] = ()
        """Which of the outputs take a gradient."""
        self._versions: list[int] = []
        self._is_spent = False
        self._may_keep = not pool.syncs_gradients
        self._fills_unused = pool.fills_unused
        self._vjp: Call | None = None
        pool.in_flight[self.number] = slot

    def __del__(self) -> None:
        self.slot.release(self.number)
        self.pool.in_flight.pop(self.number, None)

    def begin(self, *, builds_graph: bool) -> None:
        """Begins the pass: step [1] of the module's drawing, as a node of the graph where one is
        built."""
        if builds_graph and (self.inputs or self.leaves):
            self._token = Begin.apply(self, *self.inputs, *self.leaves)  # type: ignore[no-untyped-call]
        else:
            self.start()

    def start(self) -> None:
        """Posts the forward pass."""
        request, self._request = self._request, None
        assert request is not None
        self.slot.start(request)

    def end(self) -> Any:
        """Ends the pass, step [3]; returns what the module returned in the slot."""
        outcome = self.slot.finish(self.number)
        self.written = outcome.written
        token, self._token = self._token, None
        tensors: Sequence[torch.Tensor] = outcome.tensors
        if token is not None and any(outcome.requires_grad):
            self._outcome = outcome
            # After slot 0, whose module may itself have written to its parameters.
            self._versions = versions_of(self.leaves)
            tensors = End.apply(self, token)  # type: ignore[no-untyped-call]
        return fill(outcome.skeleton, tensors)

    def outputs(self, context: Any) -> tuple[torch.Tensor, ...]:
        """Returns the outputs for `End`, those marked that take no gradient."""
        outcome, self._outcome = self._outcome, None
        assert outcome is not None
        self._requires_grad = outcome.requires_grad
        if not all(outcome.requires_grad):
            pairs = zip(outcome.tensors, outcome.requires_grad, strict=True)
            context.mark_non_differentiable(*(tensor for tensor, requires in pairs if not requires))
        return tuple(outcome.tensors)

    def post_gradients(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Posts the gradients of the outputs: step [3] of the backward pass."""
        if self._is_spent:
            raise RuntimeError(_AGAIN)
        for leaf, then, now in zip(
            self.leaves, self._versions, versions_of(self.leaves), strict=True
        ):
            if now != then:
                shape = tuple(leaf.shape)
                raise RuntimeError(
                    _MODIFIED.format(shape=shape, now=now, then=then, slot=self.slot.name)
                )
        keeps_graph = keeps_graph_now()
        self._is_spent = not keeps_graph
        pairs = zip(gradients, self._requires_grad, strict=True)
        wanted = [gradient for gradient, requires in pairs if requires]
        if not self.slot.is_thread_safe:
            self.pool.limit_threads_until_end_of_backward()
        if torch.is_grad_enabled():
            self._post_vjp(wanted, VjpOf(self.number, keeps_graph))
            return
        number, keeps_gradients = self.number, self._may_keep and not self.pool.syncs_gradients
        with self._alone():
            self.slot.start_backward(
                BackwardRequest(number, wanted, keeps_graph, keeps_gradients=keeps_gradients)
            )

    def await_gradients(self) -> tuple[torch.Tensor | None, ...]:
        """Waits for the gradients of the inputs and the leaves: step [5]."""
        if self._vjp is not None:
            return self._await_vjp()
        with self._alone():
            found: Gradients = self.slot.finish_backward(self.number)
        if self._is_spent:
            self.inputs = []
        parameters: Sequence[torch.Tensor | None] = found.leaves
        if not parameters and self.leaves:
            self.pool.note_kept_gradients(self.slot, self.leaves)
            parameters = [None] * len(self.leaves)
        elif self._fills_unused:
            parameters = [
                torch.zeros_like(leaf) if gradient is None else gradient
                for gradient, leaf in zip(parameters, self.leaves, strict=True)
            ]
        return (*found.inputs, *parameters)

    def _alone(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.slot.is_thread_safe else self.pool.lock

    def _post_vjp(self, gradients: Sequence[torch.Tensor | None], vjp_of: VjpOf) -> None:
        """Begins the call whose outputs are this one's gradients: its step [1]."""
        # What the engine does with those that nothing depends on is the plain module's from here.
        self._fills_unused = False
        skeleton, tensors = lift((tuple(gradients), {}))
        request = Request(
            self.pool.new_number(),
            skeleton,
            [tensor.data for tensor in tensors],
            [tensor.requires_grad for tensor in tensors],
            Modes.of_this_thread(),
            torch.get_default_dtype(),
            seed=0,
            vjp_of=vjp_of,
        )
        self._vjp = vjp = Call(self.pool, self.slot, request, tensors, self.leaves)
        vjp.inputs = [*self.inputs, *vjp.inputs]
        vjp._fills_unused = False
        with self._alone():
            vjp.begin(builds_graph=True)

    def _await_vjp(self) -> tuple[torch.Tensor | None, ...]:
        """Ends the call of `_post_vjp`: its step [3]."""
        vjp, self._vjp = self._vjp, None
        assert vjp is not None
        with self._alone():
            found = vjp.end()
        sources = [*self.inputs, *self.leaves]
        return tuple(
            [
                gradient if gradient is None else gradient.to(source.device)
                for gradient, source in zip(found, sources, strict=True)
            ]
        )


class Begin(torch.autograd.Function):
    """The node of step [1] and, backward, of step [5]. It takes all that the slot's outputs may
    depend on."""

    @staticmethod
    def forward(ctx: Any, call: Call, *_: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.call = call
        call.start()
        # Wherever tensors are by default: the engine is to come back to it on the caller's thread.
        return torch.empty((), device="cpu")

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        return (None, *ctx.call.await_gradients())


class End(torch.autograd.Function):
    """The node of step [3], in both directions."""

    @staticmethod
    def forward(ctx: Any, call: Call, token: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.call = call
        ctx.token = token.detach()
        return call.outputs(ctx)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        ctx.call.post_gradients(gradients)
        return None, ctx.token
