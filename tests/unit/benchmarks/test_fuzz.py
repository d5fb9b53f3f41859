"""The long run of benchmarks.fuzz, in short: any frame is read or refused, and nothing else."""

from __future__ import annotations

import pytest

from benchmarks.fuzz import corpus, run
from lockstitch.wire.decoding import FrameDecoder

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of sparse tensors


def test_true_frames_are_read() -> None:
    decoder = FrameDecoder(is_strict=True)
    for frame in corpus():
        decoder.feed(frame)
    assert len(decoder.messages) == len(corpus())


def test_false_frames_are_read_or_refused() -> None:
    outcomes = run(3000, seed=7)
    assert {"frame read", "frame refused", "value read", "value refused"} <= set(outcomes)
    assert {"seal broken", "greeting refused", "stranger turned away"} <= set(outcomes)


@pytest.mark.slow
def test_a_hundred_thousand_more() -> None:
    assert sum(run(100_000, seed=8).values()) >= 100_000
