"""The first words on a connection: who calls, whom, and the proof that both have the job's secret.

    caller                                                listener
      ── Hello      nonce, who I am, whom I call ──►        (a stranger hears nothing about it yet)
      ◄──────────────── nonce           Challenge ──
      ── Proof      MAC of all this      ──────────►        checks; from here on it knows the caller
      ◄─────────── who I am, MAC of all    Welcome ──
    checks

Without a secret the second and third are left out, and nothing is proved. A MAC covers every byte
said before it and the role of who says it, so that nothing can be sent back to where it came from
(reflection) nor said again elsewhere or later (replay): the nonces are fresh on both sides, and the
Hello names the one life of the one worker that is called. What is said is of a fixed, small form,
and is read by `struct` alone: nothing that a stranger sends reaches the parsers of messages.

    ┌ prefix, 8 bytes: magic, u8 kind, u8 version, u16 length of the rest ┬ at most 504 bytes ┐

The kind stands where that of a message does in its frame (see `wire.frames`). No I/O here.
"""

from __future__ import annotations

import hmac
import os
import struct
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar, Final

from lockstitch.errors import RemoteProtocolError
from lockstitch.ids import ANYBODY, MAX_GENERATION, WorkerId, WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.trust.secret import Secret

VERSION: Final = 2
LONGEST: Final = 512
"""So many bytes at most has anything said here."""

_PREFIX: Final = struct.Struct(">4sBBH")
_MAGIC: Final = b"LKST"
_NONCE_BYTES: Final = 32
_MAC_BYTES: Final = 32
_IDENTITY: Final = struct.Struct(">IH")
_LONGEST_NAME: Final = 127
_LONGEST_VERSION: Final = 40
_LONGEST_REFUSAL: Final = 255
_MOST_RANKS: Final = 1 << 31

_NO_MAC: Final = bytes(_MAC_BYTES)
_OTHER_VERSION: Final = "another version"
_CALLER, _LISTENER = b"caller\0", b"listener\0"
# The purposes of keys: see `Secret.derive`.
_PROOF, _TO_LISTENER, _TO_CALLER = "handshake", "frames to the listener", "frames to the caller"


class HandshakeError(RemoteProtocolError):
    """What came is no greeting of a worker of this job; `reason` is one of few, for counting."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


# ---------------------------------------------------------------- what is said


class Greeting:
    """Base of what is said."""

    __slots__ = ()
    KIND: ClassVar[int]


@dataclass(frozen=True, slots=True)
class Hello(Greeting):
    """Caller → listener. `proves` says that it has a secret and will prove it."""

    KIND = 8
    proves: bool
    nonce: bytes
    peer: WorkerId
    name: str
    worker: WorkerId
    python: str
    torch: str

    def body(self) -> bytes:
        return b"".join(
            (
                bytes([self.proves]),
                self.nonce,
                _IDENTITY.pack(*self.peer),
                _IDENTITY.pack(*self.worker),
                _text(self.name, _LONGEST_NAME),
                _text(self.python, _LONGEST_VERSION),
                _text(self.torch, _LONGEST_VERSION),
            )
        )


@dataclass(frozen=True, slots=True)
class Challenge(Greeting):
    """Listener → caller: prove it."""

    KIND = 6
    nonce: bytes

    def body(self) -> bytes:
        return self.nonce


@dataclass(frozen=True, slots=True)
class Proof(Greeting):
    """Caller → listener."""

    KIND = 7
    mac: bytes

    def body(self) -> bytes:
        return self.mac


@dataclass(frozen=True, slots=True)
class Welcome(Greeting):
    """Listener → caller: come in, or, with a `refusal`, why not. Its MAC is zero where nothing has
    been proved, as in refusals of strangers."""

    KIND = 9
    refusal: str
    name: str
    worker: WorkerId
    mac: bytes = _NO_MAC

    def body(self) -> bytes:
        return b"".join(
            (
                _IDENTITY.pack(*self.worker),
                _text(self.name, _LONGEST_NAME),
                _text(self.refusal, _LONGEST_REFUSAL),
                self.mac,
            )
        )


GREETINGS: Final[dict[int, type[Greeting]]] = {
    each.KIND: each for each in (Challenge, Proof, Hello, Welcome)
}
"""By kind; these kinds are no messages'."""


def encode(greeting: Hello | Challenge | Proof | Welcome) -> bytes:
    """As it travels."""
    body = greeting.body()
    return _PREFIX.pack(_MAGIC, greeting.KIND, VERSION, len(body)) + body


