"""The gateway of a host: where there is one, and what it learns."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from lockstitch.attach.asking import Answers
from lockstitch.attach.far import PURPOSE, ask_far
from lockstitch.attach.folder import Elsewhere
from lockstitch.attach.presence import Presence
from lockstitch.attach.sources import Sources
from lockstitch.attach.values import FarQuestion, Question
from lockstitch.ids import WorkerInfo
from lockstitch.link.ports import listen
from lockstitch.rendezvous import Member, gateway
from lockstitch.rendezvous.gateway import Gateway, HostGateway, gateways_of
from lockstitch.rendezvous.roster import Table
from lockstitch.rendezvous.static_group import StaticRoster
from lockstitch.trust import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECRET = Secret(b"s" * 32)
FREE = {"LOCKSTITCH_ATTACH_PORT": "0"}


class Told:
    """A presence that keeps what it is told."""

    is_shown = True

    def __init__(self) -> None:
        self.told: list[tuple[str, Elsewhere]] = []

    def tell_elsewhere(self, address: str, elsewhere: Elsewhere) -> None:
        self.told.append((address, elsewhere))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Told:
    presence = Told()
    monkeypatch.setenv("LOCKSTITCH_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(gateway, "PRESENCE", presence)
    return presence


@pytest.fixture
def host(told: Told) -> Iterator[HostGateway]:
    made = HostGateway()
    yield made
    made.close()


def roster(*members: tuple[str, str], rank: int = 0) -> StaticRoster:
    """Of members that are given by their host and gateway."""
    listed = [
        Member(WorkerInfo(f"w{number}", number), (), host, gateway=address)
        for number, (host, address) in enumerate(members)
    ]
    return StaticRoster(listed[rank].info, Table(listed), lambda: None)


@pytest.mark.parametrize(
    ("at", "environment"),
    [
        (None, FREE),
        ("127.0.0.1", {}),
        ("10.0.0.1", {"LOCKSTITCH_PORT_RANGE": "20000-20009"}),
        ("127.0.0.1", {**FREE, "LOCAL_RANK": "1"}),
        ("127.0.0.1", {**FREE, "OMPI_COMM_WORLD_LOCAL_RANK": "3"}),
        ("127.0.0.1", {**FREE, "LOCKSTITCH_ATTACH": "0"}),
        ("127.0.0.1", {"LOCKSTITCH_ATTACH_PORT": "many"}),
    ],
    ids=str,
)
def test_there_is_none_where_nobody_can_use_it_or_it_would_be_in_the_way(
    host: HostGateway, at: str | None, environment: dict[str, str]
) -> None:
    assert host.offer(at, SECRET, environment) == ""
    host.learn(roster(("a", "")), environment)


def test_there_is_none_without_a_secret(host: HostGateway) -> None:
    assert host.offer("127.0.0.1", None, FREE) == ""


def test_a_port_that_is_taken_costs_the_job_nothing(host: HostGateway) -> None:
    with listen("127.0.0.1", None, 1) as taken:
        port = {"LOCKSTITCH_ATTACH_PORT": str(taken.getsockname()[1])}
        assert host.offer("127.0.0.1", SECRET, port) == ""


def test_it_learns_the_gateways_of_the_other_hosts_group_by_group(
    host: HostGateway, told: Told
) -> None:
    own = host.offer("127.0.0.1", SECRET, {**FREE, "LOCAL_RANK": "0"})
    assert own == host.offer("127.0.0.1", SECRET, FREE)
    host.learn(roster(("a", own), ("b", "b:1"), ("b", "")), FREE)
    host.learn(roster(("a", own), ("c", "c:1")), FREE)
    secret = SECRET.of(PURPOSE).text()
    assert told.told == [
        (own, Elsewhere(("b:1",), secret)), (own, Elsewhere(("b:1", "c:1"), secret)),
    ]  # fmt: skip


def test_of_a_job_of_one_host_it_is_closed_unless_a_port_is_named(
    host: HostGateway, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "is_loopback", lambda _host: False)
    own = host.offer("127.0.0.1", SECRET, {})
    assert own
    host.learn(roster(("a", own), ("a", "")), {})
    assert (told.told, repr(host)) == ([], "<HostGateway · none>")
    own = host.offer("127.0.0.1", SECRET, FREE)
    host.learn(roster(("a", own)), FREE)
    assert told.told == [(own, Elsewhere((), SECRET.of(PURPOSE).text()))]


def test_when_its_process_is_gone_another_one_of_the_host_opens_it_again(
    host: HostGateway, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "answers_of_own_job", lambda _asked: Answers(unreached=["c"]))
    heirs = [HostGateway(), HostGateway()]
    own = host.offer("127.0.0.1", SECRET, FREE)
    group = (("a", own), ("a", ""), ("a", ""), ("b", "b:1"))
    host.learn(roster(*group), FREE)
    for number, heir in enumerate(heirs):
        heir.learn(roster(*group, rank=1 + number), FREE)
        heir.learn(roster(*group, rank=1 + number), FREE)
    try:
        for former in (lambda: host, lambda: heirs[0]):
            former().close()  # as the kernel does when a process ends
            deadline = time.monotonic() + 20
            while not any(own in repr(each) for each in heirs):
                assert time.monotonic() < deadline
                threading.Event().wait(0.01)
            heirs.sort(key=lambda each: own not in repr(each))  # the one that has it first
            answer = ask_far(own, SECRET.of(PURPOSE), FarQuestion(Question(seconds=0.1)))
            assert answer.unreached == ("c",)
        assert told.told == [(own, Elsewhere(("b:1",), SECRET.of(PURPOSE).text()))] * 3
    finally:
        for each in heirs:
            each.close()


def test_nobody_waits_to_answer_for_a_host_that_has_nobody_to_ask_it(told: Told) -> None:
    heir = HostGateway()
    heir.learn(roster(("a", "a:1"), ("a", ""), rank=1), {})
    heir.learn(roster(("a", ""), ("a", ""), ("b", "b:1"), rank=1), {})
    heir.learn(roster(("a", "a:1"), ("a", ""), ("b", "b:1"), rank=1), {"LOCKSTITCH_ATTACH": "0"})
    assert [each.name for each in threading.enumerate() if "heir" in each.name] == []


def test_each_other_host_counts_once_and_one_without_a_gateway_not_at_all() -> None:
    group = roster(("a", "a:1"), ("a", "a:2"), ("b", ""), ("b", "b:2"), ("b", "b:3"), ("c", ""))
    assert gateways_of(group) == ["b:2"]
    assert gateways_of(roster(("a", "a:1"), ("b", "b:1"), rank=1)) == ["a:1"]


def test_a_store_that_is_gone_costs_the_job_nothing(host: HostGateway, told: Told) -> None:
    class Gone(StaticRoster):
        def find(self, who: Any) -> Member | None:
            raise RuntimeError("the store is gone")

    host.offer("127.0.0.1", SECRET, FREE)
    group = roster(("a", ""), ("b", "b:1"))
    host.learn(Gone(group.me, Table(group.members()), lambda: None), FREE)
    assert told.told == []


def test_without_a_presence_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "PRESENCE", Presence(Sources()))
    assert HostGateway().offer("127.0.0.1", SECRET, FREE) == ""


def test_an_answer_may_be_longer_than_what_waits_in_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Answers(unreached=["x" * (1 << 24)])
    monkeypatch.setattr(gateway, "answers_of_own_job", lambda _asked: told)
    secret = SECRET.of(PURPOSE)
    made = Gateway("tcp:127.0.0.1:0", secret)
    try:
        assert ask_far(made.address, secret, FarQuestion(Question())).unreached == (
            "x" * (1 << 24),
        )
    finally:
        made.close()


def test_a_deputy_answers_those_whom_nobody_lets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "_DEPUTY_SECONDS", 0.2)
    monkeypatch.setattr(gateway, "answers_of_own_job", lambda _asked: Answers(unreached=["c"]))
    secret = SECRET.of(PURPOSE)
    with listen("127.0.0.1", None, 4) as listener:  # of a process that is stopped
        deputy = Gateway(f"fd:{os.dup(listener.fileno())}", secret, is_deputy=True)
        try:
            for _ in range(2):
                began_at = time.monotonic()
                asked = FarQuestion(Question(seconds=0.1))
                assert ask_far(deputy.address, secret, asked).unreached == ("c",)
                assert time.monotonic() - began_at > 0.1
            deputy.take_over()
            assert ask_far(deputy.address, secret, asked).unreached == ("c",)
        finally:
            deputy.close()


def test_a_deputy_leaves_those_alone_whom_the_gateway_lets_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway, "_DEPUTY_SECONDS", 0.2)
    answering: list[Gateway] = []
    monkeypatch.setattr(gateway, "answers_of_own_job", lambda _asked: Answers())
    monkeypatch.setattr(Gateway, "_hear", _noting(answering, Gateway._hear))
    secret = SECRET.of(PURPOSE)
    own = Gateway("tcp:127.0.0.1:0", secret)
    deputy = Gateway(f"fd:{os.dup(own.descriptor)}", secret, is_deputy=True)
    try:
        for _ in range(3):
            ask_far(own.address, secret, FarQuestion(Question(seconds=0.1)))
    finally:
        deputy.close()
        own.close()
    assert answering == [own] * 3


def _noting(answering: list[Gateway], hear: Callable[..., None]) -> Callable[..., None]:
    def noted(self: Gateway, *about: Any) -> None:
        answering.append(self)
        hear(self, *about)

    return noted
