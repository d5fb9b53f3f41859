"""Greetings as bytes: they come back as they went, and the reader takes no byte after them."""

from __future__ import annotations

import pytest

from lockstitch import __version__
from lockstitch.errors import HandshakeError
from lockstitch.ids import WorkerId
from lockstitch.link.greetings import (
    GREETINGS,
    LONGEST,
    VERSION,
    Challenge,
    GreetingReader,
    Hello,
    Proof,
    Welcome,
    decode,
    encode,
)

ME, PEER = WorkerId(1, 4), WorkerId(0, 2)
HELLO_FIELDS = (True, bytes(range(32)), PEER, "trainer", ME, "3.11.0", "2.13.0")
HELLO = Hello(*HELLO_FIELDS, "0.9")
EACH = [HELLO, Challenge(bytes(32)), Proof(bytes(32)), Welcome("no", "ps", PEER, bytes(32))]


@pytest.mark.parametrize("greeting", EACH, ids=lambda each: type(each).__name__)
def test_each_greeting_comes_back_as_it_went(greeting: Hello | Challenge | Proof | Welcome) -> None:
    assert decode(encode(greeting)) == greeting


def test_each_kind_has_been_tried() -> None:
    assert {type(each) for each in EACH} == set(GREETINGS.values())


@pytest.mark.parametrize("greeting", EACH, ids=lambda each: type(each).__name__)
def test_what_is_cut_off_or_too_long_is_refused(
    greeting: Hello | Challenge | Proof | Welcome,
) -> None:
    data = encode(greeting)
    for other in [data + b"x", *(data[:count] for count in range(len(data)))]:
        with pytest.raises(HandshakeError, match="no greeting of a worker"):
            decode(other)


def test_texts_are_cut_to_what_fits() -> None:
    long = Hello(False, bytes(32), PEER, "n" * 127, ME, "v" * 99, "w" * 99)
    assert len(encode(long)) <= LONGEST
    assert decode(encode(Welcome("r" * 999, "ps", PEER))) == Welcome("r" * 255, "ps", PEER)


def of_version(version: int, greeting: Hello | Challenge | Proof | Welcome) -> bytes:
    data = bytearray(encode(greeting))
    data[5] = version
    return bytes(data)


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        (Hello(*HELLO_FIELDS, "9.8.7"), r"the caller speaks protocol 99 \(lockstitch 9\.8\.7\)"),
        (
            Welcome("no", "ps", PEER, bytes(32), "9.8.7"),
            r"the worker that was called speaks protocol 99 \(lockstitch 9\.8\.7\)",
        ),
        (Proof(bytes(32)), "the caller speaks protocol 99,"),
        (Challenge(bytes(32)), "the worker that was called speaks protocol 99,"),
        (Hello(*HELLO_FIELDS, "no\x1b[31mversion"), "the caller speaks protocol 99,"),
    ],
)
def test_another_protocol_is_told_with_both_versions_and_what_to_do(
    greeting: Hello | Challenge | Proof | Welcome, words: str
) -> None:
    with pytest.raises(HandshakeError, match=words) as caught:
        decode(of_version(99, greeting))
    text = str(caught.value)
    assert f"this worker protocol {VERSION} (lockstitch {__version__})" in text
    assert "install the same version of lockstitch on all workers" in text
    assert caught.value.reason == "another version"


def test_a_protocol_older_than_versions_is_told_without() -> None:
    with pytest.raises(HandshakeError, match="the caller speaks protocol 2, this worker"):
        decode(of_version(2, HELLO))


def test_reader_takes_no_byte_more_than_the_greeting() -> None:
    reader, data = GreetingReader(), encode(HELLO) + b"what follows"
    taken, greeting = 0, None
    while greeting is None:
        space = reader.space()
        count = min(len(space), 5)
        space[:count] = data[taken : taken + count]
        taken += count
        greeting = reader.absorb(count)
    assert data[taken:] == b"what follows"
    assert decode(greeting) == HELLO
