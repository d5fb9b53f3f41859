"""The ring keeps the latest spans, counts what it drops, and tells them as numbers and texts."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.attach.spans import KINDS, SpanRing, recording_of, spans_of


def test_a_span_comes_back_as_it_was_noted() -> None:
    ring = SpanRing(4)
    ring.add("serve", "m:f", "ps", 1.5, 1.75, "trainer", 7, 1.625, 10, 20, True)
    recording = recording_of(*ring.since(0), 1.0)
    (span,) = spans_of(recording)
    assert span == (
        "serve", "m:f", "ps", threading.get_ident(), 1_500_000_000, 1_750_000_000, "trainer", 7,
        1_625_000_000, 10, 20, True,
    )  # fmt: skip
    assert span.kind in KINDS
    assert recording.began_at == 1_000_000_000
    assert recording.dropped == 0


@given(before=st.integers(0, 12), noted=st.integers(0, 12), most=st.integers(1, 5))
def test_the_latest_are_kept_and_the_others_counted(before: int, noted: int, most: int) -> None:
    ring = SpanRing(most)
    for number in range(before):
        ring.add("call", "early", "w", number, number)
    mark = ring.taken
    for number in range(noted):
        ring.add("call", "late", "w", number, number + 1)
    recording = recording_of(*ring.since(mark), 0.0)
    found = [span.start for span in spans_of(recording)]
    assert found == [number * 10**9 for number in range(noted)][max(0, noted - most) :]
    assert recording.dropped == max(0, noted - most)


@pytest.mark.parametrize("change", [{"texts": ()}, {"numbers": (1, 2)}], ids=["texts", "row"])
def test_what_is_no_recording_is_refused(change: dict[str, tuple[int, ...]]) -> None:
    ring = SpanRing(2)
    ring.add("call", "f", "w", 0, 1)
    with pytest.raises(ValueError, match="a span"):
        list(spans_of(replace(recording_of(*ring.since(0), 0.0), **change)))  # type: ignore[arg-type]
