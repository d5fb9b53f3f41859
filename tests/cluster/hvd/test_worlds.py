from __future__ import annotations

import threading
from queue import Queue

import pytest

from lockstitch.hvd.worlds import Worlds
from lockstitch.launcher_link import Over, RankAssignment, Ready, Update, Void
from lockstitch.launcher_link.client import ADDRESS, WORKER
from lockstitch.launcher_link.process import JobLink
from lockstitch.rendezvous import open_store
from lockstitch.trust.secret import VARIABLE
from tests.unit.launcher_link import launchers

SECONDS = 60


@pytest.fixture
def fake_launcher(tmp_path, monkeypatch):
    with launchers.FakeLauncher(tmp_path) as fake_launcher:
        for name, value in {
            ADDRESS: fake_launcher.address,
            VARIABLE: "5a" * 32,
            WORKER: "0",
        }.items():
            monkeypatch.setenv(name, value)
        for name in ("HOROVOD_RANK", "HOROVOD_SIZE"):  # set by whoever gets a place
            monkeypatch.setenv(name, "0")
        yield fake_launcher


@pytest.fixture
def job(fake_launcher):
    job = JobLink()
    yield job
    job.close()


def answer(fake_launcher, message):
    worker, said = fake_launcher.heard.get(timeout=SECONDS)
    assert worker == 0
    assert isinstance(said, Ready)
    assert said.port > 0
    fake_launcher.tell(0, message)


def opening(job, opened):
    """A thread that goes into the next world."""

    def enter():
        try:
            opened.put(Worlds().open(job.client()))
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            opened.put(error)

    thread = threading.Thread(target=enter)
    thread.start()
    return thread


def test_a_plain_environment_names_no_launcher(monkeypatch):
    monkeypatch.delenv(ADDRESS, raising=False)
    assert JobLink().client() is None


def test_the_launcher_says_where_a_process_belongs(fake_launcher, job):
    opened = Queue()
    for generation in (1, 2):
        thread = opening(job, opened)
        answer(fake_launcher, RankAssignment(generation, 0, 1, "unused"))
        session = opened.get(timeout=SECONDS)
        assert (session.rank, session.size) == (0, 1)
        session.shutdown()
        thread.join()


def test_who_is_of_no_use_any_more_ends_well(fake_launcher, job):
    opened = Queue()
    thread = opening(job, opened)
    answer(fake_launcher, Over("the training has finished"))
    error = opened.get(timeout=SECONDS)
    assert isinstance(error, SystemExit)
    assert error.code == 0
    thread.join()


def test_who_waits_for_a_rank_that_has_died_is_told_and_asks_again(fake_launcher, job, tmp_path):
    opened = Queue()
    thread = opening(job, opened)
    answer(fake_launcher, RankAssignment(1, 0, 2, f"file://{tmp_path}/world-1"))
    fake_launcher.tell(0, Void(1))
    answer(fake_launcher, RankAssignment(2, 0, 1, "unused"))
    session = opened.get(timeout=SECONDS)
    assert session.size == 1
    session.shutdown()
    thread.join()


def test_listeners_hear_updates_until_they_are_forgotten(fake_launcher, job):
    heard = Queue()
    job.listen(heard.put)
    fake_launcher.wait_for_worker(0)
    fake_launcher.tell(0, Update(1, 2))
    assert heard.get(timeout=SECONDS) == Update(1, 2)
    late = Queue()
    job.listen(late.put)
    assert late.get(timeout=SECONDS) == Update(1, 2)
    job.forget(late.put)
    fake_launcher.tell(0, Update(2, 2))
    assert heard.get(timeout=SECONDS) == Update(2, 2)
    assert late.empty()


def test_who_has_met_but_waits_behind_the_door_is_told_too(
    fake_launcher, job, tmp_path, monkeypatch
):
    knocks = Queue()
    monkeypatch.setattr("lockstitch.collectives.opening.end_introduction", knocks.put)
    opened = Queue()
    thread = opening(job, opened)
    answer(fake_launcher, RankAssignment(1, 0, 2, f"file://{tmp_path}/world-1"))
    meeting = open_store(f"file://{tmp_path}/world-1", 1, 2, SECONDS)
    while not meeting.check(["reductions/meeting/0/0"]):  # it has come, and waits
        pass
    fake_launcher.tell(0, Void(1))
    assert knocks.get(timeout=SECONDS).startswith("reductions-")
    answer(fake_launcher, Over("that is enough"))
    assert isinstance(opened.get(timeout=SECONDS), SystemExit)
    thread.join()
