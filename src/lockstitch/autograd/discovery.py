"""SMART: which stitches take part in a backward pass.

FAST trusts that every recorded send takes part. SMART asks, but only when somebody needs to know:
each worker answers with its *reach*, that is, which tensors received here lie below which tensors
sent from here. The initiator then closes the set of stitches from the roots of the loss: a tensor
takes part if a gradient can come to it. One question and one answer per worker, whatever the depth.

Reach is exact: per tensor, not per message. It is found by one post-order pass that gives every
node a bitmask of what lies below it. Nothing here communicates, locks or runs a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from lockstitch.ids import GlobalId
from lockstitch.torch_internals.autograd import AccumulateGrad, Node

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from lockstitch.autograd.graph import Entry
    from lockstitch.ids import WorkerId

Tensor: TypeAlias = "tuple[GlobalId, int]"
"""One tensor that crossed: the message's stitch, and the position among its stitched tensors."""

CHOSEN: Final[Tensor] = (GlobalId(-1, 0, 0), 0)
"""Stands among received tensors for all those whose gradients a pass that selects has chosen."""

Parts: TypeAlias = "dict[GlobalId, frozenset[int]]"
"""The tensors that take part, by message."""


class Reach(NamedTuple):
    """What lies below the entries of one worker.

    `received` lists the tensors received here. `sent` has, for each entry, one bitmask per tensor
    (little-endian bytes; bit *n* stands for `received[n]`); the entry None is the loss's roots.
    """

    received: tuple[tuple[GlobalId, int], ...]
    sent: tuple[tuple[GlobalId | None, tuple[bytes, ...]], ...]


def find_reach(
    entries: Sequence[Entry], receive_type: type, chosen: Collection[tuple[Node, int]] = ()
) -> Reach:
    """Computes the reach of `entries`. Nodes of exactly `receive_type` are receives. `chosen` are
    the edges of the tensors that a pass that selects has chosen here."""
    bits: dict[Tensor, int] = {}
    masks: dict[Node, int] = {None: 0}

    def mask_of(node: Node, index: int) -> int | None:
        """Returns what lies below the edge (node, index); None while that is not known yet."""
        mask = masks.get(node)
        if mask is None:
            kind = type(node)
            if kind is receive_type:
                mask = 1 << bits.setdefault((node.receive.message, index), len(bits))
            elif kind is AccumulateGrad:
                mask = masks[node] = 0
            else:
                return None
        if chosen and (node, index) in chosen:
            mask |= 1 << bits.setdefault(CHOSEN, len(bits))
        return mask

    def visit(start: Node) -> None:
        waiting = [start]
        while waiting:
            node = waiting[-1]
            below = 0
            for following, index in node.next_functions:
                mask = mask_of(following, index)
                if mask is None:
                    waiting.append(following)
                else:
                    below |= mask
            if waiting[-1] is node:
                masks[waiting.pop()] = below

    def known_mask_of(node: Node, index: int) -> int:
        mask = mask_of(node, index)
        if mask is None:
            visit(node)
            mask = mask_of(node, index)
        assert mask is not None
        return mask

    sent = tuple(
        (
            entry.message,
            tuple(_to_bytes(known_mask_of(edge.node, edge.output_nr)) for edge in entry.edges),
        )
        for entry in entries
    )
    return Reach(tuple(bits), sent)


class Closure:
    """The set of tensors that take part, growing as the workers' answers come in."""

    def __init__(self, initiator: WorkerId) -> None:
        self._initiator = initiator
        self._received: dict[WorkerId, Sequence[Tensor]] = {}
        self._sent: dict[WorkerId, dict[GlobalId | None, list[int]]] = {}
        self._expanded: dict[WorkerId, int] = {}
        self._unanswered: dict[WorkerId, list[Tensor]] = {}
        self._taking_part: dict[GlobalId, set[int]] = {}

    @property
    def missing(self) -> set[WorkerId]:
        """Workers whose reach is needed and has not come."""
        waiting = set(self._unanswered)
        if self._initiator not in self._sent:
            waiting.add(self._initiator)
        return waiting

    @property
    def is_closed(self) -> bool:
        """Whether the set is complete; answers that are still out cannot change it."""
        return not self._unanswered and self._initiator in self._sent

    def add(self, worker: WorkerId, reach: Reach) -> bool:
        """Takes a worker's answer into account; a repeated one changes nothing. Returns
        `is_closed`."""
        if worker in self._sent:
            return self.is_closed
        self._received[worker] = reach.received
        self._sent[worker] = sent = {
            message: [int.from_bytes(mask, "little") for mask in masks]
            for message, masks in reach.sent
        }
        waiting = self._unanswered.pop(worker, [])
        if worker == self._initiator:
            for mask in sent.get(None, []):
                waiting.extend(self._below(worker, mask))
        self._expand(waiting)
        return self.is_closed

    def parts_of(self, worker: WorkerId) -> Parts:
        """The tensors sent by `worker` that take part."""
        return {
            message: frozenset(indices)
            for message, indices in self._taking_part.items()
            if message.worker == worker
        }

    def received_parts_of(self, worker: WorkerId) -> Parts:
        """The tensors received by `worker` that take part."""
        parts: dict[GlobalId, set[int]] = {}
        for message, index in self._received.get(worker, ()):
            if index in self._taking_part.get(message, ()):
                parts.setdefault(message, set()).add(index)
        return {message: frozenset(indices) for message, indices in parts.items()}

    def narrow(self) -> None:
        """Of the closed set, keeps the tensors below which something is chosen."""
        above: dict[Tensor, list[Tensor]] = {}
        leading = []
        for message, indices in self._taking_part.items():
            received = self._received[message.worker]
            masks = self._sent[message.worker].get(message, ())
            for index in indices if masks else ():
                for bit in _set_bits(masks[index]):
                    if received[bit] == CHOSEN:
                        leading.append((message, index))
                    else:
                        above.setdefault(received[bit], []).append((message, index))
        self._taking_part = {}
        while leading:
            message, index = leading.pop()
            indices = self._taking_part.setdefault(message, set())
            if index not in indices:
                indices.add(index)
                leading.extend(above.get((message, index), ()))

    def _expand(self, waiting: list[Tensor]) -> None:
        while waiting:
            tensor = waiting.pop()
            message, index = tensor
            self._taking_part.setdefault(message, set()).add(index)
            sender = message.worker
            if sender not in self._sent:
                self._unanswered.setdefault(sender, []).append(tensor)
                continue
            masks = self._sent[sender].get(message)
            if masks is not None:
                waiting.extend(self._below(sender, masks[index]))

    def _below(self, worker: WorkerId, mask: int) -> Iterator[Tensor]:
        """The tensors received at `worker` that `mask` names and that were not met before."""
        fresh = mask & ~self._expanded.get(worker, 0)
        self._expanded[worker] = self._expanded.get(worker, 0) | mask
        received = self._received[worker]
        return (received[bit] for bit in _set_bits(fresh) if received[bit] != CHOSEN)


def _set_bits(mask: int) -> Iterable[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _to_bytes(mask: int) -> bytes:
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")
