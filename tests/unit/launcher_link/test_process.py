from __future__ import annotations

import os

import pytest

from lockstitch.launcher_link.client import ADDRESS, WORKER
from lockstitch.launcher_link.messages import RankAssignment, Update
from lockstitch.launcher_link.process import JobLink, WorkerDismissed
from lockstitch.trust.secret import VARIABLE
from tests.unit.launcher_link import launchers


@pytest.fixture
def fake_launcher(tmp_path, monkeypatch):
    with launchers.FakeLauncher(tmp_path) as fake_launcher:
        monkeypatch.setenv(ADDRESS, fake_launcher.address)
        monkeypatch.setenv(WORKER, "3")
        monkeypatch.setenv(VARIABLE, "5a" * 32)
        yield fake_launcher


def test_a_process_that_no_launcher_of_this_kind_started_has_no_link(monkeypatch):
    monkeypatch.delenv(ADDRESS, raising=False)
    link = JobLink()
    assert link.client() is None
    assert link.is_first_world()
    link.close()


def test_there_is_one_link_until_the_job_is_over_and_then_another(fake_launcher):
    link = JobLink()
    first = link.client()
    assert link.client() is first
    link.close()
    link.close()
    with pytest.raises(RuntimeError, match="gone"):
        first.next_place()
    second = link.client()
    assert second is not first
    link.close()


def test_who_takes_part_leaves_once_when_the_job_is_over(fake_launcher):
    left = []

    def leave():
        left.append(link.client().place)  # the link is still there

    link = JobLink()
    link.take_part(leave)
    link.take_part(leave)
    link.close()
    assert left == [None]
    link.close()
    assert left == [None]


def test_listeners_hear_of_updates_and_of_what_they_have_missed():
    class Client:
        last_update = Update(4, 1)
        place = RankAssignment(2, 0, 1, "")

    link, heard = JobLink(), []
    link._client = Client()
    assert not link.is_first_world()
    link.listen(heard.append)
    link._tell(Update(5, 2))
    link.forget(heard.append)
    link._tell(Update(6, 2))
    assert heard == [Update(4, 1), Update(5, 2)]


def test_a_forked_child_listens_to_nobody():
    link = JobLink()
    link.listen(print)
    link.take_part(print)
    child = os.fork()
    if child == 0:
        os._exit(bool(link._listeners or link._parts))
    assert os.waitpid(child, 0)[1] == 0
    assert link._listeners
    link.forget(print)


def test_a_program_without_work_ends_well():
    dismissed = WorkerDismissed("the training has finished")
    assert dismissed.code == 0
    assert isinstance(dismissed, SystemExit)
    assert "the training has finished" in str(dismissed)
