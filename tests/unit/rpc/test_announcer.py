"""Callbacks hear of everything, in order, also after one of them has failed."""

from __future__ import annotations

import logging
import threading

import pytest

from lockstitch.ids import WorkerInfo
from lockstitch.rpc.announcer import Announcer, MembershipEvent


class FakeAgent:
    def __init__(self) -> None:
        self.reported = []

    def report(self, error) -> None:
        self.reported.append(error)


class FakeWorker:
    name = "a"

    def __init__(self) -> None:
        self.agent = FakeAgent()
        self.adopted = []

    def adopt_thread(self) -> None:
        self.adopted.append(threading.current_thread().name)


def event(name: str) -> MembershipEvent:
    return MembershipEvent("joined", WorkerInfo(name, 0))


@pytest.fixture
def announcer():
    announcer = Announcer(FakeWorker())
    yield announcer
    announcer.close()


def test_what_was_before_comes_first_and_all_in_order(announcer):
    one, other = [], []
    announcer.announce(event("nobody-listens"))
    announcer.add(one.append, [event("a")])
    announcer.announce(event("b"))
    announcer.add(other.append, [])
    announcer.announce(event("c"))
    announcer.close()
    assert one == [event("a"), event("b"), event("c")]
    assert other == [event("c")]
    assert announcer._worker.adopted == ["a-membership"]


def test_who_is_removed_hears_no_more(announcer):
    heard = []
    announcer.add(heard.append, [])
    announcer.remove(heard.append)
    announcer.remove(heard.append)
    announcer.announce(event("a"))
    announcer.close()
    announcer.add(heard.append, [event("b")])
    assert heard == []


def test_an_error_is_reported_and_kept_and_the_others_are_told(announcer):
    heard = []

    def fail(event) -> None:
        raise KeyError(event.worker.name)

    announcer.add(fail, [])
    announcer.add(heard.append, [])
    announcer.announce(event("a"))
    announcer.announce(event("b"))
    announcer.close()
    assert heard == [event("a"), event("b")]
    assert [str(error) for error in announcer._worker.agent.reported] == ["'a'", "'b'"]
    assert str(announcer.error) == "'a'"


def test_who_has_joined_or_left_is_logged(announcer, caplog) -> None:
    with caplog.at_level(logging.INFO, "lockstitch"):
        announcer.announce(event("b"))
        announcer.announce(MembershipEvent("left", WorkerInfo("b", 0)))
        announcer.announce(MembershipEvent("died", WorkerInfo("c", 1)))  # logged elsewhere
    assert [each.getMessage() for each in caplog.records] == [
        "worker 'b' has joined",
        "worker 'b' has left",
    ]
    assert all(hasattr(each, "worker") for each in caplog.records)
