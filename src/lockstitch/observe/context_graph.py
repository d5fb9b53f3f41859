"""The graph of an autograd context over workers: what was sent, to whom, and what it was made of.

Made of what the workers of a job have told; a value, of which text for Graphviz and pictures are
views. Between two stitches of a worker lies a part of its local graph, which is not shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstitch.observe.context_pictures import Stitch, as_dot, as_svg

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lockstitch.attach.values import ContextReport, WorkerReport
    from lockstitch.observe.grouping import Job


class ContextNotFoundError(LookupError):
    """There is no such autograd context, or it is not clear which one is meant."""


@dataclass(frozen=True, slots=True)
class ContextGraph:
    """An autograd context. `stitches` stand after those that they are made of."""

    context_id: int
    workers: tuple[str, ...]
    stitches: tuple[Stitch, ...]

    def dot(self) -> str:
        """Returns the graph as text for Graphviz: a cluster for each worker, a dashed edge for each
        stitch, and a plain one for each way from a stitch through a worker to the next."""
        return as_dot(self.context_id, self.workers, self.stitches)

    def svg(self) -> str:
        """Returns a picture: a line for each worker, an arrow for each stitch."""
        return as_svg(self.context_id, self.workers, self.stitches)


def graph_of(job: Job, context_id: int | None = None) -> ContextGraph:
    """Returns the graph of a context of a job whose workers have told of their contexts.

    `context_id`: None means the only one there is. Raises `ContextNotFoundError`.
    """
    workers = [worker for process in job.processes for worker in process.workers]
    workers.sort(key=lambda each: each.rank)
    known = sorted({context.id for worker in workers for context in worker.contexts})
    if context_id is None and len(known) == 1:
        context_id = known[0]
    if context_id not in known:
        there = f"there are {', '.join(map(str, known))}" if known else "none is open"
        asked = "say which autograd context" if context_id is None else f"no context {context_id}"
        raise ContextNotFoundError(f"{asked}: in job {job.name} {there}")
    assert context_id is not None
    parts = {
        worker.name: context
        for worker in workers
        for context in worker.contexts
        if context.id == context_id
    }
    stitches = {each.name: each for each in _stitches(parts, workers)}
    taking_part = {name for each in stitches.values() for name in (each.sender, each.receiver)}
    names = [worker.name for worker in workers if worker.name in parts]
    others = sorted(taking_part.difference(names))  # those that did not answer
    return ContextGraph(context_id, (*names, *others), tuple(_in_order(stitches)))


def _stitches(
    parts: Mapping[str, ContextReport], workers: Sequence[WorkerReport]
) -> Iterator[Stitch]:
    names = {worker.rank: worker.name for worker in workers}
    for sender, context in parts.items():
        for sent in context.sent:
            receiver = names.get(sent.to, f"rank {sent.to}")
            yield Stitch(sent.stitch, sender, receiver, sent.tensors, sent.made_of, sent.state)


def _in_order(stitches: Mapping[str, Stitch]) -> list[Stitch]:
    """Each after those that it is made of."""
    placed: dict[str, Stitch] = {}
    waiting = list(stitches.values())[::-1]
    while waiting:
        stitch = waiting[-1]
        before = [
            stitches[name] for name in stitch.made_of if name in stitches and name not in placed
        ]
        if before:
            waiting += before
        else:
            placed.setdefault(waiting.pop().name, stitch)
    return list(placed.values())
