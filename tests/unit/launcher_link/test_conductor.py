"""The conductor with a starter that only notes what it is told, and a clock of the test's."""

from __future__ import annotations

import signal
import threading
from queue import Queue

import pytest

from lockstitch.launcher_link import LauncherClient, Over
from lockstitch.launcher_link.client import ADDRESS, PURPOSE, WORKER
from lockstitch.launcher_link.conductor import Conductor, Surroundings
from lockstitch.launcher_link.rank_coordinator import (
    CameReady,
    CoordinatorOptions,
    Ended,
    HostsFound,
)
from lockstitch.launcher_link.slots import Slot
from lockstitch.testing import ManualClock
from lockstitch.trust import Secret

SECRET = Secret.from_text("5a" * 32)
SECONDS = 60


class Starter:
    """Notes who is started and stopped; what is stopped has ended."""

    def __init__(self) -> None:
        self.conductor = None
        self.started = {}
        self.stopped = Queue()
        self.is_broken = False

    def start(self, worker, slot, environment):
        self.started[worker] = slot, dict(environment)
        if self.is_broken:
            self.conductor.post(Ended(worker, is_well=False))

    def stop(self, worker, number):
        self.stopped.put((worker, number))
        self.conductor.post(Ended(worker, is_well=False))


class Job:
    """A conductor that is run by the test, one turn after the other."""

    def __init__(self, folder, *, clock=None, listen_at=None, **options) -> None:
        self.starter, self.worlds, self.clients, self.silent = Starter(), [], {}, []
        self.waits = []
        self.clock = clock or ManualClock()
        options.setdefault("wanted", 2)
        self.conductor = self.starter.conductor = Conductor(
            CoordinatorOptions(**options),
            SECRET,
            self.starter,
            Surroundings(
                listen_at or f"unix:{folder}/launcher",
                lambda world: f"file:///world-{world.generation}-{world.port}",
                clock=self.clock,
                tell_of_silence=lambda *said: self.silent.append(said),
                tell_of_world=self.worlds.append,
                tell_of_wait=self.waits.append,
            ),
        )

    def turn(self):
        for key, _ in self.conductor._selector.select(0.05):
            key.data()
        self.conductor.pass_time()

    def post(self, event):
        self.conductor.post(event)
        self.turn()

    def client(self, worker, heartbeat=10.0):
        """The worker's end of its link; the greeting takes some turns."""
        environment = self.starter.started[worker][1]
        made = Queue()
        thread = threading.Thread(
            target=lambda: made.put(
                LauncherClient(
                    environment[ADDRESS], SECRET.of(PURPOSE), int(environment[WORKER]), heartbeat
                )
            )
        )
        thread.start()
        while thread.is_alive():
            self.turn()
        client = self.clients[worker] = made.get(timeout=SECONDS)
        return client

    def places(self, **ports):
        """What the workers are told who ask at once, each with its port."""
        told = {}
        threads = [
            threading.Thread(
                target=lambda worker=int(name[1:]), port=port: told.update(
                    {worker: self.clients[worker].next_place(port)}
                )
            )
            for name, port in ports.items()
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self.turn()
        return told

    def close(self):
        for client in self.clients.values():
            client._line.close()
        self.conductor.close()
        for client in self.clients.values():
            client.close()


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path)
    yield job
    job.close()


def test_workers_are_started_in_the_slots_that_were_found_and_told_where_they_are(job):
    job.post(HostsFound((("a", 1), ("b", 1))))
    slots = {worker: slot for worker, (slot, _) in job.starter.started.items()}
    assert slots == {0: Slot("a", 0), 1: Slot("b", 0)}
    environment = job.starter.started[1][1]
    assert environment["HOROVOD_HOSTNAME"] == "b"
    assert environment["HOROVOD_ELASTIC"] == environment[WORKER] == "1"
    assert environment[ADDRESS] == job.conductor.server.address
    assert not any("SECRET" in name for name in environment)


def test_a_world_meets_where_rank_0_has_a_port(job):
    job.post(HostsFound((("a", 1), ("b", 1))))
    job.client(0)
    job.client(1)
    told = job.places(w0=4000, w1=4001)
    assert {worker: (place.rank, place.size) for worker, place in told.items()} == {
        0: (0, 2),
        1: (1, 2),
    }
    assert {place.store for place in told.values()} == {"file:///world-1-4000"}
    assert [(world.generation, world.hosts) for world in job.worlds] == [(1, ("a", "b"))]


def test_a_worker_that_ends_is_replaced_and_told_of(job):
    job.post(HostsFound((("a", 2),)))
    job.client(0)
    job.client(1)
    job.places(w0=1, w1=2)
    job.post(Ended(1, is_well=False))
    assert job.starter.started[2][0] == Slot("a", 1)
    told = job.places(w0=3)
    assert (told[0].generation, told[0].rank, told[0].size) == (2, 0, 1)


def test_what_the_ranks_of_the_last_world_have_not_returned_is_told(job):
    conductor = job.conductor
    assert "before the ranks had met" in conductor.missing_results({0: "of no rank"})
    job.post(HostsFound((("a", 2),)))
    job.client(0)
    job.client(1)
    job.places(w0=1, w1=2)
    assert conductor.last_world == (0, 1)
    assert conductor.missing_results({0, 1}) == ""
    job.post(Ended(1, is_well=False))
    job.places(w0=3)
    assert conductor.last_world == (0,)
    assert conductor.missing_results({0: "now", 1: "of an older world"}) == ""
    assert conductor.missing_results({1}).endswith(
        "1 ranks that met last these have returned nothing: 0"
    )


