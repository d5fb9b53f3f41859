"""Sewing: the two halves of a stitch, and the interceptor that puts them on messages.

    worker A                                              worker B
    ───────────────                                       ───────────────────
    t = h(x)                                              RecvRpcBackward ◄─ y = g(t')
    └─ alias(t)   = SendRpcBackward   ── t ──► t' ──      └─ anchor

A *send* is a private alias of each tensor that leaves: its node is where the gradient will enter,
and it stands below nothing else, so nobody else ever runs it. A *receive* is a node above which the
received tensors' graph grows; run by a backward pass, it hands their gradients to that pass, which
sends them back to A. Where it has several tensors, each gets a node of its own above it: the engine
calls the hooks of all outputs of a node that runs, also of those for which no gradient has come.
Where no gradient is wanted, nothing is recorded and nothing costs anything.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.autograd.graph import GradientEdge

from lockstitch.attach.recorder import RECORDER
from lockstitch.autograd.context import CURRENT, current_context, set_current_context
from lockstitch.autograd.observing import note_stitch
from lockstitch.autograd.outside import OutsideTensors
from lockstitch.devices.kinds import is_on_host
from lockstitch.modes import plain_modes
from lockstitch.torch_internals.autograd import give_own_node, node_type_of
from lockstitch.torch_internals.owners import is_view
from lockstitch.wire.messages import Stitch
from lockstitch.wire.tensors import refuse_transformed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lockstitch.autograd.context import DistAutogradContext
    from lockstitch.autograd.graph import Gradients
    from lockstitch.ids import GlobalId, WorkerId
    from lockstitch.torch_internals.autograd import Node

SEND_NAME = "torch::distributed::autograd::SendRpcBackward"
RECV_NAME = "torch::distributed::autograd::RecvRpcBackward"


class GradientSink(Protocol):
    """The run of a backward pass, to which a receive hands its gradients."""

    def emit(self, receive: Receive, gradients: Gradients) -> None:
        """Called once per run, on the engine's thread; None stands for a missing gradient."""
        ...


class Receive:
    """What a receive node knows: the stitch it belongs to, and the run that it is part of now."""

    __slots__ = ("message", "sink")

    def __init__(self, message: GlobalId) -> None:
        self.message = message
        self.sink: GradientSink | None = None


class _Nowhere:
    """The sink of receives whose gradients nobody wants."""

    def emit(self, receive: Receive, gradients: Gradients) -> None:
        """Drops them."""


_NOWHERE = _Nowhere()


class arriving_at:  # noqa: N801 - used as a function; a generator would take twice the time
    """A context manager within which a run of the engine hands what comes to these receives to
    `sink`, and drops what comes to those that are unwanted."""

    __slots__ = ("_nodes", "_sink", "_unwanted")

    def __init__(
        self, sink: GradientSink, nodes: Sequence[Node], unwanted: Sequence[Node] = ()
    ) -> None:
        self._sink = sink
        self._nodes = nodes
        self._unwanted = unwanted

    def __enter__(self) -> None:
        for node in self._nodes:
            node.receive.sink = self._sink
        for node in self._unwanted:
            node.receive.sink = _NOWHERE

    def __exit__(self, *_error: object) -> None:
        for node in self._nodes:
            node.receive.sink = None
        for node in self._unwanted:
            node.receive.sink = None


