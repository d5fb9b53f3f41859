"""A graph that ends in leaves found before is told from others."""

from __future__ import annotations

import torch
from torch.autograd.graph import get_gradient_edge

from lockstitch.autograd.stitch import stitch_receive
from lockstitch.ids import GlobalId
from lockstitch.nn.pipelining.known_leaves import KnownLeaves


def leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def known(*leaves: torch.Tensor) -> KnownLeaves:
    found = KnownLeaves()
    found.note(map(get_gradient_edge, leaves))
    return found


def are_all(found: KnownLeaves, *outputs: torch.Tensor, receives=()) -> bool:
    return found.are_all([get_gradient_edge(each) for each in outputs], receives)


def test_nothing_is_known_at_first():
    assert not are_all(KnownLeaves(), leaf() * 2)


def test_a_graph_may_end_in_some_of_them():
    one, other = leaf(), leaf()
    found = known(one, other)
    assert are_all(found, one * 2)
    assert are_all(found, torch.stack([one.exp(), other + one]).sum(), other * one.detach())
    assert are_all(found, one)


def test_a_leaf_that_is_new_is_seen_wherever_it_is():
    one, new = leaf(), leaf()
    for output in (new * 2, one + new, (one * new).sum() + one.sum(), new):
        found = known(one)
        assert not are_all(found, one * 3, output)
        found.note([get_gradient_edge(new)])
        assert are_all(found, one * 3, output)


def test_receives_are_ends_if_they_are_ours():
    one = leaf()
    (own,), (others,) = (stitch_receive(GlobalId(0, 0, 0), [torch.ones(3)]) for _ in range(2))
    found = known(one)
    assert are_all(found, one * own, receives=[own.grad_fn])
    assert not are_all(found, one * own * others, receives=[own.grad_fn])


def test_a_hook_that_comes_later_is_seen():
    one = leaf()
    found = known(one)
    node = get_gradient_edge(one).node
    for register in (node.register_hook, node.register_prehook):
        handle = register(lambda *_: None)
        assert not are_all(found, one * 2)
        handle.remove()
        assert are_all(found, one * 2)


def test_leaves_are_listed_once():
    one, other = leaf(), leaf()
    found = known(one)
    found.note(map(get_gradient_edge, (other, one)))
    assert [id(edge.node.variable) for edge in found.edges] == [id(one), id(other)]
