from __future__ import annotations

import pytest

from lockstitch.errors import RemoteProtocolError
from lockstitch.launch.agent.messages import (
    FROM_AGENT,
    HELLO_CODEC,
    TO_AGENT,
    Begin,
    Closing,
    Ended,
    Hello,
    NotStarted,
    Output,
    Remark,
    Signal,
    Start,
    Started,
)

BEGIN = Begin(("train", "--fast"), "5e" * 32, 5.0, 60.0)


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (TO_AGENT, BEGIN),
        (TO_AGENT, Start(3, (("RANK", "3"), ("ODD", "é\n")), 2)),
        (TO_AGENT, Signal(15)),
        (TO_AGENT, Signal(9, 3)),
        (FROM_AGENT, Started(3, 4711)),
        (FROM_AGENT, Output(3, "stderr", bytes(range(256)).decode("latin-1"))),
        (FROM_AGENT, Ended(3, -9, "out of memory")),
        (FROM_AGENT, NotStarted(3, "no such file")),
        (FROM_AGENT, Remark("worker 3 has not begun to listen")),
        (FROM_AGENT, Closing()),
    ],
    ids=lambda it: type(it).__name__,
)
def test_each_message_is_one_line_and_comes_back(codec, message):
    line = codec.encode(message)
    assert b"\n" not in line
    assert codec.decode(line) == message


def test_a_greeting_of_another_version_is_understood():
    later = b'{"version":"7.0","place":"/there","new":[1]}'
    assert HELLO_CODEC.decode(later) == Hello("7.0", "/there")
    assert HELLO_CODEC.decode(b'{"version":"0.0"}') == Hello("0.0")


def test_the_secret_does_not_show_itself():
    assert BEGIN.secret not in repr(BEGIN)


def test_what_is_said_the_other_way_is_refused():
    with pytest.raises(RemoteProtocolError):
        FROM_AGENT.decode(TO_AGENT.encode(Signal(15)))
