"""Greetings as bytes: they come back as they went, and the reader takes no byte after them."""

from __future__ import annotations

import pytest

from lockstitch.ids import WorkerId
from lockstitch.transport.greetings import (
    GREETINGS,
    LONGEST,
    Challenge,
    GreetingReader,
    HandshakeError,
    Hello,
    Proof,
    Welcome,
    decode,
    encode,
)

ME, PEER = WorkerId(1, 4), WorkerId(0, 2)
HELLO = Hello(True, bytes(range(32)), PEER, "trainer", ME, "3.11.0", "2.13.0")
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
