"""Names of `torch.distributed.autograd` that only ported programs and its own tests reach for.

Each is a line over a public operation, or a view of our records in the form of theirs: torch keeps
one node per message, we keep one alias node per tensor, and one per tensor that was received.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstitch.autograd.api import service
from lockstitch.autograd.stitch import SEND_NAME, received_message
from lockstitch.ids import greatest_context_id
from lockstitch.runtime.worker import current_worker
from lockstitch.torch_internals.autograd import OWN_NODES

if TYPE_CHECKING:
    import torch

    from lockstitch.autograd.context import DistAutogradContext as Context
    from lockstitch.autograd.context import Send
    from lockstitch.ids import GlobalId
    from lockstitch.torch_internals.autograd import Node


class NodeView:
    """A node of a graph as torch's has it: without those of ours between it and a receive."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def __eq__(self, other: object) -> bool:
        return self._node is (other._node if isinstance(other, NodeView) else other)

    def __hash__(self) -> int:
        return hash(self._node)

    @property
    def next_functions(self) -> tuple[tuple[NodeView | None, int], ...]:
        return tuple([_torchs(*edge) for edge in self._node.next_functions])


def _torchs(node: Node, position: int) -> tuple[NodeView | None, int]:
    if type(node) in OWN_NODES:
        below = node.next_functions[0]
        if received_message(below[0]) is not None:
            node, position = below
    return None if node is None else NodeView(node), position


class SendView:
    """A send as one node of torch's kind: a name, and the nodes of the tensors that were sent."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def name(self) -> str:
        return SEND_NAME

    @property
    def next_functions(self) -> tuple[tuple[NodeView | None, int], ...]:
        return tuple([_torchs(*alias.next_functions[0]) for alias in self._send.aliases])


class DistAutogradContext:
    """A context with torch's private methods."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def _context_id(self) -> int:
        return self._context.id

    def _send_functions(self) -> dict[GlobalId, SendView]:
        return {send.message: SendView(send) for send in self._context.sends}

    def _recv_functions(self) -> dict[GlobalId, Node]:
        return dict(self._context.receives)

    def _known_worker_ids(self) -> set[int]:
        return {worker.rank for worker in self._context.receivers}

    def _get_gradients(self) -> dict[torch.Tensor, torch.Tensor]:
        return self._context.gradients


def _init(_worker_id: int) -> None:
    """Contexts need no set-up of their own here."""


def _new_context() -> DistAutogradContext:
    return DistAutogradContext(service().new_context())


def _current_context() -> DistAutogradContext:
    return DistAutogradContext(service().current_context())


def _retrieve_context(context_id: int) -> DistAutogradContext:
    return DistAutogradContext(service().find_context(context_id))


def _is_valid_context(context_id: int) -> None:
    service().find_context(context_id)


def _release_context(context_id: int) -> None:
    service().release_context(context_id)


def _get_max_id() -> int:
    return greatest_context_id(current_worker().id.rank)


def _get_debug_info() -> dict[str, str]:
    own = service()
    return {
        "num_current_backward_passes": str(own.running_passes),
        "num_autograd_contexts": str(len(own.contexts)),
    }


def is_available() -> bool:
    """Always; torch's own tells whether it was built with distributed autograd."""
    return True
