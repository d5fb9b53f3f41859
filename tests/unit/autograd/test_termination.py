"""Finished, or stuck."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstitch.autograd.termination import Balance, PassStatus, StandstillDetector, cancel
from lockstitch.ids import GlobalId, WorkerId

A, B = WorkerId(0, 0), WorkerId(1, 0)


def stitch(number):
    return GlobalId(0, 0, number)


def test_emission_and_consumption_cancel_in_either_order():
    balance = Balance()
    assert balance.is_zero
    balance.add([], [stitch(1)])
    assert not balance.is_zero
    balance.add([stitch(1), stitch(2)], [])
    assert repr(balance) == "gradients of stitches 2 of rank 0"
    balance.add([GlobalId(3, 0, 1)], [])
    assert balance.owners() == [0, 3]
    balance.add([], [GlobalId(3, 0, 1)])
    balance.add([], [stitch(2)])
    assert balance.is_zero


def test_reports_put_together_keep_what_does_not_cancel():
    one, two, three = stitch(1), stitch(2), stitch(3)
    assert cancel([one], [two]) == ((one,), (two,))
    assert cancel([one, two], [two, three]) == ((one,), (three,))
    assert cancel([], []) == ((), ())


@given(st.data())
def test_a_balance_is_zero_only_when_every_report_of_a_tree_has_come(data):
    """Stitch n was emitted by the run that consumed its parent; the roots emitted 1 and 2."""
    size = data.draw(st.integers(2, 20))
    parents = {number: data.draw(st.integers(1, number - 1)) for number in range(3, size + 1)}
    reports = [((), [1, 2])]
    reports.extend(
        ([number], [child for child, parent in parents.items() if parent == number])
        for number in range(1, size + 1)
    )
    order = data.draw(st.permutations(range(len(reports))))
    balance = Balance()
    roots_ran = False
    for position, index in enumerate(order):
        consumed, emitted = reports[index]
        balance.add([stitch(each) for each in emitted], [stitch(each) for each in consumed])
        roots_ran = roots_ran or index == 0
        is_last = position == len(order) - 1
        assert (roots_ran and balance.is_zero) == is_last


def ask(detector, statuses):
    wave = detector.begin(statuses)
    stuck = ()
    for worker, status in statuses.items():
        stuck = detector.answer(wave, worker, status)
    return stuck


def test_two_equal_quiet_waves_are_a_standstill():
    watch = StandstillDetector()
    statuses = {A: PassStatus(2, 1, False, (stitch(5),)), B: PassStatus(1, 2, False, ())}
    assert ask(watch, statuses) == ()
    assert ask(watch, statuses) == (stitch(5),)


def test_somebody_active_is_no_standstill():
    watch = StandstillDetector()
    statuses = {A: PassStatus(1, 1, True, (stitch(5),))}
    assert ask(watch, statuses) == ()
    assert ask(watch, statuses) == ()


def test_a_gradient_on_its_way_is_no_standstill():
    watch = StandstillDetector()
    statuses = {A: PassStatus(2, 1, False, (stitch(5),))}
    assert ask(watch, statuses) == ()
    assert ask(watch, statuses) == ()


def test_progress_between_the_waves_is_no_standstill():
    watch = StandstillDetector()
    assert ask(watch, {A: PassStatus(1, 1, False, (stitch(5),))}) == ()
    assert ask(watch, {A: PassStatus(2, 2, False, (stitch(5),))}) == ()
    assert ask(watch, {A: PassStatus(2, 2, False, (stitch(5),))}) == (stitch(5),)


def test_a_worker_that_joins_between_the_waves_is_no_standstill():
    watch = StandstillDetector()
    quiet = PassStatus(0, 0, False, (stitch(5),))
    assert ask(watch, {A: quiet}) == ()
    assert ask(watch, {A: quiet, B: PassStatus(0, 0, False, ())}) == ()


def test_answers_to_an_earlier_wave_are_dropped():
    watch = StandstillDetector()
    quiet = PassStatus(0, 0, False, (stitch(5),))
    first = watch.begin([A])
    second = watch.begin([A])
    assert watch.answer(first, A, quiet) == ()
    assert watch.answer(second, B, quiet) == ()
    assert watch.answer(second, A, quiet) == ()
    assert ask(watch, {A: quiet}) == (stitch(5),)
