"""Many processes are asked at once, and each that does not answer is named."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstitch.attach import system
from lockstitch.attach.asking import GRACE_SECONDS, all_entries, ask
from lockstitch.attach.endpoint import Endpoint
from lockstitch.attach.folder import Entry, make_folder
from lockstitch.attach.report import REPORTS, make_report
from lockstitch.attach.sources import Sources
from lockstitch.attach.values import Question
from tests.unit.attach.cards import card

SHORT = Question(seconds=0.05 - GRACE_SECONDS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "run"
    make_folder(path)
    monkeypatch.setenv("LOCKSTITCH_RUNTIME_DIR", str(path))
    return path


def test_all_answer_and_are_told_by_number(folder: Path) -> None:
    endpoints = []
    for pid in (30, 4, 200):
        entry = Entry(folder, pid, 1)
        told = REPORTS.encode(make_report(card(pid), Sources(), Question()))
        endpoints.append(Endpoint(entry, lambda _question, told=told: told))  # type: ignore[misc]
        endpoints[-1].serve()
        entry.write_card(card(pid))
    answers = ask(all_entries(), Question())
    assert [each.card.pid for each in answers.reports] == [4, 30, 200]
    assert answers.silent == []
    for endpoint in endpoints:
        endpoint.close()
    assert all_entries() == []


def test_nothing_was_ever_listed(folder: Path) -> None:
    folder.rmdir()
    assert all_entries() == []


def test_who_does_not_answer_is_told_with_its_card_and_what_the_system_says(folder: Path) -> None:
    me, born = os.getpid(), system.born(os.getpid()) or 0
    entry = Entry(folder, me, born)
    entry.write_card(card(me, names=("ps",)))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(entry.address))
        listener.listen()
        began = time.monotonic()
        answers = ask(all_entries(), SHORT)
        assert time.monotonic() - began < 10
    (silence,) = answers.silent
    assert silence.card.names == ("ps",)
    assert "did not answer within" in silence.why
    assert silence.system is not None
    assert silence.system.threads >= 1


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_for_those_that_are_stopped_nobody_waits_to_the_end(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        entry = Entry(folder, child.pid, system.born(child.pid) or 0)
        entry.write_card(card(child.pid))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(entry.address))
            listener.listen()
            child.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            (silence,) = ask(all_entries(), Question(seconds=60)).silent
            assert time.monotonic() - began < 30
            child.send_signal(signal.SIGCONT)
        child.kill()
    assert silence.system is not None
    assert silence.system.state == "T"
    assert "did not answer within" in silence.why


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "it closed the connection without an answer"),
        (b'{"card": 3}', "it runs Lockstitch 0.7, whose answers are not understood here"),
    ],
)
def test_an_answer_that_is_none_is_said_to_be_so(folder: Path, answer: bytes, why: str) -> None:
    entry = Entry(folder, 10, 1)
    endpoint = Endpoint(entry, lambda _question: answer)
    endpoint.serve()
    entry.write_card(card(10, version="0.7"))
    (silence,) = ask([entry], Question()).silent
    endpoint.close()
    assert silence.why == why


def test_those_that_are_gone_are_left_out_and_removed(folder: Path) -> None:
    entry = Entry(folder, 2**22 + 1, 1)
    entry.write_card(card(entry.pid))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(entry.address))
    assert all_entries() == []
    assert list(folder.iterdir()) == []


def test_what_one_has_left_that_ended_before_it_listened_is_removed_after_a_while(
    folder: Path,
) -> None:
    begins, ended = Entry(folder, 30, 1), Entry(folder, 31, 1)
    begins.write_card(card(30))
    ended.write_card(card(31))
    os.utime(folder / "31-1.card", (1, 1))
    assert all_entries() == []
    assert [path.name for path in folder.iterdir()] == ["30-1.card"]
