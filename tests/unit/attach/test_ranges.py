"""Ranges of `record_function` are noted while somebody records, and torch is itself otherwise."""

from __future__ import annotations

import torch
from torch.profiler import record_function

from lockstitch.attach.ranges import Ranges
from lockstitch.attach.recorder import Recorder
from lockstitch.attach.spans import SpanRing, spans_of


def names(recorder: Recorder) -> list[str]:
    with recorder.recording() as recorded:
        with record_function("outer"), record_function("inner"):
            pass
        return [each.name for each in spans_of(recorded())]


def test_ranges_are_noted_inner_ones_first() -> None:
    assert names(Recorder()) == ["inner", "outer"]


def test_steps_of_an_optimizer_are_ranges() -> None:
    recorder = Recorder()
    parameter = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with recorder.recording() as recorded:
        optimizer.step()
        assert [each.name for each in spans_of(recorded())] == ["Optimizer.step#SGD.step"]


def test_torchs_own_functions_come_back_and_profilers_see_ranges_as_ever() -> None:
    own = record_function.__enter__, record_function.__exit__
    recorder = Recorder()
    with torch.profiler.profile() as profile:
        assert names(recorder) == ["inner", "outer"]
    assert {"inner", "outer"} <= {each.name for each in profile.events()}
    assert (record_function.__enter__, record_function.__exit__) == own


def test_a_range_over_the_edge_of_the_recording_is_left_out() -> None:
    recorder = Recorder()
    with record_function("began before"), recorder.recording() as recorded:
        late = record_function("ends after")
        late.__enter__()
        assert list(spans_of(recorded())) == []
    late.__exit__(None, None, None)


def test_beginning_twice_and_ending_twice_is_harmless() -> None:
    own, ranges, recorder = record_function.__enter__, Ranges(), Recorder()
    recorder.spans = SpanRing(2)
    ranges.begin(recorder)
    ranges.begin(recorder)
    ranges.end()
    ranges.end()
    assert record_function.__enter__ is own
