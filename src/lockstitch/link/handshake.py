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
Hello names the one life of the one worker that is called. How the four look on the wire is in
`link.greetings`. No I/O here.
"""

from __future__ import annotations

import hmac
import os
import platform
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from lockstitch import __version__
from lockstitch.errors import HandshakeError
from lockstitch.ids import ANYBODY, WorkerId, WorkerInfo
from lockstitch.link.greetings import (
    MAC_BYTES,
    NO_MAC,
    NONCE_BYTES,
    OTHER_VERSION,
    Challenge,
    Greeting,
    Hello,
    Proof,
    Welcome,
    decode,
    encode,
)
from lockstitch.versions import are_alike

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.trust.secret import Secret

_NAMES: Final = {"python": "Python"}
_CALLER, _LISTENER = b"caller\0", b"listener\0"
# The purposes of keys: see `Secret.derive`.
_PROOF, _TO_LISTENER, _TO_CALLER = "handshake", "frames to the listener", "frames to the caller"


@dataclass(frozen=True, slots=True, repr=False)
class SessionKeys:
    """The keys of one connection, one for each direction, as this side sees them."""

    outgoing: bytes
    incoming: bytes

    def __repr__(self) -> str:
        return "<SessionKeys>"


def why_other_version(hello: Hello, **others: str) -> str:
    """Why this process cannot exchange anything with a caller of another version; empty if it can.
    What counts (`are_alike`) are the versions of lockstitch, and, where they matter to what is
    exchanged, of `python` and `torch`."""
    versions = {"lockstitch": __version__, **others}
    for what, ours in versions.items():
        theirs: str = getattr(hello, what)
        if not are_alike(ours, theirs):
            return (
                f"it runs {_NAMES.get(what, what)} {ours} (on host {platform.node()}), its caller "
                f"{theirs}, and neither would understand the other; install the same on all workers"
            )
    return ""


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
            return NO_MAC
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
        nonce = make_nonce(NONCE_BYTES)
        hello = Hello(secret is not None, nonce, peer, me.name, me.worker, *versions)
        self.opening = self._transcript.add(encode(hello))

    def take(self, data: bytes) -> bytes:
        """Returns what to answer. Raises `HandshakeError` where the other side is not what it
        should be."""
        greeting = decode(data)
        if isinstance(greeting, Welcome) and (greeting.refusal or self._awaits is Welcome):
            return self._enter(greeting, data)
        if not isinstance(greeting, Challenge) or self._awaits is not Challenge:
            raise _out_of_order(greeting)
        self._awaits = Welcome
        self._transcript.add(data)
        return self._transcript.add(encode(Proof(self._transcript.mac(_CALLER))))

    def _enter(self, welcome: Welcome, data: bytes) -> bytes:
        expected = self._transcript.mac(_LISTENER, data[:-MAC_BYTES])
        self.is_proved = hmac.compare_digest(welcome.mac, expected)
        if not self.is_proved and not welcome.refusal:
            raise HandshakeError(
                "whoever listens there has not proved that it has the job's secret: it is a "
                "stranger, or the two workers were given different secrets",
                "wrong proof",
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
        """Returns what to answer. Raises `HandshakeError` for what deserves no answer."""
        try:
            greeting = decode(data)
        except HandshakeError as error:
            if error.reason != OTHER_VERSION:
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
        return self._transcript.add(encode(Challenge(self._make_nonce(NONCE_BYTES))))

    def _welcome(self, hello: Hello) -> bytes:
        refusal = self._judge(hello)
        if not refusal and hello.peer not in (self._me.worker, ANYBODY):
            refusal = f"it looks for {hello.peer}, but this is {self._me.worker}"
        if refusal:
            self.refused = HandshakeError(refusal)
        else:
            self.caller = WorkerInfo(hello.name, *hello.worker)
        self.keys = self._transcript.keys(_LISTENER)
        self.is_over = True
        unproved = encode(Welcome(refusal, self._me.name, self._me.worker))[:-MAC_BYTES]
        return unproved + self._transcript.mac(_LISTENER, unproved)

    def _refuse(self, error: HandshakeError) -> bytes:
        """A stranger hears why, but not whom it has called."""
        self.refused = error
        self.is_over = True
        return encode(Welcome(str(error), "unknown", WorkerId(0, 0)))


def _out_of_order(greeting: Greeting) -> HandshakeError:
    return HandshakeError(
        f"a {type(greeting).__name__} came out of order in a greeting", "out of order"
    )


_WRONG_PROOF: Final = (
    "the caller's proof is wrong: the two workers were given different secrets (LOCKSTITCH_SECRET "
    "or LOCKSTITCH_SECRET_FILE)",
    "wrong proof",
)
_NO_SECRET_HERE: Final = (
    "the caller proves itself by a secret, but this worker was given none: give both the same "
    "(LOCKSTITCH_SECRET or LOCKSTITCH_SECRET_FILE)",
    "no secret here",
)
_NO_SECRET_THERE: Final = (
    "this worker wants a proof by the job's secret, but the caller was given none: give both the "
    "same (LOCKSTITCH_SECRET or LOCKSTITCH_SECRET_FILE)",
    "no secret there",
)
