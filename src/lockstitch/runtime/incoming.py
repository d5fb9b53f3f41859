"""The connection on which a peer calls us: its requests and control messages come in, our replies
go out. Only the pool's reader reads it.

Who runs what: a control message is handled by the reader. A call of a function that has always
been quick (`KnownFunction`) is run by the reader too, and so is one that has always
been short where nothing else is to be read; any other is run by the same thread after it has passed
the reading right on. See `runtime.thread_pool`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from lockstitch.attach.recorder import RECORDER
from lockstitch.errors import RemoteProtocolError
from lockstitch.runtime.duplicate_filter import DuplicateFilter
from lockstitch.runtime.functions import BY_VALUE, TO_HERE, KnownFunction
from lockstitch.runtime.invocation import Invocation
from lockstitch.runtime.observing import RecordedInvocation
from lockstitch.transport.placement import Placement
from lockstitch.transport.spin import Spinner
from lockstitch.wire.authentication import FrameAuthenticator
from lockstitch.wire.encoding import encode
from lockstitch.wire.messages import Call, Fetch, RemoteCall

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from lockstitch.ids import WorkerInfo
    from lockstitch.link.handshake import SessionKeys
    from lockstitch.runtime.core import Core
    from lockstitch.runtime.pending_handshakes import PendingHandshakes
    from lockstitch.runtime.serving import Serving
    from lockstitch.transport.base import Connection, Listener
    from lockstitch.wire.messages import Message

_MOST_HELD = 16
_MOST_QUEUEING = 16
_FEW_QUEUEING = 4
# Where nobody can be let in, one looks again after so long.
_PAUSE_SECONDS = 0.1


class Requests:
    """The receiving end for a peer's requests: the functions it has named, where replies go."""

    def __init__(self, serving: Serving, peer: WorkerInfo) -> None:
        self.serving = serving
        self.peer = peer
        self._functions: dict[int, KnownFunction] = {}
        self._kinds: dict[type[Message], KnownFunction] = {}
        self.duplicates = DuplicateFilter()

    def reply(self, message: Message) -> None:
        """Sends the answer to a request. Raises `ConnectionError` when the peer is gone."""
        raise NotImplementedError

    def invocation(self, message: Message) -> Invocation | None:
        """The request in `message`, ready to be served; None if it is no request."""
        cls = type(message)
        known: KnownFunction | None
        if cls is Call or cls is RemoteCall:
            number, definition = message.function, message.definition  # type: ignore[attr-defined]
            known = self._functions.get(number) if definition is None else None
            if known is None:
                known = self._new_function(number, definition)
        elif cls in self.serving.servers:
            known = self._kinds.get(cls)
            if known is None:
                known = self._kinds[cls] = KnownFunction(TO_HERE if cls is Fetch else cls.__name__)
        else:
            return None
        kind = Invocation if RECORDER.spans is None else RecordedInvocation
        return kind(self.serving, self, message, known)

    def may_begin(self, invocation: Invocation) -> bool:
        """Whether a request comes for the first time, and its caller has not given it up before it
        came; what is not to be begun is seen to."""
        number: int = invocation.message.request  # type: ignore[attr-defined]
        if not self.duplicates.is_new(number):
            self.serving.running.note_repeated(invocation)
            return False
        if invocation.is_unwanted():
            self.serving.core.spawn(invocation.refuse)
            return False
        return True

    def give_up(self, number: int) -> None:
        """The caller does not want that request's answer any more."""
        self.duplicates.give_up(number)

    def _new_function(self, number: int, definition: bytes | None) -> KnownFunction:
        """A function that is not known by its number."""
        if definition is not None:
            known = KnownFunction(definition.decode())
            if number > 0:
                self._functions[number] = known
            return known
        if number == BY_VALUE:
            return KnownFunction("")
        raise RemoteProtocolError(f"{self.peer.name!r} calls a function that it never named")


class RequestsFromSelf(Requests):
    """Requests to oneself: replies go straight back to the loopback channel."""

    def __init__(self, serving: Serving, peer: WorkerInfo, send: Callable[[Message], None]) -> None:
        super().__init__(serving, peer)
        self._send = send
        self._lock = threading.Lock()

    def may_begin(self, invocation: Invocation) -> bool:
        """See `Requests.may_begin`; several threads serve such requests."""
        with self._lock:
            return super().may_begin(invocation)

    def give_up(self, number: int) -> None:
        with self._lock:
            super().give_up(number)

    def reply(self, message: Message) -> None:
        self._send(message)


