"""The handshake as values: two sides, and a stranger between them who may say anything."""

from __future__ import annotations

import contextlib
import itertools
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstitch.errors import HandshakeError
from lockstitch.ids import WorkerInfo
from lockstitch.link.greetings import (
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
from lockstitch.link.handshake import CallerHandshake, ListenerHandshake
from lockstitch.trust.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = Secret(bytes(range(32)))
OTHER = Secret(bytes(32))
TRAINER, SERVER, THIRD = WorkerInfo("trainer", 1, 4), WorkerInfo("ps", 0, 2), WorkerInfo("x", 2)
VERSIONS = ("3.11.0", "2.13.0")


def nonces(first: int) -> Callable[[int], bytes]:
    numbers = itertools.count(first)
    return lambda size: next(numbers).to_bytes(size, "big")


def caller(
    secret: Secret | None = SECRET, me: WorkerInfo = TRAINER, to: WorkerInfo = SERVER
) -> CallerHandshake:
    return CallerHandshake(me, to.worker, VERSIONS, secret, nonces(1000))


def listener(
    secret: Secret | None = SECRET, me: WorkerInfo = SERVER, refusal: str = "", first: int = 1
) -> ListenerHandshake:
    return ListenerHandshake(me, secret, lambda hello: refusal, nonces(first))


def converse(near: CallerHandshake, far: ListenerHandshake) -> list[bytes]:
    """Lets the two talk to their end; returns what was said, the caller first."""
    said = [near.opening]
    while near.welcome is None:
        said.append(far.take(said[-1]))
        said.append(near.take(said[-1]))
    return said[:-1]


# ---------------------------------------------------------------- as it should be


@pytest.mark.parametrize("secret", [None, SECRET], ids=["unproved", "proved"])
def test_both_sides_learn_who_the_other_is(secret: Secret | None) -> None:
    near, far = caller(secret), listener(secret)
    said = converse(near, far)
    assert [type(decode(each)) for each in said] == (
        [Hello, Welcome] if secret is None else [Hello, Challenge, Proof, Welcome]
    )
    assert all(len(each) <= LONGEST for each in said)
    assert far.is_over
    assert far.caller == TRAINER
    assert far.caller.worker == TRAINER.worker
    assert near.is_proved
    assert near.welcome == Welcome("", "ps", SERVER.worker, said[-1][-32:])


def test_the_two_sides_have_the_same_keys_and_each_direction_its_own() -> None:
    near, far = caller(), listener()
    converse(near, far)
    assert near.keys is not None
    assert far.keys is not None
    assert (near.keys.outgoing, near.keys.incoming) == (far.keys.incoming, far.keys.outgoing)
    assert near.keys.outgoing != near.keys.incoming
    assert near.keys.outgoing.hex() not in f"{near.keys!r} {near!r} {far!r}"
    again, back = caller(), listener(first=2)
    converse(again, back)
    assert again.keys is not None
    assert again.keys.outgoing != near.keys.outgoing  # another nonce


def test_longest_names_fit() -> None:
    long = WorkerInfo("n" * 127, (1 << 31) - 1, 4095)
    near = CallerHandshake(long, long.worker, ("v" * 99, "w" * 99), SECRET)
    said = converse(near, listener(me=long, refusal="r" * 999))
    assert max(map(len, said)) <= LONGEST
    assert near.welcome is not None
    assert near.welcome.refusal == "r" * 255


def test_refusal_of_a_worker_of_the_job_is_proved_too() -> None:
    near, far = caller(), listener(refusal="it runs Python 2")
    converse(near, far)
    assert far.caller is None
    assert near.is_proved
    assert near.welcome is not None
    assert near.welcome.refusal == "it runs Python 2"


def test_call_that_was_meant_for_another_is_refused() -> None:
    near, far = caller(to=THIRD), listener()
    converse(near, far)
    assert far.caller is None
    assert near.welcome is not None
    assert near.welcome.worker == SERVER.worker
    assert "it looks for rank 2 (generation 0)" in near.welcome.refusal


# ---------------------------------------------------------------- strangers


@pytest.mark.parametrize(
    ("theirs", "ours", "reason", "words"),
    [
        (OTHER, SECRET, "wrong proof", "different secrets"),
        (None, SECRET, "no secret there", "LOCKSTITCH_SECRET"),
        (SECRET, None, "no secret here", "LOCKSTITCH_SECRET_FILE"),
    ],
    ids=["another secret", "caller has none", "listener has none"],
)
def test_without_the_same_secret_nobody_comes_in(
    theirs: Secret | None, ours: Secret | None, reason: str, words: str
) -> None:
    near, far = caller(theirs), listener(ours)
    said = converse(near, far)
    assert far.is_over
    assert far.caller is None
    assert far.keys is None
    assert far.refused is not None
    assert far.refused.reason == reason
    assert near.welcome is not None
    assert words in near.welcome.refusal
    assert not any(b"ps" in each for each in said[1::2])  # a stranger does not learn whom it called


def test_listener_without_the_secret_is_seen_through() -> None:
    near, impostor = caller(), listener(OTHER)
    challenge = impostor.take(near.opening)
    near.take(challenge)
    forged = encode(Welcome("", "ps", SERVER.worker, bytes(32)))
    with pytest.raises(HandshakeError, match="has not proved that it has the job's secret"):
        near.take(forged)
    assert near.welcome is None
    assert near.keys is None


def test_caller_who_wants_proof_takes_no_welcome_without_it() -> None:
    with pytest.raises(HandshakeError, match="out of order"):
        caller().take(encode(Welcome("", "ps", SERVER.worker)))


def test_proof_said_again_to_another_nonce_is_worth_nothing() -> None:
    said = converse(caller(), listener())
    later = listener(first=7)
    later.take(said[0])
    later.take(said[2])
    assert later.caller is None
    assert later.refused is not None
    assert later.refused.reason == "wrong proof"


def test_proof_cannot_be_had_from_the_listener_itself() -> None:
    """A stranger who reflects a worker's own words to it, in either role, gets nowhere."""
    far = listener()
    challenge = far.take(caller().opening)
    nonce = decode(challenge)
    assert isinstance(nonce, Challenge)
    # It has the worker call, and hands the worker's own challenge to it.
    calling = CallerHandshake(SERVER, SERVER.worker, VERSIONS, SECRET, nonces(1000))
    far.take(calling.take(challenge))
    assert far.caller is None
    # And a caller who is handed its own proof as the listener's.
    near = caller()
    proof = decode(near.take(challenge))
    assert isinstance(proof, Proof)
    with pytest.raises(HandshakeError, match="has not proved"):
        near.take(encode(Welcome("", "ps", SERVER.worker, proof.mac)))


def test_words_out_of_order_end_it() -> None:
    for data in (encode(Proof(bytes(32))), encode(Challenge(bytes(32)))):
        with pytest.raises(HandshakeError, match="out of order"):
            listener().take(data)
    far = listener()
    far.take(caller().opening)
    with pytest.raises(HandshakeError, match="a Hello came out of order"):
        far.take(caller().opening)


def test_another_version_hears_which() -> None:
    opening = bytearray(caller().opening)
    opening[5] = 99
    far = listener()
    welcome = decode(far.take(bytes(opening)))
    assert isinstance(welcome, Welcome)
    assert welcome.refusal.startswith("the caller speaks protocol 99 (lockstitch ")
    assert "install the same version" in welcome.refusal
    assert far.caller is None


# ---------------------------------------------------------------- every bit counts


@settings(max_examples=150, deadline=None)
@given(message=st.integers(0, 3), bit=st.integers(0, 8 * LONGEST))
def test_any_flipped_bit_keeps_both_out(message: int, bit: int) -> None:
    near, far = caller(), listener()

    def on_the_way(number: int, data: bytes) -> bytes:
        if number != message:
            return data
        flipped = bytearray(data)
        flipped[bit // 8 % len(data)] ^= 1 << bit % 8
        return bytes(flipped)

    try:
        challenge = far.take(on_the_way(0, near.opening))
        proof = near.take(on_the_way(1, challenge))
        welcome = far.take(on_the_way(2, proof))
        near.take(on_the_way(3, welcome))
    except HandshakeError:
        pass
    is_in = near.welcome is not None and near.is_proved and not near.welcome.refusal
    assert not is_in
    assert message == 3 or far.caller is None


@settings(max_examples=100, deadline=None)
@given(
    words=st.lists(
        st.one_of(
            st.binary(max_size=600),
            st.builds(Challenge, st.binary(min_size=32, max_size=32)).map(encode),
            st.builds(Proof, st.binary(min_size=32, max_size=32)).map(encode),
            st.builds(
                lambda proves, name: encode(
                    Hello(proves, bytes(32), SERVER.worker, name, TRAINER.worker, *VERSIONS)
                ),
                st.booleans(),
                st.sampled_from(["trainer", "", "x" * 200, "no good"]),
            ),
            st.builds(
                lambda kind, body: struct.pack(">4sBBH", b"LKST", kind, VERSION, len(body)) + body,
                st.sampled_from([6, 7, 8, 9]),
                st.binary(max_size=504),
            ),
        ),
        max_size=6,
    )
)
def test_no_words_of_a_stranger_bring_it_in(words: list[bytes]) -> None:
    far, reader = listener(), GreetingReader()
    with contextlib.suppress(HandshakeError):
        for word in words:
            rest = memoryview(word)
            while rest and not far.is_over:
                space = reader.space()
                assert 0 < len(space) <= LONGEST
                count = min(len(space), len(rest))
                space[:count] = rest[:count]
                rest = rest[count:]
                greeting = reader.absorb(count)
                if greeting is not None:
                    assert len(far.take(greeting)) <= LONGEST
    assert far.caller is None
    assert far.keys is None
