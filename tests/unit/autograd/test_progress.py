"""How far a component is."""

from __future__ import annotations

import torch

from lockstitch.autograd.graph import Component, Entry
from lockstitch.autograd.progress import Components, Phase, Progress
from lockstitch.ids import GlobalId
from lockstitch.wire.messages import Gradient, Payload

EDGES = (None, None)


def stitch(number):
    return GlobalId(0, 0, number)


def progress(*names):
    entries = tuple(
        Entry(None if name is None else stitch(name), EDGES, order=name or 0) for name in names
    )
    return Progress(Component(entries, (), (), (), False), set())


def gradient(number, *items, emitted=(), consumed=()):
    return Gradient(
        1,
        stitch(99),
        0,
        False,
        stitch(number),
        tuple(map(stitch, emitted)),
        tuple(map(stitch, consumed)),
        None,
        Payload(0, b"", items),
    )


def test_what_comes_is_settled_and_reported_once():
    one = progress(2, 1)
    one.settle(gradient(2, torch.ones(1), None))
    one.settle(gradient(1, emitted=(7,), consumed=(8,)))
    assert one.arrived[stitch(2)][0].item() == 1.0
    assert one.arrived[stitch(1)] is None
    assert one.take_report() == ((stitch(7),), (stitch(2), stitch(8), stitch(1)))
    assert one.take_report() == ((), ())


def test_what_a_gradient_told_of_itself_cancels():
    one = progress(1)
    one.settle(gradient(1, torch.ones(1), emitted=(1, 2), consumed=(5,)))
    assert one.take_report() == ((stitch(2),), (stitch(5),))


def test_a_run_awaits_what_may_still_come():
    one = progress(None, 3, 2, 1)
    one.settle_roots((torch.ones(1),))
    one.settle(gradient(2))
    assert [(entry.message.counter, indices) for entry, indices in one.awaited(None)] == [
        (3, [0, 1]),
        (1, [0, 1]),
    ]
    parts = {stitch(1): frozenset({1})}
    assert [(entry.message.counter, indices) for entry, indices in one.awaited(parts)] == [(1, [1])]


def test_only_what_has_begun_misses_something():
    one = progress(2, 1)
    assert one.missing() == []
    one.settle(gradient(2))
    assert one.missing() == [stitch(1)]
    one.phase = Phase.DONE
    assert one.missing() == []


def test_a_run_that_waits_is_not_busy_until_its_gradient_is_there():
    one = progress(2, 1)
    assert not one.is_busy
    one.phase = Phase.RUNNING
    assert one.is_busy
    one.waits_for = one.component.entries[1]
    assert not one.is_busy
    one.settle(gradient(1))
    assert one.is_busy


def components(*described):
    """Each of entries by their numbers, and a receive."""
    return Components(
        [
            Component(tuple(Entry(stitch(n), EDGES, order=n) for n in names), (), (), (at,), False)
            for names, at in described
        ],
        set(),
    )


def test_components_that_will_have_to_wait_are_joined():
    known = components(((6, 5), "a"), ((4, 3), "b"), ((2,), "c"), ((1, 0), "d"))
    first, second, single, begun = known
    begun.settle(gradient(1, torch.ones(1)))
    known.join_to(first, {stitch(n): frozenset({0}) for n in range(7)}, False)
    assert list(known) == [first, single, begun]
    assert known.get(stitch(3)) is first
    assert [each.message.counter for each in first.component.entries] == [6, 5, 4, 3]
    assert first.component.receives == ("a", "b")
    assert second.phase is Phase.DONE


def test_what_is_not_known_to_take_part_is_not_joined():
    pairs = [
        Component(
            tuple(Entry(stitch(n), EDGES, order=n) for n in names), (), (), ("receive",), False
        )
        for names in ((4, 3), (2, 1))
    ]
    known = Components(pairs, set())
    first, second = known
    known.join_to(first, None, False)
    known.join_to(first, {stitch(n): frozenset({0}) for n in (4, 3, 2)}, False)
    assert list(known) == [first, second]
    known.join_to(first, None, True)
    assert list(known) == [first]
