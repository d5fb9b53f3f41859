"""Whoever waits in a backward pass reads for itself where one worker answers, and only there."""

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

    def spin_wait(self, _sleeper):
        self.done.append("spin_wait")

    def attend(self):
        self.done.append("attend")

    def close(self):
        self.done.append("close")


class Post:
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
def post():
    return Post()


def test_it_begins_once_with_each_worker_that_can_answer_so(post):
    listening = Listening(post)
    assert listening.begin(ONE)
    assert listening.begin(ONE)
    assert not listening.begin(DEAF)
    assert post.asked == [ONE, DEAF]


def test_with_one_worker_the_thread_reads(post):
    listening = Listening(post)
    listening.begin(DEAF)
    listening.begin(ONE)
    assert listening.sleep(Sleeper(), None)
    assert post.ways[ONE].done == ["wait"]


def test_with_a_time_limit_it_reads_briefly_and_lets_the_pool_go_on(post):
    listening = Listening(post)
    listening.begin(ONE)
    assert not listening.sleep(Sleeper(), 0.001)
    assert post.ways[ONE].done == ["spin_wait", "attend"]


def test_with_several_workers_the_pool_reads_and_wakes_it(post):
    listening = Listening(post)
    listening.begin(ONE)
    listening.begin(OTHER)
    sleeper = Sleeper()
    waiting = Background(listening.sleep, sleeper, None)
    wait_until(lambda: sleeper.locks)
    sleeper.finish(None, None)
    assert waiting.result()
    assert post.ways[ONE].done == post.ways[OTHER].done == ["attend"]


def test_with_nobody_it_sleeps(post):
    listening = Listening(post)
    assert not listening.sleep(Sleeper(), 0.001)
    sleeper = Sleeper()
    sleeper.finish(None, None)
    assert listening.sleep(sleeper, None)


def test_the_loss_of_the_only_worker_is_raised(post):
    listening = Listening(post)
    listening.begin(ONE)
    post.ways[ONE].waiting = lambda sleeper: sleeper.finish(None, PeerDiedError("worker1"))
    with pytest.raises(PeerDiedError):
        listening.sleep(Sleeper(), None)


def test_after_a_pass_nobody_listens_any_more(post):
    listening = Listening(post)
    listening.begin(ONE)
    listening.end(failed=False)
    assert post.ways[ONE].done == ["close"]
    assert not listening.begin(OTHER)
    assert post.ways[OTHER].done == ["close"]


def test_after_a_failure_what_is_still_on_its_way_is_read_for_a_while(post):
    listening = Listening(post)
    listening.begin(ONE)
    listening.end(failed=True)
    assert post.ways[ONE].done == ["attend"]
    ((seconds, task),) = post.later
    assert seconds > 1
    task()
    assert post.ways[ONE].done == ["attend", "close"]
