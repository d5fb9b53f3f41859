"""Asking the workers of other hosts; what is asked is played by a gateway of this process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from lockstitch.attach.asking import Answers, all_entries
from lockstitch.attach.far import PURPOSE, UnreachedError, add, ask_everywhere, ask_far
from lockstitch.attach.folder import Elsewhere
from lockstitch.attach.presence import Presence
from lockstitch.attach.sources import Sources
from lockstitch.attach.values import FarAnswer, FarQuestion, Question, WorkerReport
from lockstitch.link.ports import listen
from lockstitch.rendezvous.gateway import Gateway
from lockstitch.trust import Secret
from tests.unit.attach.cards import card, process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = Secret(b"s" * 32).of(PURPOSE)


@pytest.fixture
def presence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Presence]:
    monkeypatch.setenv("LOCKSTITCH_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("LOCKSTITCH_JOB", "mine/1")
    sources = Sources()
    sources.workers.append(lambda _question: [WorkerReport("ps", 0)])
    presence = Presence(sources)
    presence.show()
    yield presence
    presence.close()


@pytest.fixture
def gateway(presence: Presence) -> Iterator[Gateway]:
    made = Gateway("tcp:127.0.0.1:0", SECRET)
    yield made
    made.close()
    made.close()


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_gateway_tells_what_the_processes_of_its_job_say(
    gateway: Gateway, is_whole: bool
) -> None:
    for _ in range(2):
        told = ask_far(gateway.address, SECRET, FarQuestion(Question(), is_whole))
        (report,) = told.reports
        assert (report.card.pid, report.workers[0].name) == (os.getpid(), "ps")


def test_who_has_another_secret_is_told_nothing(gateway: Gateway) -> None:
    with pytest.raises(UnreachedError, match="cannot be asked: .*secret"):
        ask_far(gateway.address, Secret(b"t" * 32).of(PURPOSE), FarQuestion(Question()))
    with pytest.raises(UnreachedError, match="cannot be asked"):  # that of the job itself
        ask_far(gateway.address, Secret(b"s" * 32), FarQuestion(Question()))


def test_where_nobody_listens_that_is_told() -> None:
    with listen("127.0.0.1", None, 1) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UnreachedError, match=f"127.0.0.1:{port} cannot be asked: .*refused"):
        ask_far(f"127.0.0.1:{port}", SECRET, FarQuestion(Question()))
    with pytest.raises(ValueError, match="nowhere"):
        ask_far("nowhere", SECRET, FarQuestion(Question()))


def test_a_job_is_asked_on_all_of_its_hosts_and_each_process_counts_once(
    presence: Presence, gateway: Gateway
) -> None:
    others = (gateway.address, "127.0.0.1:1")
    presence.tell_elsewhere(gateway.address, Elsewhere(others, SECRET.text()))
    answers = ask_everywhere(all_entries(), Question())
    assert [each.card.pid for each in answers.reports] == [os.getpid()]
    assert answers.reports[0].card.gateway == gateway.address
    (unreached,) = answers.unreached
    assert unreached.startswith("127.0.0.1:1 cannot be asked")


def test_answers_of_hosts_are_put_together() -> None:
    answers = Answers([process(10)])
    add(answers, FarAnswer((process(10), process(10, born=2), process(11)), (), ("b is gone",)))
    assert [(each.card.pid, each.card.born) for each in answers.reports] == [
        (10, 1), (10, 2), (11, 1),
    ]  # fmt: skip
    assert answers.unreached == ["b is gone"]
    assert card(10) in answers.cards()
