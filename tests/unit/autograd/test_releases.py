"""Told until heard."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lockstitch.autograd.releases import Releases
from lockstitch.errors import PeerDiedError
from lockstitch.ids import WorkerId
from lockstitch.testing.clock import ManualClock
from lockstitch.wire.messages import ReleaseContext

A, B = WorkerId(1, 0), WorkerId(2, 0)


class Bench:
    def __init__(self):
        self.sent, self.timers, self.dead = [], [], set()
        self.clock = ManualClock()
        agent = SimpleNamespace(
            send=self._send,
            spawn=lambda task: task(),
            call_later=lambda seconds, task: self.timers.append(task),
        )
        self.releases = Releases(SimpleNamespace(agent=agent, clock=self.clock))

    def _send(self, to, message):
        if to in self.dead:
            raise PeerDiedError("worker1")
        self.sent.append((to, message))

    def wait(self, seconds):
        self.clock.advance(seconds)
        timers, self.timers = self.timers, []
        for task in timers:
            task()


@pytest.fixture
def bench():
    return Bench()


def test_a_release_is_sent_at_once_and_again_until_it_is_answered(bench):
    bench.releases.tell([A, B], 7)
    assert bench.sent == [(A, ReleaseContext(7)), (B, ReleaseContext(7))]
    bench.releases.settle(B, 7)
    bench.wait(0.6)
    assert bench.sent[2:] == [(A, ReleaseContext(7))]
    bench.releases.settle(A, 7)
    bench.wait(5)
    assert len(bench.sent) == 3
    assert len(bench.releases) == 0
    assert bench.timers == []


def test_one_timer_serves_all(bench):
    bench.releases.tell([A], 7)
    bench.releases.tell([A], 8)
    assert len(bench.timers) == 1


def test_nobody_to_tell_sets_no_timer(bench):
    bench.releases.tell([], 7)
    assert bench.timers == []


def test_a_worker_that_is_gone_is_told_no_more(bench):
    bench.dead.add(A)
    bench.releases.tell([A], 7)
    bench.releases.forget(A)
    bench.wait(5)
    assert bench.sent == []
    assert bench.timers == []
