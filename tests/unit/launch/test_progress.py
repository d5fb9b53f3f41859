"""A line of progress from the steps of workers."""

from __future__ import annotations

from lockstitch.endings import StepMark
from lockstitch.launch.progress import Progress
from lockstitch.testing.clock import ManualClock


def test_the_line_has_the_step_of_the_lowest_rank_its_values_and_its_speed() -> None:
    clock = ManualClock()
    progress = Progress(clock)
    assert progress.note(1, StepMark(10, (("loss", 0.123456),))) == "step 10 · loss 0.1235"
    clock.advance(2)
    line = progress.note(1, StepMark(30, (("loss", 1e-9), ("accuracy", 1.0))))
    assert line == "step 30 · loss 1e-09 · accuracy 1 · 10 steps/s"


def test_who_is_behind_is_named_but_not_who_is_about_to_come() -> None:
    progress = Progress(ManualClock())
    progress.note(0, StepMark(10, ()))
    assert progress.note(1, StepMark(9, ())) == "step 10"
    assert progress.note(2, StepMark(7, ())) == "step 10 · rank 2 is 3 steps behind"


def test_steps_may_begin_anew() -> None:
    clock = ManualClock()
    progress = Progress(clock)
    progress.note(0, StepMark(10, ()))
    clock.advance(1)
    assert progress.note(0, StepMark(1, ())) == "step 1"