class Callers(Protocol):
    """Who keeps the connections on which others call us; `Peers` does."""

    def note_incoming(self, caller: IncomingConnection) -> None:
        """A peer has connected, and is who it says."""
        ...

    def caller_lost(self, caller: IncomingConnection, cause: BaseException) -> None:
        """The connection has ended; harmless when repeated."""
        ...


class IncomingConnection(Requests):
    """Requests over a connection; a source of the pool.

    While further requests lie there already, small answers of the reader are held, to leave with
    the next one in one system call; none is held when the reader waits, goes, or runs what is slow,
    and none where each frame has a MAC of its own.

    A peer that takes in no answers is heard no further while threads queue up to answer it. So it
    holds up nobody but itself: the reader goes on, and who waits here does not count as running.
    """

    def __init__(
        self,
        serving: Serving,
        peer: WorkerInfo,
        callers: Callers,
        connection: Connection,
        keys: SessionKeys | None = None,
    ) -> None:
        super().__init__(serving, peer)
        self._core = core = serving.core
        self._callers = callers
        self.connection = connection
        self._decoder = core.decoder(connection, keys)
        self._lend = connection.lend
        self._is_authenticated = self._decoder.is_authenticated
        self._spinner = Spinner(
            core.thread_pool.is_wanted_elsewhere, looks_on=True, placement=Placement(moves=False)
        )
        self._send_lock = threading.Lock()
        self._queue_lock = threading.Lock()
        self._queueing = 0
        self._is_shut = False
        self._keys = keys
        self._held: list[bytes] = []
        self._holder: int | None = None
        """The thread whose answers may be held now."""

    def __repr__(self) -> str:
        return f"<IncomingConnection from {self.peer.name!r}>"

    def begin(self, welcome: bytes) -> None:
        """Lets the caller in, and the pool listen to it. Others may hear of the caller before it
        has heard the welcome: they wait until then before they speak to it."""
        try:
            with self._send_lock:
                self._core.thread_pool.watch(self.connection, self)
                self._callers.note_incoming(self)
                self.connection.send([welcome])
                if self._is_authenticated and self._keys is not None:
                    self.connection.seal(FrameAuthenticator(self._keys.outgoing))
        except ConnectionError as error:
            self._lost(error)
        else:
            self._core.thread_pool.arm(self.connection)

    def reply(self, message: Message) -> None:
        buffers = encode(message, self._core.limits, self._lend, self._is_authenticated)
        if self._holder is not None and self._holder == threading.get_ident() and len(buffers) == 1:
            self._held.append(buffers[0])
            # In this order: whoever takes the reading right ends the holding first, and then looks.
            if self._holder != threading.get_ident():
                self._send_held()
            return
        self._send(buffers)

    def _send(self, buffers: list[Any]) -> None:
        if self._send_lock.locked():
            self._queue_up(buffers)
            return
        with self._send_lock:
            if self._held or not buffers:
                self._send_now(buffers)
            else:
                self.connection.send(buffers)

    def _send_now(self, buffers: list[Any]) -> None:
        if self._held:
            held, self._held = self._held, []
            buffers = [b"".join(held), *buffers]
        if buffers:
            self.connection.send(buffers)

    def _queue_up(self, buffers: list[Any]) -> None:
        """Another thread is sending, and perhaps the peer takes nothing in."""
        with self._queue_lock:
            self._queueing += 1
        try:
            with self._core.thread_pool.blocked(), self._send_lock:
                self._send_now(buffers)
        finally:
            with self._queue_lock:
                self._queueing -= 1
                opens = self._is_shut and self._queueing <= _FEW_QUEUEING
                if opens:
                    self._is_shut = False
            if opens:
                self._core.thread_pool.resume(self)

    def _shuts(self) -> bool:
        """Whether nothing more is read until those who queue up are through."""
        with self._queue_lock:
            self._is_shut = self._queueing >= _MOST_QUEUEING
            return self._is_shut

    def _send_held(self) -> None:
        try:
            self._send([])
        except ConnectionError as error:
            self._core.note("reply.undeliverable", f"{self!r}: {error}")

    def say_at_last(self, message: Message, timeout_seconds: float) -> None:
        """See `StreamChannel.say_at_last`."""
        if self._send_lock.acquire(timeout=timeout_seconds):
            try:
                if self.connection.has_room(timeout_seconds):
                    held, self._held = self._held, []
                    last = encode(message, self._core.limits, None, self._is_authenticated)
                    self.connection.send([*held, *last])
            finally:
                self._send_lock.release()

    def signs_of_life(self) -> tuple[object, ...]:
        """Values that differ from those of before if the peer has done something since."""
        return (*self._decoder.position, *self.connection.signs_of_life())

    def serve(self) -> None:
        """Handles what has arrived, in order, until all is done or the reading right is lost."""
        messages = self._decoder.messages
        self._spinner.note_arrival()
        try:
            while True:
                while messages:
                    if self._queueing >= _MOST_QUEUEING and self._shuts():
                        return
                    message = messages.popleft()
                    may_hold = (
                        messages and len(self._held) < _MOST_HELD and not self._is_authenticated
                    )
                    self._holder = threading.get_ident() if may_hold else None
                    if not self._dispatch(message):
                        if self._held:
                            self._core.thread_pool.spawn(self._send_held)
                        return
                # A peer that does not read its answers must not keep this worker from reading.
                if self._held and not self._core.thread_pool.run_as_reader(self, self._send_held):
                    return
                if self._queueing >= _MOST_QUEUEING and self._shuts():
                    return
                self._receive()
        except BlockingIOError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing can be read after it
            self._lost(error)
            return
        self._core.thread_pool.arm(self.connection)

    def leave(self) -> Callable[[], None] | None:
        self._holder = None
        if self._decoder.messages:
            self._core.thread_pool.revisit(self)
        else:
            self._core.thread_pool.arm(self.connection)
        return self._send_held if self._held else None

    def _receive(self) -> None:
        """Takes in what has come; `BlockingIOError` where nothing has."""
        decoder = self._decoder
        # A peer that waits for this answer will soon call again.
        self._spinner.receive(self.connection, decoder.space(), decoder.counts)
        if not decoder.counts:
            self.connection.receive_into(decoder.space(), decoder.counts, 0)
        if 0 in decoder.counts:
            raise ConnectionResetError("it closed the connection")
        decoder.absorb()

    def _dispatch(self, message: Message) -> bool:
        """Has one message handled; True while this thread is the reader."""
        pool = self._core.thread_pool
        invocation = self.invocation(message)
        if invocation is not None:
            duplicates, number = self.duplicates, message.request  # type: ignore[attr-defined]
            if number == duplicates.next:
                duplicates.next = number + 1
            elif not self.may_begin(invocation):
                return True
            known = invocation.known
            if known.is_quick or (known.is_short and self._is_all_there_is()):
                return pool.run_quick(self, invocation.serve)
            return pool.run_apart(self, invocation.serve)
        handler = self.serving.handlers.get(type(message))
        if handler is None:
            raise RemoteProtocolError(f"a {type(message).__name__} came where requests belong")
        sender = self.peer.worker
        return pool.handle_as_reader(self, lambda: handler(sender, message))

    def _is_all_there_is(self) -> bool:
        """Whether nobody else would have to wait while the reader runs a function."""
        return not self._decoder.messages and not self._core.thread_pool.has_more()

    def _lost(self, cause: BaseException) -> None:
        self.close()
        self._callers.caller_lost(self, cause)

    def close(self) -> None:
        """Ends it; harmless when repeated."""
        self._core.thread_pool.forget(self.connection)
        self.connection.close()


class Acceptor:
    """Lets callers in; a source of the pool."""

    def __init__(
        self, core: Core, listener: Listener, pending_handshakes: PendingHandshakes
    ) -> None:
        self._core = core
        self._listener = listener
        self._pending_handshakes = pending_handshakes
        core.thread_pool.watch(listener, self)
        core.thread_pool.arm(listener)

    def serve(self) -> None:
        """Accepts all who wait. Where this process can open no more files, they wait on, and who
        has not proved anything for longest makes room."""
        try:
            while (connection := self._listener.accept()) is not None:
                self._pending_handshakes.admit(connection)
        except OSError as error:
            self._core.note("accept.failed", str(error))
            self._pending_handshakes.make_room()
            self._core.call_later(_PAUSE_SECONDS, self._listen)
        else:
            self._listen()

    def _listen(self) -> None:
        self._core.thread_pool.arm(self._listener)

    def leave(self) -> None:
        """The reader never leaves in the middle of `serve`."""

    def close(self) -> None:
        """Lets nobody in any more."""
        self._core.thread_pool.forget(self._listener)
        self._listener.close()
