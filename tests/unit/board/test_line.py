from __future__ import annotations

import pytest

from lockstitch.board.line import Line
from lockstitch.board.messages import Hello, Over, Ready, Update
from lockstitch.errors import RemoteProtocolError

SECRET, CHALLENGE = b"secret", b"c" * 16


def ends(secret=SECRET, challenge=CHALLENGE):
    launcher = Line(SECRET, CHALLENGE, is_launcher=True)
    return launcher, Line(secret, challenge, is_launcher=False)


def test_messages_arrive_however_the_bytes_are_cut():
    launcher, worker = ends()
    content = worker.send(Hello(1)) + worker.send(Ready())
    heard = [message for byte in content for message in launcher.receive(bytes([byte]))]
    assert heard == [Hello(1), Ready()]
    assert worker.receive(launcher.send(Over("x")) + launcher.send(Update(1, 2))) == [
        Over("x"),
        Update(1, 2),
    ]


@pytest.mark.parametrize(
    ("secret", "challenge"), [(b"guessed", CHALLENGE), (SECRET, b"d" * 16)], ids=["key", "replay"]
)
def test_who_does_not_know_the_secret_or_speaks_of_another_time_is_not_heard(secret, challenge):
    launcher, stranger = ends(secret, challenge)
    with pytest.raises(RemoteProtocolError, match="proof"):
        launcher.receive(stranger.send(Hello(0)))


def test_a_message_cannot_be_repeated_left_out_changed_or_turned_round():
    for disturb in (
        lambda first, second: first + first,
        lambda first, second: second,
        lambda first, second: first.replace(b"1", b"2"),
    ):
        launcher, worker = ends()
        first, second = worker.send(Hello(1)), worker.send(Ready())
        with pytest.raises(RemoteProtocolError, match="proof"):
            launcher.receive(disturb(first, second))
    _, worker = ends()
    with pytest.raises(RemoteProtocolError, match="proof"):
        worker.receive(worker.send(Ready()))


def test_a_stranger_cannot_make_the_other_end_keep_much():
    launcher, _ = ends()
    with pytest.raises(RemoteProtocolError, match="too long"):
        launcher.receive(b"\xff" * 36)
