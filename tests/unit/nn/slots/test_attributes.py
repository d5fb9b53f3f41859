"""What refers to a part of the module refers to the replica's; all else is shared."""

from __future__ import annotations

import threading
from functools import partial

from lockstitch.nn.slots.attributes import refer


class Part:
    """Stands for a submodule."""

    def call(self):
        return self


class Holder:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def replica_of(value, part):
    copied = Part()
    return refer(value, {id(part): copied}), copied


def test_containers_methods_and_partials():
    part = Part()
    value = [(part, 1), {"a": {part}}, part.call, partial(max, part, key=part.call)]
    (pair, table, method, function), copied = replica_of(value, part)
    assert pair == (copied, 1)
    assert table == {"a": {copied}}
    assert method() is copied
    assert function.args == (copied,)
    assert function.keywords["key"]() is copied
    assert value[0][0] is part


def test_objects_that_hold_a_part_are_copied_once():
    part = Part()
    holder = Holder(inner=Holder(part=part), lock=threading.Lock())
    holder.itself = holder
    (one, two), copied = replica_of([holder, holder], part)
    assert one is two
    assert one is not holder
    assert one.inner.part is copied
    assert one.lock is holder.lock
    assert holder.inner.part is part


def test_objects_that_hold_none_are_shared():
    holder = Holder(numbers=[1, 2], nested=Holder(table={"a": (1, {2})}))
    same, _ = replica_of(holder, Part())
    assert same is holder


def test_objects_that_are_copied_in_a_way_of_their_own_are_shared():
    class Own(Holder):
        def __reduce__(self):
            raise AssertionError

    part = Part()
    own = Own(part=part)
    assert replica_of(own, part)[0] is own


def test_closures():
    part, number = Part(), 3

    def closed(factor=2, *, shift=1):
        return part, number * factor + shift

    def open_(x):
        return number + x

    closed.note = "kept"
    (new, same), copied = replica_of((closed, open_), part)
    assert new() == (copied, 7)
    assert new.note == "kept"
    assert same is open_
    assert closed() == (part, 7)


def test_a_closure_that_is_not_filled_yet_is_shared():
    def empty():
        return later

    assert replica_of(empty, Part())[0] is empty
    later = 1
    assert empty() == later
