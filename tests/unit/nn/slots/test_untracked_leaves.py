"""Leaves that somebody keeps and nobody will ask about are found in a graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lockstitch.nn.slots.untracked_leaves import UntrackedLeafSearch, check_for_untracked_leaves


def leaf(*shape):
    return torch.ones(*shape, requires_grad=True)


def test_known_leaves_are_none():
    weight, x = leaf(3), leaf(2, 3)
    check_for_untracked_leaves([(weight * x).sum(), weight, torch.ones(2)], [weight, x])


def test_one_that_is_kept_is_found_however_deep():
    weight, kept = leaf(3), leaf(2, 3)
    hidden = (weight * 2).tanh()
    for _ in range(50):
        hidden = hidden * 1.01 + kept.sum()
    with pytest.raises(RuntimeError, match=r"shape \(2, 3\) .* would be lost"):
        check_for_untracked_leaves([weight * 1, hidden], [weight])


def test_an_output_may_be_one_itself():
    kept = leaf(5)
    with pytest.raises(RuntimeError, match=r"shape \(5,\)"):
        check_for_untracked_leaves([kept], [])


def test_one_that_only_the_graph_keeps_is_none():
    weight = leaf(3)
    output = weight * leaf(3) + leaf(1).exp()
    check_for_untracked_leaves([output], [weight])
    output.sum().backward()


class Pass:
    """Passes of a module that depends on `weight`, and on others from some pass on."""

    def __init__(self):
        self.search = UntrackedLeafSearch()
        self.weight, self.x = leaf(3), leaf(2, 3)

    def run(self, *others, depth=3, weight=None):
        self.search.begin_pass()
        output = self.x * (self.weight if weight is None else weight)
        for _ in range(depth):
            output = output.tanh()
        for other in others:
            output = output + other
        self.search.end_pass([output], [self.x], [self.weight], True)


def test_one_that_is_first_reached_in_a_later_pass_is_found():
    passes, kept = Pass(), leaf(3)
    for _ in range(10):
        passes.run()
    with pytest.raises(RuntimeError, match=r"shape \(3,\)"):
        passes.run(kept)


def test_one_that_takes_the_place_of_a_parameter_is_found_in_the_end():
    passes, kept = Pass(), leaf(3)
    for i in range(15):
        passes.run(weight=kept if i >= 10 else None)
    with pytest.raises(RuntimeError, match=r"shape \(3,\)"):
        passes.run(weight=kept)


def test_a_graph_that_has_been_searched_is_not_searched_again(monkeypatch):
    searched = []
    monkeypatch.setattr(
        "lockstitch.nn.slots.untracked_leaves.check_for_untracked_leaves",
        lambda *_: searched.append(1),
    )
    passes = Pass()
    for depth in (3, 5, 3, 3, 3, 5, 5, 3):
        passes.run(depth=depth)
    assert len(searched) == 4  # the 1st, 2nd, 4th and 8th: the forms were seen in the first two


def test_a_search_that_found_one_is_made_again():
    passes, kept = Pass(), leaf(3)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="would be lost"):
            passes.run(kept)


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_a_checkpoint_that_goes_back_by_itself_is_seen(is_reentrant):
    weight, x = nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True)
    search = UntrackedLeafSearch()
    search.begin_pass()
    output = checkpoint(lambda y: y * weight, x * 2, use_reentrant=is_reentrant) + 1
    search.end_pass([output], [x], [weight], True)
    assert search.is_reentrant == is_reentrant
