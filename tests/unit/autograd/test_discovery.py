"""Reach, and closing the set of stitches that take part."""

from __future__ import annotations

import torch
from torch.autograd.graph import get_gradient_edge

from lockstitch.autograd.discovery import CHOSEN, Closure, Reach, find_reach
from lockstitch.autograd.graph import Entry
from lockstitch.autograd.stitch import RECEIVE_NODE, stitch_receive
from lockstitch.ids import GlobalId, WorkerId

A, B, C = WorkerId(0, 0), WorkerId(1, 0), WorkerId(2, 0)


def sent_by(worker, number):
    return GlobalId(*worker, number)


def reach_of(**entries):
    """Entry name (roots, or s1, s2 …) → tensors; the receiving worker is A."""
    listed = [
        Entry(
            None if name == "roots" else sent_by(A, int(name[1:])),
            tuple(get_gradient_edge(tensor) for tensor in tensors),
        )
        for name, tensors in entries.items()
    ]
    reach = find_reach(listed, RECEIVE_NODE)
    return {
        "roots" if message is None else f"s{message.counter}": [
            {
                (reach.received[bit][0].counter, reach.received[bit][1])
                for bit in range(len(reach.received))
                if int.from_bytes(mask, "little") >> bit & 1
            }
            for mask in masks
        ]
        for message, masks in reach.sent
    }


def receive(number, count=1):
    return stitch_receive(sent_by(B, number), [torch.ones(2) for _ in range(count)])


def test_reach_is_exact_per_tensor():
    one, other = receive(5, 2)
    (third,) = receive(6)
    x = torch.ones(2, requires_grad=True)
    found = reach_of(roots=[one * x], s1=[other.sin(), third * other], s2=[x * 2])
    assert found == {"roots": [{(5, 0)}], "s1": [{(5, 1)}, {(6, 0), (5, 1)}], "s2": [set()]}


def test_reach_of_a_tensor_that_is_handed_on_untouched():
    one, other = receive(5, 2)
    assert reach_of(s1=[other, one]) == {"s1": [{(5, 1)}, {(5, 0)}]}


def test_reach_of_a_leaf_is_empty():
    assert reach_of(s1=[torch.ones(2, requires_grad=True)]) == {"s1": [set()]}


def test_reach_of_many_receives_crosses_byte_borders():
    tensors = [receive(number)[0] for number in range(20)]
    assert reach_of(s1=[sum(tensors)]) == {"s1": [{(number, 0) for number in range(20)}]}


def test_reach_goes_through_shared_nodes_once_and_deep_graphs():
    (tensor,) = receive(5)
    y = tensor
    for _ in range(3000):
        y = y + y
    assert reach_of(s1=[y]) == {"s1": [{(5, 0)}]}


def reach(received, **sent):
    """Entry name → one set of positions in `received` per tensor."""
    return Reach(
        tuple(received),
        tuple(
            (
                None if name == "roots" else sent_by(WorkerId(int(name[1]), 0), int(name[3:])),
                tuple(sum(1 << bit for bit in tensor).to_bytes(2, "little") for tensor in tensors),
            )
            for name, tensors in sent.items()
        ),
    )


def test_a_chain_is_closed_by_all_answers():
    closure = Closure(A)
    assert not closure.is_closed
    assert closure.missing == {A}
    m = sent_by(B, 1)
    n = sent_by(A, 4)
    assert not closure.add(A, reach([(m, 0)], roots=[{0}], w0_4=[set()], w0_9=[set()]))
    assert closure.missing == {B}
    assert closure.add(B, reach([(n, 0)], w1_1=[{0}]))
    assert closure.parts_of(B) == {m: frozenset({0})}
    assert closure.parts_of(A) == {n: frozenset({0})}
    assert closure.parts_of(C) == {}


def test_answers_may_come_in_any_order():
    m, n = sent_by(B, 1), sent_by(A, 4)
    closure = Closure(A)
    assert not closure.add(B, reach([(n, 0)], w1_1=[{0}]))
    assert closure.add(A, reach([(m, 0)], roots=[{0}], w0_4=[set()]))
    assert closure.parts_of(A) == {n: frozenset({0})}


def test_a_bystander_is_not_waited_for():
    closure = Closure(A)
    assert closure.add(A, reach([], roots=[set()]))
    assert closure.missing == set()


def test_only_the_tensors_that_are_reached_take_part():
    m, n = sent_by(B, 1), sent_by(A, 4)
    closure = Closure(A)
    closure.add(A, reach([(m, 1)], roots=[{0}], w0_4=[set(), set(), set()]))
    closure.add(B, reach([(n, 0), (n, 2)], w1_1=[{0}, {1}]))
    assert closure.parts_of(B) == {m: frozenset({1})}
    assert closure.parts_of(A) == {n: frozenset({2})}


def test_a_cycle_between_workers_is_nothing_special():
    m, n, k = sent_by(B, 1), sent_by(A, 4), sent_by(A, 5)
    closure = Closure(A)
    closure.add(A, reach([(m, 0), (sent_by(B, 2), 0)], roots=[{0}], w0_4=[{1}], w0_5=[set()]))
    assert closure.add(B, reach([(n, 0), (k, 0)], w1_1=[{0}], w1_2=[{1}]))
    assert set(closure.parts_of(A)) == {n, k}
    assert set(closure.parts_of(B)) == {m, sent_by(B, 2)}


def test_a_repeated_answer_changes_nothing():
    m = sent_by(B, 1)
    closure = Closure(A)
    closure.add(A, reach([(m, 0)], roots=[{0}]))
    closure.add(A, reach([], roots=[]))
    assert closure.missing == {B}


def test_reach_tells_below_which_tensors_something_is_chosen():
    (received,) = receive(5)
    x, y = (torch.ones(2, requires_grad=True) for _ in range(2))
    h = received * 2
    chosen = {(get_gradient_edge(each).node, 0) for each in (x, h)}
    entries = [
        Entry(sent_by(A, number), (get_gradient_edge(each),))
        for number, each in enumerate([h * y, x.sin(), y * 3, x])
    ]
    found = find_reach(entries, RECEIVE_NODE, chosen)
    names = [
        {found.received[bit] for bit in range(2) if int.from_bytes(mask, "little") >> bit & 1}
        for _, (mask,) in found.sent
    ]
    assert names == [{CHOSEN, (sent_by(B, 5), 0)}, {CHOSEN}, set(), {CHOSEN}]


def test_what_leads_to_nothing_chosen_is_left_out():
    m, other, n = sent_by(B, 1), sent_by(B, 2), sent_by(A, 4)
    closure = Closure(A)
    closure.add(A, reach([(m, 0), (m, 1), (other, 0)], roots=[{0, 1, 2}], w0_4=[set()]))
    assert closure.add(B, reach([CHOSEN, (n, 0)], w1_1=[{0}, set()], w1_2=[{1}]))
    closure.narrow()
    assert closure.parts_of(B) == {m: frozenset({0})}
    assert closure.received_parts_of(A) == {m: frozenset({0})}
    assert closure.parts_of(A) == closure.received_parts_of(B) == {}


def test_what_leads_to_something_chosen_elsewhere_stays():
    m, n = sent_by(B, 1), sent_by(A, 4)
    closure = Closure(A)
    closure.add(A, reach([(m, 0), CHOSEN], roots=[{0}], w0_4=[{1}]))
    assert closure.add(B, reach([(n, 0)], w1_1=[{0}]))
    closure.narrow()
    assert closure.parts_of(B) == {m: frozenset({0})}
    assert closure.parts_of(A) == closure.received_parts_of(B) == {n: frozenset({0})}
