"""What is said at the beginning of a connection, before any message: four greetings.

What they are for, and in which order they come, is in `link.handshake`. They are of a fixed,
small form, and are read by `struct` alone: nothing that a stranger sends reaches the parsers of
messages.

    ┌ prefix, 8 bytes: magic, u8 kind, u8 version, u16 length of the rest ┬ at most 504 bytes ┐

The kind stands where that of a message does in its frame (see `wire.frames`). A Hello and a Welcome
begin with the sender's version of Lockstitch, in every version of the protocol from 3 on: so either
side can say what the other one runs, even where it understands nothing else. No I/O here.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import ClassVar, Final

from lockstitch import __version__
from lockstitch.errors import HandshakeError
from lockstitch.ids import MAX_GENERATION, WorkerId, WorkerInfo

VERSION: Final = 3
LONGEST: Final = 512
"""So many bytes at most has anything said here."""
NONCE_BYTES: Final = 32
MAC_BYTES: Final = 32
NO_MAC: Final = bytes(MAC_BYTES)
"""Where nothing is proved."""
OTHER_VERSION: Final = "another version"
"""The reason of a `HandshakeError` that deserves an answer."""

_PREFIX: Final = struct.Struct(">4sBBH")
_MAGIC: Final = b"LKST"
_IDENTITY: Final = struct.Struct(">IH")
_LONGEST_NAME: Final = 127
_LONGEST_VERSION: Final = 40
_LONGEST_REFUSAL: Final = 255
_MOST_RANKS: Final = 1 << 31
_TELLS_ITS_VERSION: Final = 3
"""The first version of the protocol that says which Lockstitch speaks it."""


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
    lockstitch: str = __version__

    def body(self) -> bytes:
        return b"".join(
            (
                _text(self.lockstitch, _LONGEST_VERSION),
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
    """The caller proves to the listener that it has the secret."""

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
    mac: bytes = NO_MAC
    lockstitch: str = __version__

    def body(self) -> bytes:
        return b"".join(
            (
                _text(self.lockstitch, _LONGEST_VERSION),
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
    """Returns a greeting as it travels."""
    body = greeting.body()
    return _PREFIX.pack(_MAGIC, greeting.KIND, VERSION, len(body)) + body


def decode(data: bytes) -> Hello | Challenge | Proof | Welcome:
    """Returns the greeting that `encode` has made. Raises `HandshakeError` where it is nothing of
    the kind."""
    if not _PREFIX.size <= len(data) <= LONGEST:
        raise _garbage()
    kind, version, length = _prefix(data)
    if length != len(data):
        raise _garbage()
    if version != VERSION:
        raise _other_version(kind, version, _Reader(data[_PREFIX.size :]))
    reader = _Reader(data[_PREFIX.size :])
    greeting: Hello | Challenge | Proof | Welcome
    if kind == Hello.KIND:
        lockstitch = reader.text(_LONGEST_VERSION)
        proves = reader.bytes(1)
        if proves not in (b"\0", b"\1"):
            raise _garbage()
        greeting = Hello(
            proves == b"\1",
            reader.bytes(NONCE_BYTES),
            reader.worker(),
            worker=reader.worker(),
            name=reader.name(),
            python=reader.text(_LONGEST_VERSION),
            torch=reader.text(_LONGEST_VERSION),
            lockstitch=lockstitch,
        )
    elif kind == Challenge.KIND:
        greeting = Challenge(reader.bytes(NONCE_BYTES))
    elif kind == Proof.KIND:
        greeting = Proof(reader.bytes(MAC_BYTES))
    elif kind == Welcome.KIND:
        lockstitch, worker = reader.text(_LONGEST_VERSION), reader.worker()
        name, refusal = reader.name(), reader.text(_LONGEST_REFUSAL)
        greeting = Welcome(refusal, name, worker, reader.bytes(MAC_BYTES), lockstitch)
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
    return HandshakeError("what came is no greeting of a worker", "garbage")


def _other_version(kind: int, version: int, reader: _Reader) -> HandshakeError:
    lockstitch = ""
    if version >= _TELLS_ITS_VERSION and kind in (Hello.KIND, Welcome.KIND):
        lockstitch = reader.text(_LONGEST_VERSION)
    named = f" (lockstitch {lockstitch})" if re.fullmatch(r"[\w.+!-]+", lockstitch) else ""
    who = "the caller" if kind in (Hello.KIND, Proof.KIND) else "the worker that was called"
    return HandshakeError(
        f"{who} speaks protocol {version}{named}, this worker protocol {VERSION} (lockstitch "
        f"{__version__}): install the same version of lockstitch on all workers",
        OTHER_VERSION,
    )


# ---------------------------------------------------------------- reading it


class GreetingReader:
    """Cuts greetings out of a stream and takes no byte more: what follows the last of them belongs
    to somebody else. Let a receiver fill `space()` and tell `absorb` how much there is."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(LONGEST))
        self._filled = 0
        self._wanted = _PREFIX.size

    def space(self) -> memoryview:
        """Returns where the next bytes belong; never empty."""
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
