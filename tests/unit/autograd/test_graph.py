"""Which entries belong together."""

from __future__ import annotations

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from lockstitch.autograd.graph import Entry, find_components, interior_nodes, join
from lockstitch.autograd.stitch import RECEIVE_NODE, stitch_receive
from lockstitch.ids import GlobalId


def message(number):
    return GlobalId(0, 0, number)


def entry(number, *tensors):
    name = None if number is None else message(number)
    return Entry(name, tuple(get_gradient_edge(tensor) for tensor in tensors))


def received(number):
    (tensor,) = stitch_receive(message(number), [torch.ones(2)])
    return tensor


def leaf():
    return torch.ones(2, requires_grad=True)


def names(component):
    return [None if each.message is None else each.message.counter for each in component.entries]


def find(*entries):
    return find_components(list(entries), RECEIVE_NODE)


def leaves_of(component):
    return [edge.node.variable for edge in component.leaves]


def test_entries_that_reach_nothing_in_common_stay_apart():
    components = find(entry(2, leaf() * 2), entry(1, leaf() * 3))
    assert [names(each) for each in components] == [[2], [1]]


def test_entries_that_reach_a_common_node_are_one_component():
    h = leaf() * 2
    components = find(entry(3, h * 3), entry(2, leaf() * 2), entry(1, h * 4))
    assert [names(each) for each in components] == [[3, 1], [2]]


def test_a_later_entry_can_unite_two_earlier_ones():
    h, k = leaf() * 2, leaf() * 2
    components = find(entry(3, h * 3), entry(2, k * 3), entry(1, h + k))
    assert [names(each) for each in components] == [[3, 2, 1]]


def test_a_shared_leaf_does_not_unite():
    x = leaf()
    components = find(entry(2, x * 2), entry(1, x * 3))
    assert [names(each) for each in components] == [[2], [1]]
    assert [leaves_of(each)[0] is x for each in components] == [True, True]


def test_a_shared_leaf_with_a_hook_unites():
    x = leaf()
    x.register_hook(lambda gradient: gradient)
    assert [names(each) for each in find(entry(2, x * 2), entry(1, x * 3))] == [[2, 1]]


def test_a_shared_leaf_with_a_hook_on_its_node_unites_and_is_marked():
    x, other = leaf(), leaf()
    y = x * other
    y.grad_fn.next_functions[0][0].register_hook(lambda inputs, outputs: None)
    (component,) = find(entry(2, y), entry(1, x * 3))
    assert names(component) == [2, 1]
    assert [leaves_of(component)[index] is x for index in component.hooked] == [True]


def test_a_hook_that_was_removed_does_not_unite():
    x = leaf()
    x.register_hook(lambda gradient: gradient).remove()
    assert len(find(entry(2, x * 2), entry(1, x * 3))) == 2


def test_a_tensor_of_a_message_unites_like_the_message():
    h, k = leaf() * 2, leaf() * 2
    components = find(entry(3, h, k), entry(2, h * 2), entry(1, k * 2))
    assert [names(each) for each in components] == [[3, 2, 1]]


def test_receives_are_found_and_nothing_below_them():
    r = received(7)
    (component,) = find(entry(1, r * 2 + leaf()))
    assert [node.receive.message.counter for node in component.receives] == [7]
    assert len(component.leaves) == 1


def test_a_shared_receive_unites():
    r = received(7)
    (component,) = find(entry(2, r * 2), entry(1, r * 3))
    assert names(component) == [2, 1]
    assert len(component.receives) == 1


def test_each_leaf_is_listed_once():
    x = leaf()
    (component,) = find(entry(1, x * x + x))
    assert len(component.leaves) == 1


def test_a_component_is_covered_when_every_entry_starts_within_the_first():
    x = leaf()
    h = x * 2
    y = received(7) * h.sin()
    assert find(entry(None, y), entry(1, h))[0].is_covered
    k = h * 3  # nothing of the first entry reaches k
    assert not find(entry(None, y), entry(1, k))[0].is_covered


def test_a_leaf_without_hooks_never_spoils_the_cover():
    h = leaf() * 2
    (component,) = find(entry(None, h.sin()), entry(1, h, leaf()))
    assert component.is_covered


def test_roots_come_first_whatever_their_message():
    h = leaf() * 2
    (component,) = find(entry(None, h * 2), entry(2, h), entry(1, h))
    assert names(component) == [None, 2, 1]


def test_interior_nodes_are_all_nodes_but_leaves():
    x = leaf()
    h = x * 2
    y = h.sin() + h.cos()
    found = list(interior_nodes([entry(None, y), entry(1, h)]))
    assert {node.name() for node in found} == {
        "AddBackward0",
        "SinBackward0",
        "CosBackward0",
        "MulBackward0",
    }
    assert len(found) == 4


def test_a_deep_graph_needs_no_recursion():
    y = leaf()
    for _ in range(5000):
        y = y * 1.0
    (component,) = find(entry(None, y))
    assert len(component.leaves) == 1


def test_a_lone_entry_walks_graphs_of_many_paths_but_once():
    y, x = received(4), leaf()
    for _ in range(60):  # 2 ** 60 paths, by branches and chains of different lengths
        aside = y
        for _ in range(20):
            aside = aside.neg()
        y = aside + y.neg() * x
    (component,) = find(entry(1, y))
    assert [each.receive.message for each in component.receives] == [message(4)]
    assert [each is x for each in leaves_of(component)] == [True]


def chain(tensor, length):
    for _ in range(length):
        tensor = tensor * 2
    return tensor


def test_the_size_of_a_component_is_about_its_number_of_nodes():
    h = chain(leaf(), 2_500)
    (alone,) = find(entry(1, h))
    (united,) = find(entry(2, h + 1), entry(1, h))
    (branching,) = find(entry(1, chain(h + h.sin(), 100)))
    assert abs(alone.size - 2_500) < 20
    assert abs(united.size - 2_501) < 20
    assert 2_600 <= branching.size < 3_700  # what was walked twice may count twice


def test_a_chain_that_is_entered_all_along_is_not_walked_to_its_end_each_time():
    kept, h = [], leaf() * 1
    for _ in range(3_000):
        h = h * 2
        kept.append(h.sin())
    seen = 0

    class Counted:
        """A node of the real graph that counts how often somebody goes on from it."""

        def __init__(self, node):
            self.node = node

        def __hash__(self):
            return hash(self.node)

        def __eq__(self, other):
            return self.node is other.node

        @property
        def next_functions(self):
            nonlocal seen
            seen += 1
            if type(self.node).__name__ == "AccumulateGrad":
                return ()
            return tuple((each and Counted(each), at) for each, at in self.node.next_functions)

    edges = tuple(GradientEdge(Counted(each.grad_fn), 0) for each in kept)
    find_components([Entry(message(1), edges)], RECEIVE_NODE)
    assert 6_000 <= seen < 6_000 * 12


def test_joined_components_have_each_leaf_once_and_their_newest_entry_first():
    shared, hooked = leaf(), leaf()
    node = get_gradient_edge(hooked).node  # lives as long as it is held
    node.register_prehook(lambda gradients: None)
    first = received(1) * shared
    second = received(2) * shared * hooked
    apart = find(entry(4, first)._replace(order=4), entry(3, second)._replace(order=3))
    joined = join(apart[::-1])
    assert [each.message.counter for each in joined.entries] == [4, 3]
    assert len(joined.leaves) == 2
    assert [joined.leaves[place].node for place in joined.hooked] == [node]
    assert len(joined.receives) == 2
    assert joined.size == apart[0].size + apart[1].size
