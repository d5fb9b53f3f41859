"""Whoever waits in a backward pass reads for itself what a few workers answer."""

from __future__ import annotations

import contextlib

import pytest

from lockstitch.autograd.listening import Listening, Sleeper
from lockstitch.errors import PeerDiedError
from lockstitch.ids import WorkerId
from tests.unit.runtime.stage import Background, wait_until

ONE, OTHER, DEAF = WorkerId(1, 0), WorkerId(2, 0), WorkerId(3, 0)


class Way:
    """A listener that notes what is done with it; `waiting` is what happens in `wait`."""

    def __init__(self):
        self.done = []
        self.waiting = lambda sleeper: sleeper.finish(None, None)

    def wait(self, sleeper):
        self.done.append("wait")
        self.waiting(sleeper)

    def wait_with(self, others, sleeper):
        for each in (self, *others):
            each.done.append("read")
        self.waiting(sleeper)

    def spin_wait(self, _sleeper):
        self.done.append("spin_wait")

    def attend(self):
        self.done.append("attend")

    def close(self):
        self.done.append("close")


class Messaging:
    def __init__(self):
        self.ways = {ONE: Way(), OTHER: Way(), DEAF: None}
        self.asked = []
        self.later = []

    def listen(self, worker):
        self.asked.append(worker)
        return self.ways[worker]

    def blocked(self):
        return contextlib.nullcontext()

    def call_later(self, seconds, task):
        self.later.append((seconds, task))


@pytest.fixture
def messaging():
    return Messaging()


def test_it_begins_once_with_each_worker_that_can_answer_so(messaging):
    listening = Listening(messaging)
    assert listening.begin(ONE)
    assert listening.begin(ONE)
    assert not listening.begin(DEAF)
    assert messaging.asked == [ONE, DEAF]


def test_with_one_worker_the_thread_reads(messaging):
    listening = Listening(messaging)
    listening.begin(DEAF)
    listening.begin(ONE)
    assert listening.sleep(Sleeper(), None)
    assert messaging.ways[ONE].done == ["wait"]


def test_with_a_time_limit_it_reads_briefly_and_lets_the_pool_go_on(messaging):
    listening = Listening(messaging)
    listening.begin(ONE)
    assert not listening.sleep(Sleeper(), 0.001)
    assert messaging.ways[ONE].done == ["spin_wait", "attend"]


def test_with_a_few_workers_the_thread_reads_all(messaging):
    listening = Listening(messaging)
    listening.begin(ONE)
    listening.begin(OTHER)
    assert listening.sleep(Sleeper(), None)
    assert messaging.ways[ONE].done == messaging.ways[OTHER].done == ["read"]


def test_what_it_cannot_read_itself_the_pool_does(messaging):
    listening = Listening(messaging)
    listening.begin(ONE)
    listening.begin(OTHER)
    messaging.ways[ONE].waiting = lambda sleeper: None
    assert_pool_reads(listening, list(messaging.ways.values())[:2], before=["read"])


def test_with_many_workers_the_pool_reads_and_wakes_it(messaging):
    listening = Listening(messaging)
    many = [WorkerId(rank, 0) for rank in range(10, 30)]
    messaging.ways |= {worker: Way() for worker in many}
    for worker in many:
        listening.begin(worker)
    assert_pool_reads(listening, [messaging.ways[worker] for worker in many], before=[])


def assert_pool_reads(listening, ways, before):
    sleeper = Sleeper()
    waiting = Background(listening.sleep, sleeper, None)
    wait_until(lambda: sleeper.locks)
    sleeper.finish(None, None)
    assert waiting.result()
    assert [way.done for way in ways] == [[*before, "attend"]] * len(ways)


def test_with_nobody_it_sleeps(messaging):
    listening = Listening(messaging)
    assert not listening.sleep(Sleeper(), 0.001)
    sleeper = Sleeper()
    sleeper.finish(None, None)
    assert listening.sleep(sleeper, None)


def test_the_loss_of_the_only_worker_is_raised(messaging):
    listening = Listening(messaging)
    listening.begin(ONE)
    messaging.ways[ONE].waiting = lambda sleeper: sleeper.finish(None, PeerDiedError("worker1"))
    with pytest.raises(PeerDiedError):
        listening.sleep(Sleeper(), None)


def test_after_a_pass_nobody_listens_any_more(messaging):
    listening = Listening(messaging)
    listening.begin(ONE)
    listening.end(failed=False)
    assert messaging.ways[ONE].done == ["close"]
    assert not listening.begin(OTHER)
    assert messaging.ways[OTHER].done == ["close"]


def test_after_a_failure_what_is_still_on_its_way_is_read_for_a_while(messaging):
    listening = Listening(messaging)
    listening.begin(ONE)
    listening.end(failed=True)
    assert messaging.ways[ONE].done == ["attend"]
    ((seconds, task),) = messaging.later
    assert seconds > 1
    task()
    assert messaging.ways[ONE].done == ["attend", "close"]
