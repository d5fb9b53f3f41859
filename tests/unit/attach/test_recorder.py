"""The recorder is on only while somebody looks, and off in a forked child."""

from __future__ import annotations

import os

import torch

from lockstitch.attach import recorder as module
from lockstitch.attach.recorder import Recorder
from lockstitch.attach.spans import spans_of


def call(recorder: Recorder) -> None:
    series = recorder.traffic.series("w", "made", "f", "ps")
    recorder.note_call(series, module.time.monotonic(), 1.0, 0, 0, failed=False)


def test_it_is_off_until_somebody_asks() -> None:
    recorder = Recorder()
    assert not recorder.is_on
    call(recorder)
    assert recorder.traffic.of("w") == ()


def test_counting_goes_on_until_nobody_has_asked_for_a_while(monkeypatch) -> None:
    recorder, now = Recorder(), [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    recorder.count()
    call(recorder)
    now[0] += module.COUNTED_SECONDS
    recorder.count()  # asked again
    now[0] += module.COUNTED_SECONDS + 1
    call(recorder)  # the last one
    assert not recorder.is_on
    call(recorder)
    assert recorder.traffic.of("w")[0].count == 2
    recorder.count()
    call(recorder)
    assert recorder.traffic.of("w")[0].count == 3  # counters never shrink


def test_two_recordings_at_once_have_each_what_came_in_their_time() -> None:
    recorder = Recorder()
    with recorder.recording() as first:
        assert recorder.spans is not None
        recorder.spans.add("call", "one", "w", 1.0, 2.0)
        with recorder.recording() as second:
            recorder.spans.add("call", "two", "w", 1.0, 2.0)
            assert [each.name for each in spans_of(second())] == ["two"]
        assert recorder.is_on
        assert [each.name for each in spans_of(first())] == ["one", "two"]
    assert not recorder.is_on
    assert recorder.spans is None


def test_recording_leaves_counting_as_it_was() -> None:
    recorder = Recorder()
    recorder.count()
    with recorder.recording():
        pass
    assert recorder.is_on


def test_a_forked_child_begins_without() -> None:
    recorder = Recorder()
    recorder.count()
    own = torch.profiler.record_function.__enter__
    with recorder.recording():
        child = os.fork()
        if not child:
            is_off = not recorder.is_on and recorder.spans is None
            os._exit(0 if is_off and torch.profiler.record_function.__enter__ is own else 1)
    assert os.waitpid(child, 0)[1] == 0
