"""Records arrive as they were sent, or the line ends: whoever is between the two ends."""

from __future__ import annotations

import re
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstitch import __version__
from lockstitch.errors import HandshakeError, RemoteProtocolError
from lockstitch.link import greetings
from lockstitch.link.authentication import MAC_BYTES
from lockstitch.link.handshake import SessionKeys
from lockstitch.link.line import Line, call
from lockstitch.testing import ManualClock
from tests.unit.link.pairs import HERE, OTHER_SECRET, SECRET, THERE, End, guest, pair

MOST = 1 << 10
KEYS = SessionKeys(b"a" * 32, b"b" * 32)


def lines(most_bytes: int = MOST) -> tuple[Line[End], Line[End]]:
    near, far = pair()
    return (
        Line(near, KEYS, most_bytes),
        Line(far, SessionKeys(KEYS.incoming, KEYS.outgoing), most_bytes),
    )


def everything(line: Line[End]) -> list[bytes]:
    """All that has come by now."""
    found: list[bytes] = []
    while line.stream.pieces:
        found += line.read(0)
    return found


def read_to_the_end(line: Line[End], found: list[bytes]) -> None:
    while True:
        found.extend(line.read(0))


# ---------------------------------------------------------------- records


def test_records_come_whole_and_in_order_in_both_directions() -> None:
    near, far = lines()
    assert near.send(b"one") == 4 + 3 + MAC_BYTES
    near.send(b"x" * MOST)
    far.send(b"back")
    assert everything(far) == [b"one", b"x" * MOST]
    assert everything(near) == [b"back"]
    with pytest.raises(BlockingIOError):
        list(near.read(0))


def test_a_ping_is_noted_and_given_to_nobody() -> None:
    near, far = lines()
    near.ping()
    near.send(b"one")
    near.ping()
    assert everything(far) == [b"one"]
    assert far.heard == 3
    near.ping()
    far.stream.pieces[0] = far.stream.pieces[0][:-1] + bytes([far.stream.pieces[0][-1] ^ 1])
    with pytest.raises(RemoteProtocolError):
        everything(far)


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=5), st.integers(1, 40))
def test_records_come_whole_however_the_bytes_are_cut(records: list[bytes], size: int) -> None:
    near, far = lines()
    for record in records:
        near.send(record)
    said = b"".join(near.stream.sent)
    far.stream.pieces.clear()
    far.stream.pieces.extend(said[at : at + size] for at in range(0, len(said), size))
    assert everything(far) == records


@settings(max_examples=200)
@given(st.integers(0, 2), st.integers(0, 8 * (4 + 5 + MAC_BYTES) - 1))
def test_any_flipped_bit_ends_the_line_before_the_record_is_read(which: int, bit: int) -> None:
    near, far = lines()
    for number in range(3):
        near.send(b"rec-%d" % number)
    flipped = bytearray(far.stream.pieces[which])
    flipped[bit // 8] ^= 1 << bit % 8
    far.stream.pieces[which] = bytes(flipped)
    near.close()  # else it waits for the rest of a longer record
    found: list[bytes] = []
    with pytest.raises((RemoteProtocolError, ConnectionError)):
        read_to_the_end(far, found)
    assert found == [b"rec-%d" % number for number in range(which)]


@pytest.mark.parametrize(
    "disturb",
    [
        lambda first, second, _back: [first, first, second],
        lambda first, second, _back: [second],
        lambda first, second, _back: [second, first],
        lambda first, second, back: [back],
        lambda first, second, _back: [first[:-MAC_BYTES] + bytes(MAC_BYTES)],
        lambda first, second, _back: [first[:-MAC_BYTES] + second[-MAC_BYTES:]],
        lambda first, second, _back: [first[:-1], second],
    ],
    ids=["repeated", "left out", "reordered", "reflected", "no seal", "another's seal", "cut"],
)
def test_a_record_cannot_be_repeated_left_out_reordered_or_reflected(disturb: Any) -> None:
    near, far = lines()
    near.send(b"first")
    near.send(b"other")
    far.send(b"first")
    far.stream.pieces.clear()
    far.stream.pieces.extend(disturb(*near.stream.sent, *far.stream.sent))
    with pytest.raises(RemoteProtocolError, match="seal is broken"):
        everything(far)


def test_without_keys_records_are_whole_but_not_sealed() -> None:
    near, far = pair()
    line = Line(near, None, MOST)
    assert line.send(b"one") == 4 + 3
    line.send(b"two")
    assert everything(Line(far, None, MOST)) == [b"one", b"two"]


def test_records_of_another_connection_are_not_heard() -> None:
    near, _ = lines()
    near.send(b"record")
    _, far = pair()
    far.pieces.extend(near.stream.sent)
    with pytest.raises(RemoteProtocolError, match="seal is broken"):
        list(Line(far, SessionKeys(b"a" * 32, b"c" * 32), MOST).read(0))


@pytest.mark.parametrize("size", [MOST + 1, (1 << 32) - 1])
def test_nobody_can_make_the_other_end_keep_much(size: int) -> None:
    _, far = lines()
    far.stream.pieces.append(struct.pack("<I", size))
    with pytest.raises(RemoteProtocolError, match=f"a record of {size} bytes"):
        list(far.read(0))


def test_a_record_that_is_cut_off_is_not_read() -> None:
    near, far = lines()
    near.send(b"record")
    far.stream.pieces[0] = far.stream.pieces[0][:-1]
    near.close()
    assert list(far.read(0)) == []
    with pytest.raises(ConnectionError, match="has closed"):
        list(far.read(0))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ConnectionResetError(), BlockingIOError()])
