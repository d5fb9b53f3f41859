"""Components of which a pass needs a part."""

from __future__ import annotations

import torch
from torch.autograd.graph import get_gradient_edge

from lockstitch.autograd.engine import ComponentRun
from lockstitch.autograd.graph import Entry, find_components
from lockstitch.autograd.narrowing import find_ends, narrowed
from lockstitch.autograd.selection import Selection
from lockstitch.autograd.stitch import RECEIVE_NODE, Stitcher, stitch_receive
from lockstitch.ids import GlobalId

PASS = GlobalId(0, 0, 1)


class Sink:
    def __init__(self):
        self.emitted = {}

    def emit(self, receive, gradients):
        self.emitted[receive.message.counter] = gradients


def message(number):
    return GlobalId(1, 0, number)


def leaf():
    return torch.ones(2, requires_grad=True)


def received(number, count):
    """As the interceptor makes them: each of several with a node of its own."""
    items = [torch.ones(2) for _ in range(count)]

    class Context:
        def add_receive(self, *_arguments):
            pass

    Stitcher._begin_graph(Context(), message(number), tuple(range(count)), items)
    return items


def component_of(*roots):
    entry = Entry(None, tuple(get_gradient_edge(root) for root in roots))
    (component,) = find_components([entry], RECEIVE_NODE)
    return component


def run(component, selection, wanted, count):
    narrow = narrowed(component, selection, wanted)
    sink = Sink()
    ends = find_ends(narrow, wanted)
    assert ends is not None
    task = ComponentRun(narrow, selection, True, sink, False, ends)
    task.run({None: tuple(torch.ones(2) for _ in range(count))})
    return sink.emitted, selection.take()


def test_only_what_leads_to_something_wanted_runs():
    x, y, ran = leaf(), leaf(), []
    (single,) = received(5, 1)
    one, other = received(6, 2)
    (unwanted,) = received(7, 1)
    roots = []
    for name, tensor in (
        ("x", x),
        ("y", y),
        ("single", single),
        ("one", one),
        ("other", other),
        ("7", unwanted),
    ):
        root = tensor * 2
        root.register_hook(lambda _, name=name: ran.append(name))
        roots.append(root * 3)
    selection = Selection(PASS, [get_gradient_edge(x)])
    wanted = {message(5): frozenset({0}), message(6): frozenset({1})}
    emitted, found = run(component_of(*roots), selection, wanted, len(roots))
    assert sorted(ran) == ["other", "single", "x"]
    assert found[0].tolist() == [6.0, 6.0]
    assert emitted[5][0].tolist() == [6.0, 6.0]
    assert emitted[6][0] is None
    assert emitted[6][1].tolist() == [6.0, 6.0]
    assert 7 not in emitted


def test_a_received_tensor_may_itself_be_a_root_and_have_hooks():
    (single,) = received(5, 1)
    one, _ = received(6, 2)
    for tensor in (single, one):
        tensor.register_hook(lambda gradient: gradient * 10)
    wanted = {message(5): frozenset({0}), message(6): frozenset({0})}
    emitted, _ = run(component_of(single, one), Selection(PASS, ()), wanted, 2)
    assert emitted[5][0].tolist() == [10.0, 10.0]
    assert emitted[6][0].tolist() == [10.0, 10.0]


def test_complex_tensors_have_nodes_of_their_own_too():
    items = [torch.ones(2, dtype=torch.complex64) for _ in range(2)]

    class Context:
        def add_receive(self, *_arguments):
            pass

    Stitcher._begin_graph(Context(), message(8), (0, 1), items)
    wanted = {message(8): frozenset({1})}
    component = component_of(*[item.abs() for item in items])
    emitted, _ = run(component, Selection(PASS, ()), wanted, 2)
    assert emitted[8][0] is None
    assert emitted[8][1].tolist() == [1.0, 1.0]


def test_nothing_runs_where_nothing_is_wanted():
    x, ran = leaf(), []
    root = x * 2
    root.register_hook(ran.append)
    emitted, found = run(component_of(root), Selection(PASS, ()), {}, 1)
    assert (emitted, found, ran) == ({}, [], [])


def test_a_receive_without_edges_of_its_own_is_told():
    tensors = stitch_receive(message(9), [torch.ones(2), torch.ones(2)])  # no nodes put upon them
    component = component_of(*[each * 2 for each in tensors])
    assert find_ends(narrowed(component, Selection(PASS, ()), None), {message(9): {0}}) is None