def test_workers_share_a_store_that_outlives_them(job):
    job.post(HostsFound((("a", 2),)))
    answers = Queue()
    first = job.client(0)
    thread = threading.Thread(target=lambda: answers.put(first.ask_store("set", "k", "é\n")))
    thread.start()
    while thread.is_alive():
        job.turn()
    first.close()
    job.post(Ended(0, is_well=False))
    second = job.client(1)
    thread = threading.Thread(target=lambda: answers.put(second.ask_store("get", "k")))
    thread.start()
    while thread.is_alive():
        job.turn()
    assert [answers.get(), answers.get()] == ["é\n", "é\n"]


def test_it_runs_in_a_thread_until_all_have_finished(tmp_path):
    job = Job(tmp_path, wanted=1)
    thread = threading.Thread(target=job.conductor.run)
    thread.start()
    job.conductor.post(HostsFound((("a", 1),)))
    job.conductor.post(Ended(0, is_well=True))
    thread.join(SECONDS)
    assert job.conductor.is_over
    assert job.conductor.is_well
    assert job.conductor.reason is None
    job.close()


def test_a_job_that_fails_stops_who_is_left_and_says_why(tmp_path):
    job = Job(tmp_path, wanted=2, min_workers=2, slot_failures=1)
    thread = threading.Thread(target=job.conductor.run)
    thread.start()
    job.conductor.post(HostsFound((("a", 2),)))
    job.conductor.post(Ended(0, is_well=False))
    thread.join(SECONDS)
    assert "there is no slot for another" in job.conductor.reason
    assert job.starter.stopped.get(timeout=SECONDS) == (1, signal.SIGTERM)
    job.close()


def test_a_worker_that_cannot_be_started_counts_as_one_that_has_failed(tmp_path):
    job = Job(tmp_path, wanted=1, slot_failures=2)
    job.starter.is_broken = True
    job.post(HostsFound((("a", 1),)))
    job.turn()
    job.turn()
    assert "failed before the ranks had met" in job.conductor.reason
    job.close()


def test_nobody_is_waited_for_longer_than_the_clock_says(tmp_path):
    clock = ManualClock()
    job = Job(tmp_path, clock=clock, start_seconds=30.0)
    job.post(HostsFound((("a", 2),)))
    assert job.conductor.seconds_to_next() == 30.0
    job.client(0)
    clock.advance(30.0)
    assert job.places(w0=5)[0].size == 1
    job.close()


def test_who_comes_when_all_is_over_is_sent_away(job):
    job.post(HostsFound((("a", 2),)))
    job.client(0)
    job.client(1)
    job.places(w0=1, w1=2)
    job.post(Ended(1, is_well=False))
    job.client(2)
    job.post(Ended(0, is_well=True))
    assert job.starter.stopped.get(timeout=SECONDS) == (2, signal.SIGKILL)


def test_what_is_posted_after_the_end_is_for_nobody(job):
    job.conductor.close()
    job.conductor.post(Ended(0, is_well=True))
    job.conductor.close()


def test_a_worker_whose_host_goes_is_told_so_when_it_asks(job):
    job.post(HostsFound((("a", 1), ("b", 1))))
    job.client(1)
    job.post(HostsFound((("a", 1),)))
    assert job.starter.stopped.get(timeout=SECONDS) == (1, signal.SIGKILL)
    job.client(0)
    assert not isinstance(job.places(w0=1)[0], Over)


def test_a_worker_that_falls_silent_is_stopped_and_replaced_without_waiting_for_its_end(tmp_path):
    # Not by a unix socket, where the CPU time of this very process would be a sign of life.
    job = Job(tmp_path, listen_at="tcp:127.0.0.1:0")
    try:
        job.post(HostsFound((("a", 2),)))
        job.client(0, heartbeat=0.0)  # it never pings
        began = job.clock.now()
        while not job.silent:
            assert job.clock.now() - began < 10.0
            job.clock.advance(job.conductor.seconds_to_next())
            job.turn()
        assert job.silent == [(0, "it has been silent for 10 s")]
        assert job.starter.stopped.get_nowait() == (0, signal.SIGKILL)
        assert sorted(job.starter.started) == [0, 1, 2]
        job.turn()  # what the starter says of its end makes no difference
        assert sorted(job.starter.started) == [0, 1, 2]
    finally:
        job.close()


def test_it_is_told_once_for_whom_the_others_wait(job):
    job.post(HostsFound((("a", 1), ("b", 1))))
    job.conductor._handle(CameReady(0))
    job.conductor.pass_time()
    assert job.conductor.seconds_to_next() == 3.0
    for _ in range(3):
        job.clock.advance(3.0)
        job.conductor.pass_time()
    assert job.waits == [
        "worker 1 on host b has been started and has not come; 1 other has, and will wait 597 s "
        "at most"
    ]
    job.post(Ended(0, is_well=False))
    job.conductor._handle(CameReady(2))
    for _ in range(2):  # another wait
        job.conductor.pass_time()
        job.clock.advance(3.0)
    job.conductor.pass_time()
    assert len(job.waits) == 2
