"""For whom a process waits before it belongs to a group."""

from __future__ import annotations

from dataclasses import replace

from lockstitch.attach.values import OtherWait, Question
from lockstitch.rendezvous.arrivals import Arrivals, arrivals_of


def test_it_is_told_as_long_as_it_is_waited_for() -> None:
    arrivals, missing = Arrivals(), [1, 2]

    def gone() -> OtherWait:
        raise RuntimeError("the store is gone")

    with arrivals.awaited(lambda: arrivals_of(missing, 3)), arrivals.awaited(gone):
        (told,) = arrivals.waits(Question())
        assert told.seconds is not None
        assert told.seconds >= 0
        assert replace(told, seconds=None) == OtherWait(
            "has come to the meeting of 3 ranks, waits for ranks 1, 2", ranks=(1, 2)
        )
        missing.clear()
        (told,) = arrivals.waits(Question())
        assert told.what.endswith("waits for their answers")
    assert arrivals.waits(Question()) == []
