"""Fields are what the annotations of their message say; true ones of every message pass."""

from __future__ import annotations

import marshal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fuzz import corpus
from lockstitch.errors import RemoteProtocolError
from lockstitch.ids import GlobalId, WorkerId
from lockstitch.link.checking import check_of
from lockstitch.wire.decoding import FrameDecoder
from lockstitch.wire.frames import HEADER
from lockstitch.wire.layouts import strict_layout_of
from lockstitch.wire.messages import KINDS, MembershipNotice, MembershipQuery, Stitch

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of sparse tensors


@pytest.mark.parametrize(
    ("annotation", "fitting", "unfitting"),
    [
        (int, [0, -1, 1 << 70], [True, 1.0, "1", None, 1 << 81, (1,)]),
        (bool, [True, False], [0, 1, None]),
        (float | None, [1.5, 2, None], ["1", True, (1.0,)]),
        (str, ["", "x"], [b"x", None, 1]),
        (bytes | None, [b"", None], ["", bytearray(1)]),
        (WorkerId, [(1, 2)], [(1,), (1, 2, 3), (1, "2"), [1, 2], None]),
        (GlobalId, [(1, 2, 3)], [(1, 2), 7]),
        (tuple[str, ...], [(), ("a", "b")], [("a", 1), ["a"], "a"]),
        (tuple[int, str], [(1, "a")], [(1,), ("a", 1), (1, "a", 2)]),
        (Stitch | None, [None, (1, None, (0,), ((1, 2),))], [(), (1, None, (0,), (1,)), "x"]),
    ],
)
def test_values_fit_their_annotation_or_not(
    annotation: Any, fitting: list[Any], unfitting: list[Any]
) -> None:
    check = check_of(annotation)
    assert [value for value in fitting if not check(value)] == []
    assert [value for value in unfitting if check(value)] == []


@pytest.mark.parametrize("cls", KINDS.values(), ids=lambda cls: cls.__name__)
@settings(max_examples=10)
@given(st.lists(st.one_of(st.none(), st.integers(), st.text(), st.booleans()), min_size=12))
def test_no_message_has_fields_of_other_types(cls: Any, values: list[Any]) -> None:
    layout = strict_layout_of(cls)
    inline = memoryview(marshal.dumps(tuple(values[: layout.width])))
    try:
        loaded = layout.load(inline)
    except RemoteProtocolError:
        return
    for value, check in zip(loaded, layout._checks, strict=False):
        assert check(value)


def test_true_frames_pass_and_others_are_refused_where_one_is_strict() -> None:
    decoder = FrameDecoder(is_strict=True)
    for frame in corpus():
        decoder.feed(frame)
    inline = marshal.dumps((7,))
    frame = HEADER.pack(len(inline), MembershipQuery.KIND, 0, 0, 0, 0) + inline
    with pytest.raises(RemoteProtocolError, match="field of a MembershipQuery has a wrong type"):
        decoder.feed(frame)
    trusting = FrameDecoder()
    trusting.feed(frame)
    assert trusting.messages


def test_tidings_of_other_types_are_refused() -> None:
    life = ("name", 1, 0, ("address",), "host", 3, "mark", 0, "")
    load = strict_layout_of(MembershipNotice).load
    assert load(memoryview(marshal.dumps((1, True, (life,)))))
    for place in range(len(life)):
        wrong = (*life[:place], None, *life[place + 1 :])
        with pytest.raises(RemoteProtocolError, match="wrong type"):
            load(memoryview(marshal.dumps((1, True, (wrong,)))))
