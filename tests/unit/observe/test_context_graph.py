"""The graph of a context is put together from what each worker has told of its part."""

from __future__ import annotations

import pytest

from lockstitch.attach.values import ContextReport, SentTensors, WorkerReport
from lockstitch.observe.context_graph import ContextGraph, ContextNotFoundError, graph_of
from lockstitch.observe.context_pictures import Stitch
from tests.unit.attach.cards import process
from tests.unit.observe.jobs import job

PARTS = {
    # worker 0 asks worker 1, which asks worker 2; both answer.
    0: (SentTensors("0.0", 1, ("float32 3",), (), "arrived"),),
    1: (
        SentTensors("1.0", 2, ("float32 3",), ("0.0",), "arrived"),
        SentTensors("1.1", 0, ("float32 3",), ("2.0", "0.0"), "arrived"),
    ),
    2: (SentTensors("2.0", 1, ("float32 3", "int64 scalar"), ("1.0",), "awaited"),),
}


def told(*contexts: int, silent: tuple[int, ...] = ()) -> ContextGraph:
    """The graph of context 7, where the workers have these contexts."""
    processes = [
        process(
            10 + rank,
            workers=(
                WorkerReport(
                    f"worker{rank}",
                    rank,
                    contexts=tuple(
                        ContextReport(each, sent if each == 7 else ()) for each in contexts
                    ),
                ),
            ),
            rank=str(rank),
        )
        for rank, sent in PARTS.items()
        if rank not in silent
    ]
    return graph_of(job(*processes), 7 if len(contexts) > 1 else None)


def test_each_stitch_stands_after_what_it_is_made_of() -> None:
    graph = told(7)
    assert graph.context_id == 7
    assert graph.workers == ("worker0", "worker1", "worker2")
    assert [each.name for each in graph.stitches] == ["0.0", "1.0", "2.0", "1.1"]
    assert graph.stitches[2] == Stitch(
        "2.0", "worker2", "worker1", ("float32 3", "int64 scalar"), ("1.0",), "awaited"
    )


def test_a_worker_that_does_not_answer_is_there_by_its_rank() -> None:
    graph = told(7, silent=(2,))
    assert graph.workers == ("worker0", "worker1", "rank 2")
    assert [each.name for each in graph.stitches] == ["0.0", "1.0", "1.1"]


def test_of_several_contexts_one_must_be_named() -> None:
    assert told(3, 7).context_id == 7
    none, several = job(process(10)), [ContextReport(each, ()) for each in (3, 7)]
    two = job(process(10, workers=(WorkerReport("worker0", 0, contexts=tuple(several)),)))
    with pytest.raises(ContextNotFoundError, match="say which .* job train there are 3, 7"):
        graph_of(two)
    with pytest.raises(ContextNotFoundError, match="no context 5: in job train there are 3, 7"):
        graph_of(two, 5)
    with pytest.raises(ContextNotFoundError, match="in job train none is open"):
        graph_of(none)
