"""Gradients of several contexts are added up in the first, exactly as one process adds them."""

from __future__ import annotations

import threading

import pytest
import torch

from lockstitch import autograd
from lockstitch.optim.gradients import checked_contexts, gather_gradients
from lockstitch.testing.cluster import LocalCluster


@pytest.fixture
def contexts():
    """Two contexts that are open at once, in threads of their own."""
    with LocalCluster(1) as cluster, cluster[0].active():
        opened: list[int] = []
        is_open, may_close = threading.Barrier(3), threading.Event()

        def hold() -> None:
            with cluster[0].active(), autograd.context() as context_id:
                opened.append(context_id)
                is_open.wait(60)
                may_close.wait(60)

        threads = [threading.Thread(target=hold) for _ in range(2)]
        for thread in threads:
            thread.start()
        is_open.wait(60)
        yield sorted(opened)
        may_close.set()
        for thread in threads:
            thread.join()


def test_they_are_added_up_in_the_first_and_taken_out_of_the_others(contexts) -> None:
    leaf, other, sparse = (torch.rand(3, 2, requires_grad=True) for _ in range(3))
    for factor, context_id in enumerate(contexts, start=1):
        rows = torch.nn.functional.embedding(torch.tensor([1, 1]), sparse, sparse=True)
        roots = [(leaf**2).sum() * factor / 3, other.sum(), rows.sum() * factor]
        autograd.backward(context_id, roots)
    first, second = (autograd.get_gradients(each) for each in contexts)
    expected = first[leaf] + second[leaf]
    gathered = gather_gradients(contexts, [leaf, sparse])
    assert gathered.keys() == {leaf, sparse}
    assert torch.equal(gathered[leaf], expected)
    assert torch.equal(gathered[sparse].to_dense()[1], torch.tensor([6.0, 6.0]))
    assert autograd.get_gradients(contexts[1]).keys() == {other}
    assert torch.equal(gather_gradients(contexts[::-1], [leaf])[leaf], expected)
    assert torch.equal(gather_gradients([contexts[1]], [leaf])[leaf], expected)


def test_the_same_context_twice_counts_once(contexts) -> None:
    leaf = torch.ones(2, requires_grad=True)
    autograd.backward(contexts[0], [leaf.sum()])
    gathered = gather_gradients([contexts[0], contexts[0], -1], [leaf])
    assert torch.equal(gathered[leaf], torch.ones(2))
    assert gather_gradients([-1], [leaf]) == {}


def test_contexts_are_named_by_ids_that_are_known(contexts) -> None:
    assert checked_contexts(contexts[0]) == contexts[:1]
    assert checked_contexts(tuple(contexts)) == contexts
    with pytest.raises(RuntimeError, match="Could not find autograd context with id: 7"):
        checked_contexts([contexts[0], 7])
    for wrong in (["a"], lambda: 1, None):
        with pytest.raises(TypeError, match="named by its id, a number, or several by a list"):
            checked_contexts(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no context"):
        checked_contexts([])
