"""The ladder of signals, at a clock that the test moves; and signals as bytes."""

from __future__ import annotations

import os
import select
import signal
from dataclasses import dataclass

from lockstitch.launch.stopping import SignalEscalation, announced_signals


@dataclass
class Time:
    """A clock that stands still unless told."""

    seconds: float = 100.0

    def now(self) -> float:
        return self.seconds

    def wait(self, waiter: object, timeout_seconds: float | None) -> bool:
        raise AssertionError("a ladder does not wait")


def test_ladder_at_rest_asks_for_nothing() -> None:
    escalation = SignalEscalation(5, Time())
    escalation.hurry()
    assert escalation.seconds_to_next() is None
    assert escalation.due() is None
    assert not escalation.has_signalled


def test_each_signal_is_due_once_and_the_next_a_grace_period_later() -> None:
    time = Time()
    escalation = SignalEscalation(5, time)
    escalation.begin(signal.SIGINT, after_seconds=0)
    assert (escalation.due(), escalation.due()) == (signal.SIGINT, None)
    assert escalation.seconds_to_next() == 5
    time.seconds += 5
    assert (escalation.due(), escalation.due()) == (signal.SIGTERM, None)
    time.seconds += 5
    assert escalation.due() == signal.SIGKILL


def test_what_is_planned_may_come_sooner_but_never_later_nor_once_begun() -> None:
    time = Time()
    escalation = SignalEscalation(5, time)
    escalation.within(1)
    assert escalation.seconds_to_next() is None
    escalation.begin(signal.SIGTERM, after_seconds=3)
    escalation.within(4)
    assert escalation.seconds_to_next() == 3
    escalation.within(1)
    assert escalation.seconds_to_next() == 1
    time.seconds += 1
    assert escalation.due() == signal.SIGTERM
    escalation.within(1)
    assert escalation.seconds_to_next() == 5


def test_last_rung_is_repeated_soon() -> None:
    time = Time()
    escalation = SignalEscalation(5, time)
    escalation.begin(signal.SIGKILL, after_seconds=0)
    assert escalation.due() == signal.SIGKILL
    time.seconds += 0.1
    assert escalation.due() == signal.SIGKILL


def test_beginning_later_waits_and_is_not_yet_climbing() -> None:
    time = Time()
    escalation = SignalEscalation(5, time)
    escalation.begin(signal.SIGTERM, after_seconds=0.5)
    assert escalation.due() is None
    assert not escalation.has_signalled
    time.seconds += 0.5
    assert escalation.due() == signal.SIGTERM
    assert escalation.has_signalled


def test_beginning_again_changes_nothing() -> None:
    escalation = SignalEscalation(5, Time())
    escalation.begin(signal.SIGTERM, after_seconds=2)
    escalation.begin(signal.SIGINT, after_seconds=0)
    assert escalation.seconds_to_next() == 2


def test_hurried_ladder_climbs_at_once() -> None:
    escalation = SignalEscalation(5, Time())
    escalation.begin(signal.SIGINT, after_seconds=0)
    escalation.due()
    escalation.hurry()
    assert escalation.due() == signal.SIGTERM


def test_signals_arrive_as_bytes_and_interrupt_nothing() -> None:
    before = signal.getsignal(signal.SIGINT)
    with announced_signals() as inbox:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        select.select([inbox], [], [], 10)
        assert set(inbox.recv(64)) == {signal.SIGINT, signal.SIGTERM}
    assert signal.getsignal(signal.SIGINT) is before


def test_a_hangup_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with announced_signals() as inbox:
            os.kill(os.getpid(), signal.SIGHUP)
            assert select.select([inbox], [], [], 0)[0] == []
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