def test_whatever_interrupts_a_send_ends_the_line(error: BaseException) -> None:
    near, far = lines()

    def fail(_data: bytes) -> bytes:
        raise error

    near.stream.change = fail
    with pytest.raises(type(error)):
        near.send(b"record")
    near.stream.change = lambda data: data
    with pytest.raises(ConnectionError):
        near.send(b"record")
    with pytest.raises(ConnectionError):
        list(far.read(0))


def gone(_data: bytes) -> bytes:
    raise ConnectionResetError("gone")


def test_what_the_other_end_has_said_before_it_went_is_read_though_a_send_fails() -> None:
    near, far = lines()
    far.send(b"why")
    far.close()
    near.stream.change = gone
    near.ping()
    with pytest.raises(ConnectionError):
        near.send(b"record")
    assert everything(near) == [b"why"]
    with pytest.raises(ConnectionError, match="gone"):
        list(near.read(0))


# ---------------------------------------------------------------- from the first word on


def meet(**of_guest: Any) -> tuple[Line[End], Line[End]]:
    near, far = pair()
    visitor = guest(far, **of_guest)
    found: list[Line[End]] = []

    def listen() -> None:
        if visitor.listen() == "":
            found.append(visitor.line(MOST))

    near.idle = listen
    clock = ManualClock()
    line = call(near, HERE, THERE.worker, SECRET, MOST, timeout_seconds=10, clock=clock)
    assert visitor.handshake.caller == HERE
    return line, found[0]


def test_two_with_the_same_secret_come_to_a_line_with_keys_of_its_own() -> None:
    sent = []
    for _ in range(2):
        near, far = meet()
        near.send(b"forth")
        far.send(b"back")
        assert everything(far) == [b"forth"]
        assert everything(near) == [b"back"]
        sent.append((near.stream.sent[-1], far.stream.sent[-1]))
    assert sent[0][0] != sent[1][0]
    assert sent[0][1] != sent[1][1]


@pytest.mark.parametrize(
    ("of_guest", "words"),
    [
        ({"secret": OTHER_SECRET}, "different secrets"),
        ({"secret": None}, "this worker was given none"),
        ({"refusal": "rank 1 is here already"}, "^rank 1 is here already$"),
    ],
    ids=["another secret", "none", "refused"],
)
def test_who_is_not_let_in_hears_why(of_guest: Any, words: str) -> None:
    with pytest.raises(HandshakeError, match=words):
        meet(**of_guest)


def test_other_versions_are_named_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greetings.Hello.__init__, "__defaults__", ("9.1.0",))
    why = rf"lockstitch {re.escape(__version__)} \(on host .+\), its caller 9\.1\.0"
    with pytest.raises(HandshakeError, match=why):
        meet()


def calling(near: End, **options: Any) -> Line[End]:
    return call(near, HERE, THERE.worker, SECRET, MOST, timeout_seconds=10, **options)


def test_a_listener_without_the_secret_is_a_stranger() -> None:
    near, far = pair()
    challenge = greetings.Challenge(bytes(32))
    welcome = greetings.Welcome("", THERE.name, THERE.worker)
    far.send([greetings.encode(challenge)])
    far.send([greetings.encode(welcome)])
    with pytest.raises(HandshakeError, match="has not proved that it has the job's secret"):
        calling(near)
    assert near.is_closed


def test_a_listener_that_closes_is_told_as_that() -> None:
    near, far = pair()
    far.close()
    with pytest.raises(ConnectionError, match="before any greeting"):
        calling(near)
    assert near.is_closed


def test_a_listener_that_says_nothing_or_little_is_not_waited_for_longer() -> None:
    clock = ManualClock()
    near, far = pair()
    drops = iter(greetings.encode(greetings.Challenge(bytes(32))))

    def drip() -> None:
        clock.advance(3)
        far.send([bytes([next(drops)])])

    near.idle = drip
    with pytest.raises(TimeoutError, match="no greeting came within 10 s"):
        calling(near, clock=clock)
    assert clock.now() == 12
    assert near.is_closed


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("rank 2 has failed")])
def test_a_caller_can_be_called_away_while_it_waits(error: BaseException) -> None:
    near, _ = pair()

    def look() -> None:
        raise error

    with pytest.raises(type(error)):
        calling(near, look=look)
    assert near.is_closed