def decode(data: bytes) -> Hello | Challenge | Proof | Welcome:
    """The reverse. Raises `HandshakeError` where it is nothing of the kind."""
    if not _PREFIX.size <= len(data) <= LONGEST:
        raise _garbage()
    kind, version, length = _prefix(data)
    if length != len(data):
        raise _garbage()
    if version != VERSION:
        raise HandshakeError(_OTHER_VERSION, f"it speaks protocol {version}, this worker {VERSION}")
    reader = _Reader(data[_PREFIX.size :])
    greeting: Hello | Challenge | Proof | Welcome
    if kind == Hello.KIND:
        proves = reader.bytes(1)
        if proves not in (b"\0", b"\1"):
            raise _garbage()
        greeting = Hello(
            proves == b"\1",
            reader.bytes(_NONCE_BYTES),
            reader.worker(),
            worker=reader.worker(),
            name=reader.name(),
            python=reader.text(_LONGEST_VERSION),
            torch=reader.text(_LONGEST_VERSION),
        )
    elif kind == Challenge.KIND:
        greeting = Challenge(reader.bytes(_NONCE_BYTES))
    elif kind == Proof.KIND:
        greeting = Proof(reader.bytes(_MAC_BYTES))
    elif kind == Welcome.KIND:
        worker = reader.worker()
        name, refusal = reader.name(), reader.text(_LONGEST_REFUSAL)
        greeting = Welcome(refusal, name, worker, reader.bytes(_MAC_BYTES))
    else:
        raise _garbage()
    reader.check_end()
    return greeting


def _text(text: str, longest: int) -> bytes:
    data = text.encode("utf-8", "replace")[:longest]
    return bytes([len(data)]) + data


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def bytes(self, count: int) -> bytes:
        data = self._data[self._at : self._at + count]
        if len(data) < count:
            raise _garbage()
        self._at += count
        return data

    def text(self, longest: int) -> str:
        (length,) = self.bytes(1)
        if length > longest:
            raise _garbage()
        return self.bytes(length).decode("utf-8", "replace")

    def name(self) -> str:
        name = self.text(_LONGEST_NAME)
        try:
            return WorkerInfo(name, 0).name
        except RuntimeError:
            raise _garbage() from None

    def worker(self) -> WorkerId:
        rank, generation = _IDENTITY.unpack(self.bytes(_IDENTITY.size))
        if rank >= _MOST_RANKS or generation > MAX_GENERATION:
            raise _garbage()
        return WorkerId(rank, generation)

    def check_end(self) -> None:
        if self._at != len(self._data):
            raise _garbage()


def _prefix(data: bytes | memoryview) -> tuple[int, int, int]:
    """Kind, version and length of the whole; raises `HandshakeError` for what begins otherwise."""
    magic, kind, version, length = _PREFIX.unpack_from(data)
    if magic != _MAGIC or kind not in GREETINGS or length > LONGEST - _PREFIX.size:
        raise _garbage()
    return kind, version, _PREFIX.size + length


def _garbage() -> HandshakeError:
    return HandshakeError("garbage", "what came is no greeting of a worker")


# ---------------------------------------------------------------- reading it


