"""The groups of a process, ended with it."""

from __future__ import annotations

from lockstitch.attach.sources import SOURCES
from lockstitch.attach.values import GroupReport, Question
from lockstitch.c10d.open_groups import OpenGroups
from lockstitch.inquiry import INQUIRY


class Group:
    def __init__(self, groups: OpenGroups) -> None:
        self._groups = groups
        self.ends = 0
        groups.add(self)

    def shutdown(self) -> None:
        self.ends += 1
        self._groups.remove(self)

    def report(self) -> None:
        """Others wait for nothing here."""

    def describe_waits(self) -> list[str]:
        return ["waits for a test"]

    def told(self, question: Question) -> GroupReport:
        return GroupReport("c10d", "0", 0, 2)


def test_all_that_are_open_are_ended_once() -> None:
    groups = OpenGroups()
    SOURCES.groups.pop()
    one, other = Group(groups), Group(groups)
    one.shutdown()
    groups.shutdown()
    groups.shutdown()
    assert (one.ends, other.ends) == (1, 1)


def test_what_they_wait_for_is_told_while_there_are_any() -> None:
    groups = OpenGroups()
    group = Group(groups)
    tell, report = INQUIRY.waits.pop(), SOURCES.groups.pop()
    assert tell() == ["waits for a test"]
    assert report(Question()) == [GroupReport("c10d", "0", 0, 2)]
    groups.forget()
    assert tell() is None
    assert report(Question()) == []
    group.shutdown()
