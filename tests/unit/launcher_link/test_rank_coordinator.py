"""The table by itself: what a launcher would be told to do."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lockstitch.launcher_link.messages import Over, RankAssignment, Update, UpdateKind, Void
from lockstitch.launcher_link.rank_coordinator import (
    CameReady,
    CoordinatorOptions,
    Ended,
    GiveUp,
    HostsFound,
    RankCoordinator,
    Start,
    Stop,
    Tell,
    TimePassed,
)
from lockstitch.launcher_link.slots import Slot


class Job:
    """A table, and what has come of its instructions."""

    def __init__(self, hosts=(("a", 2),), **options):
        options.setdefault("wanted", sum(count for _, count in hosts))
        self.table = RankCoordinator(CoordinatorOptions(**options), 0.0)
        self.now = 0.0
        self.started = {}
        self.stopped = []
        self.reason = None
        self.told = {}
        self.found(*hosts)

    def handle(self, event):
        for instruction in self.table.handle(event, self.now):
            if isinstance(instruction, Start):
                self.started[instruction.worker] = instruction.slot
            elif isinstance(instruction, Tell):
                self.told.setdefault(instruction.worker, []).append(instruction.message)
            elif isinstance(instruction, Stop):
                self.stopped.append(instruction.worker)
            elif isinstance(instruction, GiveUp):
                self.reason = instruction.reason

    def found(self, *hosts):
        self.handle(HostsFound(tuple(hosts)))

    def ready(self, *workers):
        for worker in workers:
            self.handle(CameReady(worker))

    def fail(self, *workers):
        for worker in workers:
            self.handle(Ended(worker, is_well=False))

    def finish(self, *workers):
        for worker in workers:
            self.handle(Ended(worker, is_well=True))

    def pass_to_deadline(self):
        self.now = self.table.deadline
        self.handle(TimePassed())

    def last(self, worker):
        return self.told[worker][-1] if worker in self.told else None

    def ranks(self):
        """The rank of each worker in the latest world."""
        places = [
            (worker, message)
            for worker, messages in self.told.items()
            for message in messages
            if isinstance(message, RankAssignment) and message.generation == self.table.generation
        ]
        assert {place.size for _, place in places} == {len(places)}
        return {worker: place.rank for worker, place in places}


# ------------------------------------------------------------------ the first world


def test_every_slot_gets_a_worker_in_the_order_of_hosts():
    job = Job(hosts=(("a", 2), ("b", 1)))
    assert job.started == {0: Slot("a", 0), 1: Slot("a", 1), 2: Slot("b", 0)}


def test_the_first_world_begins_when_as_many_as_are_wanted_have_come():
    job = Job(hosts=(("a", 2), ("b", 1)))
    job.ready(2, 0)
    assert job.told == {}
    job.ready(1)
    assert job.ranks() == {0: 0, 1: 1, 2: 2}


def test_the_first_world_does_not_wait_for_a_slot_that_is_struck_out():
    job = Job(hosts=(("a", 3),), min_workers=2, slot_failures=2)
    job.ready(0, 1)
    job.fail(2)
    assert job.told == {}
    job.fail(3)
    assert job.ranks() == {0: 0, 1: 1}


def test_there_are_never_more_workers_than_may_be():
    job = Job(hosts=(("a", 5),), wanted=2, max_workers=3)
    assert list(job.started) == [0, 1, 2]


def test_after_the_start_timeout_fewer_will_do():
    job = Job(min_workers=1, start_seconds=30.0)
    job.ready(1)
    assert job.told == {}
    assert job.table.deadline == 30.0
    job.pass_to_deadline()
    assert job.ranks() == {1: 0}


def test_after_the_start_timeout_too_few_are_the_end():
    job = Job(min_workers=2, start_seconds=30.0)
    job.ready(1)
    job.pass_to_deadline()
    assert "within 30 s" in job.reason


def test_a_program_that_fails_at_once_is_not_tried_for_ever():
    job = Job()
    job.fail(0, 1)
    assert "before the ranks had met" in job.reason


# ------------------------------------------------------------------ a death


def in_world(**options):
    job = Job(**options)
    job.ready(*job.started)
    return job


def test_who_is_left_is_told_and_the_slot_is_filled_again():
    job = in_world()
    job.fail(1)
    assert job.last(0) == Void(1)
    assert job.started[2] == Slot("a", 1)


def test_the_ranks_that_are_left_go_on_if_they_are_enough():
    job = in_world(min_workers=1)
    job.fail(0)
    job.ready(1)
    assert job.last(1) == RankAssignment(2, 0, 1, "")


def test_if_they_are_not_enough_they_wait_for_the_new_one():
    job = in_world(min_workers=2)
    job.fail(0)
    job.ready(1)
    assert isinstance(job.last(1), Void)
    job.ready(2)
    assert job.ranks() == {1: 0, 2: 1}  # rank 0 is one who has the state


def test_a_new_one_that_waits_is_announced_once_and_comes_in():
    job = in_world(min_workers=1)
    job.fail(0)
    job.ready(1)
    job.ready(2)
    job.ready(2)
    assert job.told[1][-1] == Update(1, UpdateKind.ADDED)
    assert sum(isinstance(message, Update) for message in job.told[1]) == 1
    job.ready(1)
    assert job.ranks() == {1: 0, 2: 1}


def test_survivors_keep_their_order():
    job = in_world(hosts=(("a", 4),), min_workers=1)
    job.fail(1)
    job.ready(3, 2, 0)
    assert job.ranks() == {0: 0, 2: 1, 3: 2}


def test_when_a_whole_world_has_failed_nobody_has_the_state():
    job = in_world()
    job.fail(0, 1)
    assert "nobody has the state" in job.reason


def test_a_slot_whose_workers_keep_failing_is_struck_out():
    job = in_world(min_workers=1, slot_failures=3)
    for worker in (1, 2, 3):
        job.fail(worker)
        job.ready(0)
        job.ready(*(w for w in job.started if w > worker))
    assert list(job.started.values()).count(Slot("a", 1)) == 3
    assert job.ranks() == {0: 0}
    assert job.reason is None


def test_without_a_slot_for_another_too_few_are_the_end():
    job = in_world(min_workers=2, slot_failures=1)
    job.fail(1)
    assert job.reason is None  # rank 0 may yet finish
    job.ready(0)
    assert "no slot" in job.reason


def test_a_slot_cools_down_for_longer_each_time():
    job = in_world(min_workers=1, cooldown_seconds=(10.0, 15.0))
    job.fail(1)
    job.ready(0)
    assert len(job.started) == 2
    job.pass_to_deadline()
    assert job.now == 10.0
    job.fail(2)
    job.pass_to_deadline()
    assert job.now == 25.0
    assert job.started[3] == Slot("a", 1)


def test_too_few_for_too_long_are_the_end():
    job = in_world(min_workers=2, elastic_seconds=60.0)
    job.now = 5.0
    job.fail(1)
    job.ready(0)
    assert job.table.deadline == 65.0
    job.pass_to_deadline()
    assert "for 60 s" in job.reason


def test_the_ranks_may_meet_anew_only_so_often():
    job = in_world(min_workers=1, reset_limit=1)
    job.fail(1)
    job.ready(0)
    job.ready(2, 0)
    assert "limit: 1" in job.reason


# ------------------------------------------------------------------ hosts that come and go


def test_workers_of_a_new_host_come_in():
    job = in_world(min_workers=1, is_fixed=False)
    job.found(("a", 2), ("b", 1))
    assert job.started[2] == Slot("b", 0)
    job.ready(2)
    assert job.last(0) == job.last(1) == Update(1, UpdateKind.ADDED)
    job.ready(0, 1)
    assert job.ranks() == {0: 0, 1: 1, 2: 2}


def test_a_host_that_comes_with_several_slots_comes_in_by_one_new_world():
    job = in_world(min_workers=1, is_fixed=False)
    job.found(("a", 2), ("b", 2), ("c", 1))
    job.ready(2)
    assert not any(isinstance(message, Update) for message in job.told[0])
    job.ready(3)
    assert job.last(0) == job.last(1) == Update(1, UpdateKind.ADDED)
    job.ready(0, 1)
    assert set(job.ranks()) == {0, 1, 2, 3}


def test_the_other_slots_of_a_new_host_are_not_waited_for_longer_than_a_second():
    job = in_world(min_workers=1, is_fixed=False)
    job.found(("a", 2), ("b", 2))
    job.now = 5.0
    job.ready(2)
    assert job.table.deadline == 6.0
    assert not any(isinstance(message, Update) for message in job.told[0])
    job.pass_to_deadline()
    assert job.last(0) == Update(1, UpdateKind.ADDED)
    assert job.table.deadline is None  # nobody is to be woken for it again


def test_the_other_slots_of_a_new_host_are_not_waited_for_when_they_have_failed():
    job = in_world(min_workers=1, is_fixed=False, slot_failures=1)
    job.found(("a", 2), ("b", 2))
    job.ready(2)
    job.fail(3)
    assert job.last(0) == Update(1, UpdateKind.ADDED)


def test_workers_of_a_host_that_is_gone_leave_in_order():
    job = in_world(hosts=(("a", 1), ("b", 2)), min_workers=1, is_fixed=False)
    job.found(("b", 2))
    assert job.last(1) == Update(1, UpdateKind.REMOVED)
    job.ready(0, 1, 2)
    assert isinstance(job.last(0), Over)
    assert job.ranks() == {1: 0, 2: 1}
    job.finish(0)
    assert not job.table.is_finishing
    assert job.reason is None


def test_a_worker_of_a_vanished_host_that_has_not_begun_is_stopped():
    job = Job(hosts=(("a", 1),), wanted=2, is_fixed=False)
    job.found(("b", 2))
    assert job.stopped == [0]


def test_as_long_as_hosts_may_come_nothing_is_hopeless():
    job = Job(hosts=(), wanted=1, is_fixed=False)
    assert not job.table.is_over
    job.found(("a", 1))
    job.ready(0)
    assert job.ranks() == {0: 0}


# ------------------------------------------------------------------ the end


def test_all_is_over_when_all_have_finished():
    job = in_world()
    job.finish(0)
    assert not job.table.is_over
    job.finish(1)
    assert job.table.is_over
    assert job.table.is_well


def test_a_new_one_that_waits_or_has_not_begun_is_of_no_use_after_the_first_has_finished():
    job = in_world(hosts=(("a", 3),), min_workers=1)
    job.fail(1, 2)
    job.ready(0)
    job.ready(3)
    job.finish(0)
    assert isinstance(job.last(3), Over)
    assert job.stopped == [4]
    job.finish(3)
    job.fail(4)
    assert job.table.is_over
    assert job.table.is_well


def test_a_failure_after_others_have_finished_is_the_jobs():
    job = in_world()
    job.finish(0)
    job.fail(1)
    assert job.table.is_over
    assert not job.table.is_well


def test_ranks_thrown_back_after_the_first_has_finished_may_finish_too():
    job = in_world(hosts=(("a", 3),), min_workers=3)
    job.finish(0)
    job.fail(1)
    job.ready(2)
    assert job.ranks() == {2: 0}
    job.finish(2)
    assert job.table.is_over
    assert job.table.is_well


# ------------------------------------------------------------------ whatever happens


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 3))
@example(727610, 4, 1)
@settings(max_examples=60)
def test_a_job_always_ends_and_every_world_is_complete(seed, slots, min_workers):
    """Workers fail, come and finish as they like; none is ever in two worlds or waits for ever."""
    chance = random.Random(seed)
    job = Job(hosts=(("a", slots),), min_workers=min(min_workers, slots))
    state = dict.fromkeys(job.started, "starting")
    for _ in range(400):
        if job.table.is_over:
            break
        job.now += 1.0
        living = [worker for worker, now in state.items() if now != "gone"]
        worker = chance.choice(living)
        if job.reason is not None or isinstance(job.last(worker), Over):
            event = Ended(worker, is_well=True)
        elif state[worker] == "waiting":
            event = TimePassed()
        else:
            event = chance.choice(
                [CameReady(worker), CameReady(worker), Ended(worker, is_well=False)]
                + [Ended(worker, is_well=True)] * (state[worker] == "in")
            )
        state[worker] = "waiting" if isinstance(event, CameReady) else state[worker]
        state[worker] = "gone" if isinstance(event, Ended) else state[worker]
        before = job.table.generation
        job.handle(event)
        for each in job.started:
            state.setdefault(each, "starting")
        for each in job.stopped:
            if state[each] != "gone":
                state[each] = "gone"
                job.handle(Ended(each, is_well=False))
        if job.table.generation > before:
            ranks = job.ranks()
            assert sorted(ranks.values()) == list(range(len(ranks)))
            assert all(state[each] == "waiting" for each in ranks)
            assert "in" not in state.values()
            state.update(dict.fromkeys(ranks, "in"))
        waiting = [each for each, now in state.items() if now == "waiting"]
        if waiting and all(now in ("waiting", "gone") for now in state.values()):
            # Nobody is starting or training: only the time can help them.
            told_off = all(isinstance(job.last(each), Over) for each in waiting)
            assert told_off or job.reason or job.table.deadline is not None
    assert job.table.is_over


@pytest.mark.parametrize("options", [{"wanted": 2}])
def test_no_deadline_without_something_to_wait_for(options):
    job = in_world(**options)
    assert job.table.deadline is None


# ------------------------------------------------------------------ who does not come


def test_who_has_been_started_and_does_not_come_is_named():
    job = Job(hosts=(("a", 2), ("b", 1)), min_workers=3, start_seconds=30.0)
    assert not job.table.is_waiting_for_some  # as long as nobody has come
    job.ready(0)
    assert job.table.is_waiting_for_some
    assert job.table.describe_wait(3.0) == (
        "worker 1 on host a, worker 2 on host b have been started and have not come; 1 other has, "
        "and will wait 27 s at most"
    )
    job.ready(1)
    job.pass_to_deadline()
    assert job.now == 30.0
    assert job.reason == (
        "fewer than 3 workers have come within 30 s: worker 2 on host b has been started and has "
        "not come"
    )
    assert not job.table.is_waiting_for_some


def test_later_worlds_wait_as_long_as_elastic_ones_may():
    job = Job(hosts=(("a", 3),), min_workers=3, elastic_seconds=50.0)
    job.ready(0, 1, 2)
    assert not job.table.is_waiting_for_some
    job.now = 100.0
    job.fail(1)
    job.ready(0, 2)
    assert job.table.is_waiting_for_some
    assert job.table.describe_wait(110.0) == (
        "worker 3 on host a has been started and has not come; 2 others have, and will wait 40 s "
        "at most"
    )
    job.pass_to_deadline()
    assert job.reason == (
        "fewer than 3 workers for 50 s: worker 3 on host a has been started and has not come"
    )


def test_of_many_who_do_not_come_some_are_named():
    job = Job(hosts=(("a", 12),))
    job.ready(0)
    assert "worker 8 on host a and 3 more have been started" in job.table.describe_wait(0.0)