class GreetingReader:
    """Cuts greetings out of a stream and takes no byte more: what follows the last of them belongs
    to somebody else. Let a receiver fill `space()` and tell `absorb` how much there is."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(LONGEST))
        self._filled = 0
        self._wanted = _PREFIX.size

    def space(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        return self._buffer[self._filled : self._wanted]

    def absorb(self, count: int) -> bytes | None:
        """Takes note of `count` bytes; returns the greeting that they complete, undecoded. Raises
        `HandshakeError` as soon as it cannot be one."""
        self._filled += count
        if self._filled < self._wanted:
            return None
        if self._wanted == _PREFIX.size:
            _, _, self._wanted = _prefix(self._buffer)
            if self._filled < self._wanted:
                return None
        data = bytes(self._buffer[: self._filled])
        self._filled, self._wanted = 0, _PREFIX.size
        return data


# ---------------------------------------------------------------- the two sides


@dataclass(frozen=True, slots=True, repr=False)
class SessionKeys:
    """The keys of one connection, one for each direction, as this side sees them."""

    outgoing: bytes
    incoming: bytes

    def __repr__(self) -> str:
        return "<SessionKeys>"


class _Transcript:
    """All that was said so far, and what is proved of it."""

    def __init__(self, secret: Secret | None) -> None:
        self._secret = secret
        self._said = sha256()

    def add(self, data: bytes) -> bytes:
        self._said.update(data)
        return data

    def mac(self, role: bytes, last: bytes = b"") -> bytes:
        """The proof of that role, over all that was said, and over `last`."""
        if self._secret is None:
            return _NO_MAC
        said = role + self._said.digest() + last
        return hmac.digest(self._secret.derive(_PROOF), said, "sha256")

    def keys(self, role: bytes) -> SessionKeys | None:
        """The keys of the connection, as that role sees them."""
        if self._secret is None:
            return None
        said = self._said.digest()
        forth = self._secret.derive(_TO_LISTENER, said)
        back = self._secret.derive(_TO_CALLER, said)
        return SessionKeys(forth, back) if role == _CALLER else SessionKeys(back, forth)


class CallerHandshake:
    """The side that has connected.

    `opening` is sent first. Every greeting that comes is given to `take`, and what that returns is
    sent, if anything. In the end `welcome` is there, and `keys`, if there is a secret. A welcome
    with a refusal need not be proved: `is_proved` says whether it was (or nothing needs to be).
    """

    def __init__(
        self,
        me: WorkerInfo,
        peer: WorkerId,
        versions: tuple[str, str],
        secret: Secret | None,
        make_nonce: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._transcript = _Transcript(secret)
        self._awaits: type[Greeting] = Welcome if secret is None else Challenge
        self.welcome: Welcome | None = None
        self.is_proved = False
        self.keys: SessionKeys | None = None
        nonce = make_nonce(_NONCE_BYTES)
        hello = Hello(secret is not None, nonce, peer, me.name, me.worker, *versions)
        self.opening = self._transcript.add(encode(hello))

    def take(self, data: bytes) -> bytes:
        """What to answer. Raises `HandshakeError` where the other side is not what it should be."""
        greeting = decode(data)
        if isinstance(greeting, Welcome) and (greeting.refusal or self._awaits is Welcome):
            return self._enter(greeting, data)
        if not isinstance(greeting, Challenge) or self._awaits is not Challenge:
            raise _out_of_order(greeting)
        self._awaits = Welcome
        self._transcript.add(data)
        return self._transcript.add(encode(Proof(self._transcript.mac(_CALLER))))

    def _enter(self, welcome: Welcome, data: bytes) -> bytes:
        expected = self._transcript.mac(_LISTENER, data[:-_MAC_BYTES])
        self.is_proved = hmac.compare_digest(welcome.mac, expected)
        if not self.is_proved and not welcome.refusal:
            raise HandshakeError(
                "wrong proof",
                "whoever listens there has not proved that it has the job's secret: it is a "
                "stranger, or the two workers were given different secrets",
            )
        self.keys = self._transcript.keys(_CALLER)
        self.welcome = welcome
        return b""


class ListenerHandshake:
    """The side that was called. `me` is who listens here; `judge` says why a caller may not come
    in although it has proved itself, and nothing where it may.

    Every greeting that comes is given to `take`, and what that returns is sent. Then `is_over` says
    whether that was all, and `caller` who came in: None where it was refused, for `refused`.
    """

    def __init__(
        self,
        me: WorkerInfo,
        secret: Secret | None,
        judge: Callable[[Hello], str],
        make_nonce: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._me = me
        self._secret = secret
        self._judge = judge
        self._make_nonce = make_nonce
        self._transcript = _Transcript(secret)
        self._hello: Hello | None = None
        self.is_over = False
        self.caller: WorkerInfo | None = None
        self.keys: SessionKeys | None = None
        self.refused: HandshakeError | None = None

    def take(self, data: bytes) -> bytes:
        """What to answer. Raises `HandshakeError` for what deserves no answer."""
        try:
            greeting = decode(data)
        except HandshakeError as error:
            if error.reason != _OTHER_VERSION:
                raise
            return self._refuse(error)
        if isinstance(greeting, Hello) and self._hello is None:
            self._hello = greeting
            self._transcript.add(data)
            return self._answer(greeting)
        if isinstance(greeting, Proof) and self._hello is not None and not self.is_over:
            is_proved = hmac.compare_digest(greeting.mac, self._transcript.mac(_CALLER))
            self._transcript.add(data)
            return (
                self._welcome(self._hello)
                if is_proved
                else self._refuse(HandshakeError(*_WRONG_PROOF))
            )
        raise _out_of_order(greeting)

    def _answer(self, hello: Hello) -> bytes:
        if hello.proves != (self._secret is not None):
            why = _NO_SECRET_HERE if hello.proves else _NO_SECRET_THERE
            return self._refuse(HandshakeError(*why))
        if self._secret is None:
            return self._welcome(hello)
        return self._transcript.add(encode(Challenge(self._make_nonce(_NONCE_BYTES))))

    def _welcome(self, hello: Hello) -> bytes:
        refusal = self._judge(hello)
        if not refusal and hello.peer not in (self._me.worker, ANYBODY):
            refusal = f"it looks for {hello.peer}, but this is {self._me.worker}"
        if refusal:
            self.refused = HandshakeError("refused", refusal)
        else:
            self.caller = WorkerInfo(hello.name, *hello.worker)
        self.keys = self._transcript.keys(_LISTENER)
        self.is_over = True
        unproved = encode(Welcome(refusal, self._me.name, self._me.worker))[:-_MAC_BYTES]
        return unproved + self._transcript.mac(_LISTENER, unproved)

    def _refuse(self, error: HandshakeError) -> bytes:
        """A stranger hears why, but not whom it has called."""
        self.refused = error
        self.is_over = True
        return encode(Welcome(str(error), "unknown", WorkerId(0, 0)))


def _out_of_order(greeting: Greeting) -> HandshakeError:
    return HandshakeError(
        "out of order", f"a {type(greeting).__name__} came out of order in a greeting"
    )


_WRONG_PROOF: Final = (
    "wrong proof",
    "the caller's proof is wrong: the two workers were given different secrets",
)
_NO_SECRET_HERE: Final = (
    "no secret here",
    "the caller proves itself by a secret, but this worker was given none: give both the same "
    "(LOCKSTITCH_SECRET or LOCKSTITCH_SECRET_FILE)",
)
_NO_SECRET_THERE: Final = (
    "no secret there",
    "this worker wants a proof by the job's secret, but the caller was given none: give both the "
    "same (LOCKSTITCH_SECRET or LOCKSTITCH_SECRET_FILE)",
)
