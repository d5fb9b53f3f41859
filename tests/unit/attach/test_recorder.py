"""The recorder is on only while somebody looks, and off in a forked child."""

from __future__ import annotations

import os
import threading

import torch

from lockstitch.attach import recorder as module
from lockstitch.attach.recorder import Recorder
from lockstitch.attach.spans import spans_of


def call(recorder: Recorder) -> None:
    noted = recorder.noted("call", "f", "w", "ps")
    recorder.note_call(noted, 1.0, 2.0, 7, 0.0, 0, 0, has_failed=False)


def test_it_is_off_until_somebody_asks() -> None:
    recorder = Recorder()
    assert not recorder.is_on
    call(recorder)
    assert recorder.counted("w") == ()


def test_counting_goes_on_until_nobody_has_asked_for_a_while(monkeypatch) -> None:
    recorder, now = Recorder(), [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    recorder.count()
    call(recorder)
    now[0] += module.COUNTED_SECONDS
    recorder.count()  # asked again
    now[0] += module.COUNTED_SECONDS + 1
    call(recorder)  # the last one
    recorder.settle()
    assert not recorder.is_on
    call(recorder)
    assert recorder.counted("w")[0].count == 2
    call(recorder)
    recorder.count()
    call(recorder)
    assert recorder.counted("w")[0].count == 3  # counters never shrink


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


def test_threads_note_at_once_and_nothing_is_lost() -> None:
    recorder, each = Recorder(), 3000

    def note() -> None:
        for _ in range(each):
            call(recorder)

    recorder.count()
    with recorder.recording(most=each) as recorded:
        threads = [threading.Thread(target=note) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            recorder.counted("w")  # somebody looks meanwhile
        for thread in threads:
            thread.join()
        recording = recorded()
    assert len(list(spans_of(recording))) == each
    assert recording.dropped == 3 * each
    assert recorder.counted("w")[0].count == 4 * each


def test_what_waits_is_taken_in_before_there_is_much_of_it() -> None:
    recorder = Recorder()
    recorder.count()
    _, series = recorder.noted("call", "f", "w", "ps")
    with recorder.recording():
        for _ in range(10 * module.SETTLED_AT):
            call(recorder)
            assert len(series.calls) < module.SETTLED_AT
            assert len(recorder.rows) < module.SETTLED_AT


def test_what_comes_while_nothing_can_be_taken_in_is_bounded_and_spans_are_counted(
    monkeypatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 300)
    recorder = Recorder()
    recorder.count()
    with recorder.recording() as recorded:
        with recorder._lock:
            for _ in range(1000):
                call(recorder)
            assert len(recorder.rows) == 300
            assert len(recorder.noted("call", "f", "w", "ps")[1].calls) == 300
        recording = recorded()
    assert len(list(spans_of(recording))) == 300
    assert recording.dropped == 700