class RecvRpc(torch.autograd.Function):
    """The receiving half. Torch names its node after the class; see below."""

    @staticmethod
    def forward(
        ctx: Any, _anchor: torch.Tensor, receive: Receive, tensors: list[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """The anchor makes the engine count the node as needed; `tensors` come in a list, so that
        torch takes them for fresh outputs and not for views, and in-place writes work."""
        ctx.receive = receive
        ctx.set_materialize_grads(False)
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, None, None]:
        sink = ctx.receive.sink
        if sink is None:
            raise RuntimeError(
                "a local backward() has reached a tensor that was received over RPC; use "
                "lockstitch.autograd.backward(context_id, roots), which goes on at its sender"
            )
        sink.emit(ctx.receive, gradients)
        return None, None, None


RECEIVE_NODE: type = node_type_of(RecvRpc)
"""What the receiving half of a stitch is, in the graph."""
RECEIVE_NODE.__name__ = RECV_NAME
# Torch's own looks first which functions the class has, whenever a node runs.
RECEIVE_NODE.apply = RecvRpc.backward  # type: ignore[attr-defined]

with plain_modes(), torch.enable_grad():  # this may be imported in any mode
    _ANCHOR = torch.zeros(0, requires_grad=True)
    ANCHOR = GradientEdge(torch.ops.aten.alias(_ANCHOR).grad_fn.next_functions[0][0], 0)
"""The edge below every receive: with it among the engine's inputs, receives run."""


def received_message(node: Node) -> GlobalId | None:
    """The stitch whose receiving half `node` is; None for other nodes."""
    if type(node) is not RECEIVE_NODE:
        return None
    receive: Receive = node.receive  # type: ignore[attr-defined]
    return receive.message


class _Identity(torch.autograd.Function):
    """The alias of tensors that `aten::alias` does not take (sparse and other layouts)."""

    @staticmethod
    def forward(_ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def stitch_send(tensors: Sequence[torch.Tensor]) -> tuple[Node, ...]:
    """The sending half: an alias node for each tensor. (Not `view_as`: it fails on sparse
    gradients.)"""
    alias = torch.ops.aten.alias
    aliases = [
        alias(tensor) if tensor.layout is torch.strided else _odd_alias(tensor)
        for tensor in tensors
    ]
    return tuple(each.grad_fn for each in aliases)


def _identity_of(tensor: torch.Tensor) -> torch.Tensor:
    alias: torch.Tensor = _apply(_Identity, tensor)
    return alias


def stitch_receive(message: GlobalId, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The receiving half: `tensors`, now with a graph that begins at `message`."""
    fresh = [
        tensor.data if tensor.requires_grad or is_view(tensor) else tensor for tensor in tensors
    ]
    received: tuple[torch.Tensor, ...] = _apply(RecvRpc, _ANCHOR, Receive(message), fresh)
    return received


def _apply(function: type[torch.autograd.Function], *arguments: object) -> Any:
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


def _outlives_its_tensors(make: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Returns whether the node of what `make` returns can be asked when no tensor holds it any
    more."""
    with plain_modes(), torch.enable_grad():  # this may be imported in any mode
        node: Node = make(torch.zeros(1, requires_grad=True)).grad_fn
    try:
        return len(node.next_functions) == 1
    except RuntimeError:
        return False


# Up to torch 2.12 the node of a Function lives by its tensors only, which we do not keep. There the
# alias is a copy, which is gone at once and leaves a node that stays.
_odd_alias = _identity_of if _outlives_its_tensors(_identity_of) else torch.clone


class Stitcher:
    """The interceptor of one worker; see `runtime.interceptor`."""

    def __init__(
        self,
        worker: WorkerId,
        next_message: Callable[[], GlobalId],
        find_context: Callable[[int], DistAutogradContext | None],
        home: object,
    ) -> None:
        self._worker = worker
        self._next_message = next_message
        self._find_context = find_context
        self._home = home
        self.outside = OutsideTensors()
        self.is_active: Callable[[], object] = CURRENT.get
        """Whether the current thread is inside a context, be it another worker's."""

    def is_recording(self) -> bool:
        """Returns whether `outgoing` would record tensors that require grad."""
        context = current_context(self._home)
        return context is not None and not context.is_released and torch.is_grad_enabled()

    def outgoing(
        self, to: WorkerId, items: Sequence[torch.Tensor | memoryview | None]
    ) -> Stitch | None:
        """Records the send of those items that require grad; None outside a context."""
        context = current_context(self._home)
        if context is None or context.is_released:
            return None
        if not items or not torch.is_grad_enabled():
            return Stitch(context.id, None, (), context.involve(to, self._worker))
        return self.sew(context, to, items)

    def sew(
        self,
        context: DistAutogradContext,
        to: WorkerId,
        items: Sequence[torch.Tensor | memoryview | None],
    ) -> Stitch:
        """Records the send of those items that require grad in `context`. Gradients are sent so by
        a backward pass that creates a graph: the next pass follows them to where they came from."""
        message = None
        indices = tuple(
            index
            for index, item in enumerate(items)
            if isinstance(item, torch.Tensor) and item.requires_grad
        )
        if indices:
            begun = RECORDER.begin()
            message = self._next_message()
            tensors: Any = [items[index] for index in indices]
            for tensor in tensors:
                refuse_transformed(tensor)
            devices = None
            if not all(map(is_on_host, tensors)):
                devices = tuple([tensor.device for tensor in tensors])
            context.add_send(message, to, stitch_send(tensors), devices)
            if begun:
                note_stitch(begun, message, tensors)
        return Stitch(context.id, message, indices, context.involve(to, self._worker))

    def incoming(
        self,
        sender: WorkerId,
        stitch: Stitch,
        items: list[torch.Tensor | memoryview | None],
        *,
        records: bool = True,
    ) -> None:
        """Lets the graph of the received tensors begin here; makes the context if it is new."""
        context = self._find_context(stitch.context)
        if context is None:
            return
        context.learn(sender, stitch.workers, self._worker)
        if stitch.message is None or not records:
            return
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            with torch.inference_mode(False):  # a thread that was to read it, or for another one
                self._begin_graph(context, stitch.message, stitch.tensors, items)
        else:
            self._begin_graph(context, stitch.message, stitch.tensors, items)

    def unstitched(self, tensor: torch.Tensor, origin: str) -> None:
        """Notes a tensor that wants a gradient which nobody will ask for."""
        self.outside.note(tensor, origin)

    @staticmethod
    def _begin_graph(
        context: DistAutogradContext,
        message: GlobalId,
        places: tuple[int, ...],
        items: list[torch.Tensor | memoryview | None],
    ) -> None:
        received = stitch_receive(
            message,
            [items[index] for index in places],  # type: ignore[misc]
        )
        context.add_receive(message, received[0].grad_fn)
        for index, tensor in zip(places, received, strict=True):
            if len(received) > 1:
                give_own_node(tensor)
            items[index] = tensor

    @contextlib.contextmanager
    def scope(self, stitch: Stitch) -> Iterator[None]:
        """Runs the code within under the message's context, or under none if it is released."""
        before = set_current_context(self._find_context(stitch.context))
        try:
            yield
        finally:
            set_current_context(before)
