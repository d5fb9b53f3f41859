"""Choosing the fastest way, on a clock that moves as it is told."""

from __future__ import annotations

import pytest

from lockstitch.nn.calibration import Calibration


class Clock:
    """Stands still but for `move`."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def move(self, seconds):
        self.now += seconds


class Program:
    """Takes steps; `costs` are seconds of forward and backward by way."""

    def __init__(self, costs, **options):
        self.clock = Clock()
        self.costs = costs
        self.calibration = Calibration(list(costs), self.clock, **options)
        self.ways = []

    def forward(self):
        step = self.calibration.begin()
        self.ways.append(step.way)
        self.clock.move(self.costs[step.way][0])
        self.calibration.end_forward(step)
        return step

    def backward(self, step):
        if self.calibration.begin_backward(step):
            self.clock.move(self.costs[step.way][1])
            self.calibration.end_backward(step)

    def train(self, most=100):
        """Steps until there is a choice, and how many it took."""
        for count in range(most):
            if self.calibration.choice is not None:
                return count
            self.backward(self.forward())
        return None


def test_ways_take_turns_and_the_fastest_is_chosen():
    program = Program({"plain": (3, 6), "thread": (3, 5), "fork": (2, 5)}, rounds=2)
    assert program.train() == 12
    assert program.ways == ["plain", "plain", "thread", "thread", "fork", "fork"] * 2
    assert program.calibration.choice == program.calibration.way == "fork"


@pytest.mark.parametrize(("seconds", "choice"), [(96, "plain"), (95, "fork"), (120, "plain")])
def test_what_is_hardly_faster_is_not_worth_it(seconds, choice):
    program = Program({"plain": (40, 60), "fork": (40, seconds - 40)})
    program.train()
    assert program.calibration.choice == choice


def test_the_first_step_of_each_turn_is_a_warm_up():
    program = Program({"plain": (5, 5), "fork": (1, 1)}, rounds=2)
    for i in range(8):
        program.costs["fork"] = (1000, 1) if i in (2, 6) else (1, 1)
        program.backward(program.forward())
    assert program.calibration.choice == "fork"


def test_one_disturbed_step_changes_nothing():
    program = Program({"plain": (5, 5), "fork": (4, 4)}, rounds=3)
    for i in range(12):
        program.costs["fork"] = (400, 4) if i == 7 else (4, 4)
        program.backward(program.forward())
    assert program.calibration.choice == "fork"


def test_a_busy_machine_is_no_reason_to_leave_the_first_way():
    program = Program({"plain": (5, 5), "fork": (6, 6)}, rounds=3)
    for i in range(12):
        program.costs["plain"] = (500, 5) if i in (1, 5) else (5, 5)
        program.backward(program.forward())
    assert program.calibration.choice == "plain"


def test_time_between_the_passes_is_the_callers():
    program = Program({"plain": (5, 5), "fork": (4, 4)})
    while program.calibration.choice is None:
        step = program.forward()
        program.clock.move(1000 if step.way == "fork" else 0)
        program.backward(step)
    assert program.calibration.choice == "fork"


def test_passes_before_one_backward_pass_go_the_same_way_and_the_last_counts():
    program = Program({"plain": (5, 5), "fork": (4, 4)}, rounds=1)
    while program.calibration.choice is None:
        first, second = program.forward(), program.forward()
        assert first.way == second.way
        program.backward(second)
        program.backward(first)
    assert program.ways == ["plain"] * 4 + ["fork"] * 4


def test_without_backward_passes_the_forward_passes_are_timed():
    program = Program({"plain": (5, 0), "fork": (4, 0)}, rounds=2)
    for _ in range(8 + 8):
        assert program.calibration.choice is None
        program.forward()
    assert program.calibration.choice == "fork"


def test_a_pass_that_raised_does_not_count():
    program = Program({"plain": (5, 5), "fork": (4, 4)}, rounds=1)
    for _ in range(50):
        program.calibration.begin()
    assert program.calibration.way == "plain"
    assert program.train() == 4


def test_a_second_backward_pass_of_a_step_does_not_count():
    program = Program({"plain": (5, 5), "fork": (4, 4)})
    step = program.forward()
    program.backward(step)
    assert not program.calibration.begin_backward(step)
    program.backward(program.forward())
    assert program.calibration.way == "fork"


def test_what_cannot_be_gone_is_left_out():
    program = Program({"plain": (5, 5), "thread": (4, 4), "fork": (1, 1)}, rounds=1)
    program.backward(program.forward())
    program.calibration.reject("fork")
    assert program.train() == 3
    assert program.ways == ["plain", "plain", "thread", "thread"]
    assert program.calibration.choice == "thread"


def test_the_plain_way_is_what_remains():
    calibration = Calibration(["plain", "thread"])
    calibration.reject("thread")
    assert calibration.choice == "plain"
    assert Calibration(["plain"]).choice == "plain"


def test_a_choice_that_fails_later_falls_back():
    program = Program({"plain": (5, 5), "fork": (1, 1)})
    program.train()
    program.calibration.reject("fork")
    assert program.calibration.choice == "plain"
