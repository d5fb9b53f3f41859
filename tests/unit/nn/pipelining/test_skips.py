"""Skip connections are names while they travel, and values where they are wanted."""

from __future__ import annotations

import pickle

import pytest
import torch

from lockstitch.nn.pipelining.skips import SkipReference, Stash, enter, leave


def test_a_reference_crosses_as_a_name():
    skip = SkipReference(2, 3, 1, True).bound(lambda _: torch.ones(1))
    other = pickle.loads(pickle.dumps(skip))
    assert (other, hash(other), other.wants_gradient) == (skip, hash(skip), True)
    with pytest.raises(RuntimeError, match="within the forward pass of a stage only"):
        other.to_here()


def test_references_anywhere_in_a_structure_are_bound_and_let_go():
    value = (torch.ones(1), {"a": [SkipReference(0, 0, 0, True), "text"]})
    bound = enter(value, lambda skip: skip.bound(lambda _: torch.zeros(2)))
    assert bound[0] is value[0]
    assert bound[1]["a"][0].to_here().tolist() == [0, 0]
    again = leave(bound, lambda _: pytest.fail("nothing to stash"))
    with pytest.raises(RuntimeError, match="forward pass"):
        again[1]["a"][0].to_here()


def test_a_stash_knows_who_will_send_gradients():
    stash = Stash()
    stash.put(0, 0, torch.ones(1))
    stash.put(0, 1, torch.ones(2))
    stash.put(1, 0, torch.ones(3))
    assert stash.lend(SkipReference(0, 0, 1, True), 3).tolist() == [1, 1]
    stash.lend(SkipReference(0, 0, 1, True), 4)
    stash.lend(SkipReference(0, 0, 0, False), 4)  # nobody wants its gradient
    assert stash.clear(0) == [(1, 4), (1, 3)]
    assert stash
    assert stash.clear(1) == []
    assert not stash
