"""One question, one answer."""

from __future__ import annotations

import contextlib
import errno
import select
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from lockstitch.attach import endpoint as module
from lockstitch.attach.endpoint import QUESTIONS, Endpoint
from lockstitch.attach.folder import Entry
from lockstitch.attach.values import Question

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> Entry:
    return Entry(tmp_path, 10, 1)


@contextlib.contextmanager
def asking(place: Entry, content: bytes) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(place.address))
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        yield connection


def test_a_thread_answers_and_a_loop_does(place: Entry) -> None:
    heard: list[Question] = []

    def answer(question: Question) -> bytes:
        heard.append(question)
        return b"told"

    question = Question(stacks=True, seconds=2.5)
    endpoint = Endpoint(place, answer)
    with asking(place, QUESTIONS.encode(question)) as connection:
        assert select.select([endpoint], [], [], 30)[0]
        endpoint.take()
        assert connection.recv(100) == b"told"
    endpoint.serve()
    with asking(place, QUESTIONS.encode(question)) as connection:
        assert connection.recv(100) == b"told"
    assert heard == [question, question]
    endpoint.close()
    endpoint.close()
    assert not place.address.exists()


@pytest.mark.parametrize("content", [b"", b"{", b'{"stacks": 3}', b"[" * (1 << 17)])
def test_what_is_no_question_gets_no_answer_and_does_no_harm(place: Entry, content: bytes) -> None:
    endpoint = Endpoint(place, lambda _question: b"told")
    endpoint.serve()
    with contextlib.suppress(ConnectionError), asking(place, content) as connection:
        assert connection.recv(100) == b""
    with asking(place, QUESTIONS.encode(Question())) as connection:
        assert connection.recv(100) == b"told"
    endpoint.close()


def test_it_answers_again_when_files_can_be_opened_again(
    place: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [OSError(errno.EMFILE, "too many open files")]
    accept = socket.socket.accept

    def accept_when_there_is_room(listener: socket.socket) -> object:
        if full:
            raise full.pop()
        return accept(listener)

    endpoint = Endpoint(place, lambda _question: b"told")
    monkeypatch.setattr(socket.socket, "accept", accept_when_there_is_room)
    endpoint.serve()
    with asking(place, QUESTIONS.encode(Question())) as connection:
        assert connection.recv(100) == b"told"
    assert not full
    endpoint.close()


def test_another_user_is_sent_away_without_a_word(
    place: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = Endpoint(place, lambda _question: b"told")
    endpoint.serve()
    monkeypatch.setattr(module, "peer_credentials", lambda _socket: (1, 54321))
    with contextlib.suppress(ConnectionError), asking(place, b"") as connection:
        assert connection.recv(100) == b""
    endpoint.close()


def test_a_forked_child_lets_go_of_the_socket_and_leaves_the_entry(place: Entry) -> None:
    endpoint = Endpoint(place, lambda _question: b"told")
    endpoint.abandon()
    assert place.address.exists()
    with pytest.raises(ConnectionRefusedError), asking(place, b""):
        pass


def test_no_thread_of_it_takes_a_signal_of_the_programs(place: Entry) -> None:
    masks: list[set[int]] = []

    def answer(_question: Question) -> bytes:
        masks.append({int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, ())})
        return b"told"

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    endpoint = Endpoint(place, answer)
    endpoint.serve()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    with asking(place, QUESTIONS.encode(Question())) as connection:
        assert connection.recv(100) == b"told"
    endpoint.close()
    (blocked,) = masks
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD} <= blocked
    assert signal.SIGSEGV not in blocked
