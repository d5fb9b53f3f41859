"""Fields travel as plain values and come back as what they were."""

from __future__ import annotations

import marshal
from typing import Any

import pytest

from lockstitch.errors import RemoteProtocolError
from lockstitch.ids import GlobalId, WorkerId
from lockstitch.wire.encodings import PICKLE
from lockstitch.wire.layouts import layout_of
from lockstitch.wire.messages import Call, ForkRequest, Leave, Payload, Stitch

FORK = ForkRequest(GlobalId(1, 0, 2), GlobalId(2, 0, 3), 7)
CALL = Call(
    4, 1, b"f", 2.5, Stitch(9, GlobalId(0, 0, 1), (0,), (WorkerId(2, 1),)), Payload(PICKLE, b"", ())
)


def dumped(*values: Any) -> memoryview:
    return memoryview(marshal.dumps(values))


def test_ids_are_exact_tuples_on_the_way_and_ids_again_afterwards() -> None:
    layout = layout_of(ForkRequest)
    values = layout.values(FORK)
    assert [type(value) for value in values] == [tuple, tuple, int]
    loaded = list(layout.load(dumped(*values)))
    layout.restore(loaded)
    assert [type(value) for value in loaded] == [GlobalId, GlobalId, int]
    assert ForkRequest(*loaded) == FORK


def test_a_stitch_comes_back_whole() -> None:
    layout = layout_of(Call)
    *values, encoding, stream, items = layout.values(CALL)
    assert marshal.loads(marshal.dumps(tuple(values))) == tuple(values)
    layout.restore(values)
    assert Call(*values, Payload(encoding, stream, items)) == CALL
    assert isinstance(values[4], Stitch)
    assert isinstance(values[4].workers[0], WorkerId)


def test_a_field_of_a_wrong_form_is_the_peers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="a field of a ForkRequest has a wrong form"):
        layout_of(ForkRequest).restore([(1, 2), (1, 2, 3), 7])


@pytest.mark.parametrize("inline", [dumped(1, 2), dumped(), memoryview(b"\xff"), memoryview(b"")])
def test_fields_that_cannot_be_read_are_the_peers_fault(inline: memoryview) -> None:
    with pytest.raises(RemoteProtocolError, match="a Leave"):
        layout_of(Leave).load(inline)


def test_the_short_way_reads_plain_messages_and_leaves_others_alone() -> None:
    layout = layout_of(ForkRequest)
    loaded = layout.values(FORK)
    assert layout.read(loaded, 0, 0, 8) == FORK
    assert layout.read(loaded, 0, 4, 8) is None, "somebody must refuse the bytes that are left over"
    layout, fields = layout_of(Call), layout_of(Call).values(CALL)[:-3]
    assert layout.read((*fields, PICKLE, b"", ()), 0, 0, 8) == CALL
    assert layout.read((*fields, PICKLE, 70_000, ()), 0, 0, 8) is None, "the stream comes later"


def test_layouts_are_worked_out_once() -> None:
    assert layout_of(Call) is layout_of(Call)
