"""Streams over sockets: what unix and TCP connections have in common.

The sockets block: a thread that waits for one peer sits in `recv`, the shortest way there is. Two
things need care.

*Closing.* A descriptor that is closed while a thread is inside a call on it may be given to another
file at once, and the call would then hit that one. So `close` only shuts the stream down, which
wakes whoever is inside, and the last one out (receiver, sender, poller) gives the descriptor back.

*Interrupts.* A Ctrl-C may be raised between any two bytecodes, also between `recv` and the storing
of its result. Hence `counts.extend(map(recv_into, (view,)))`: call and storing are one C call, into
a list that outlives the interrupt.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

from lockstitch.forks import abandon_in_child
from lockstitch.link.sockets import bound_silence, probe_silence, seconds_unacknowledged
from lockstitch.transport.base import SendTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.memory.host_copies import Filled
    from lockstitch.memory.leases import Loan, SegmentLease
    from lockstitch.memory.ring import RingReader
    from lockstitch.transport.base import Buffer, RemainingTime, Seal
    from lockstitch.transport.waker import Waker

_SEND_SECONDS = 1.0
_MOST_BUFFERS = os.sysconf("SC_IOV_MAX")
# Arguments for `map`, which wants an iterable for each parameter.
_WHOLE_VIEW = (0,)
_DONT_WAIT = (socket.MSG_DONTWAIT,)
_NO_ANCILLARY: tuple[tuple[()]] = ((),)
# A peer's death is an exception for the sender, also where a program gave SIGPIPE its default back.
AT_ONCE = (getattr(socket, "MSG_NOSIGNAL", 0) | socket.MSG_DONTWAIT,)


class SocketEnd:
    """A socket whose descriptor is given back only when nobody is inside any more."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._closed = False
        self._watchers = 0
        # Reentrant, because a destructor may close while this very thread is closing.
        self._closing = threading.RLock()
        abandon_in_child(self)

    def has_left_over(self) -> bool:
        """See `Connection.has_left_over`."""
        return False

    @property
    def is_closed(self) -> bool:
        """Whether this side has closed it."""
        return self._closed

    def close(self) -> None:
        """Ends it; harmless when repeated. Wakes whoever is inside."""
        with self._closing:
            self._closed = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._leave()

    def abandon(self) -> None:
        """Closes a forked child's copy, leaving the stream to the parent."""
        self._closed = True
        self._socket.close()

    def watch(self) -> int:
        """The descriptor for a poller, kept until `unwatch`; -1 when it is gone already."""
        with self._closing:
            self._watchers += 1
            return self._socket.fileno()

    def unwatch(self) -> None:
        """The poller has let go of the descriptor."""
        with self._closing:
            self._watchers -= 1
            if self._closed:
                self._leave()

    def _is_in_use(self) -> bool:
        return self._watchers > 0

    def _leave(self) -> None:
        with self._closing:
            if not self._is_in_use():
                self._socket.close()


class StreamConnection(SocketEnd):
    """A connected stream socket as a `Connection`.

    `is_own_process` says that both ends are known to be in this process.
    """

    is_exposed = False
    ring: RingReader | None = None
    """What short messages come by while this end looks for them."""
    _seal: Seal

    def __init__(self, sock: socket.socket, peer: str, *, is_own_process: bool = False) -> None:
        super().__init__(sock)
        sock.setblocking(True)  # whatever socket.setdefaulttimeout says
        self.peer = peer
        self.is_own_process = is_own_process
        self.progress = 0
        """See `Connection.progress`."""
        self._sealed: tuple[int, list[int]] = (0, [])
        """Where in the stream the next message begins, and what of one that was not sent whole."""
        self._left_over: tuple[bytes, list[int]] | None = None
        """The rest of a message whose sender had no time left, and what of it has left."""
        self._receiving = False
        self._sending = False
        self._timeout_in_force: float | None = None
        self._low_water = 1
        self._recv_into = sock.recv_into
        self._send = sock.send
        self._sendmsg = sock.sendmsg

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<StreamConnection to {self.peer!r} · {state}>"

    def receive_into(
        self, view: memoryview, counts: list[int], timeout_seconds: float | None
    ) -> None:
        """Waits for bytes; see `Connection.receive_into`.

        A signal whose handler returns makes the waiting start anew.
        """
        # Order matters: announce first, then look whether it is closed; `close` does the reverse.
        self._receiving = True
        try:
            if self._closed:
                counts.append(0)
            elif timeout_seconds == 0:
                counts.extend(map(self._recv_into, (view,), _WHOLE_VIEW, _DONT_WAIT))
            else:
                # setsockopt is dear beside the rest, so it is called only for another value.
                if timeout_seconds != self._timeout_in_force:
                    set_timeout(self._socket, socket.SO_RCVTIMEO, timeout_seconds)
                    self._timeout_in_force = timeout_seconds
                counts.extend(map(self._recv_into, (view,)))
        except (BlockingIOError, ConnectionError):
            raise
        except OSError as error:
            raise as_connection_error(error, self.peer) from error
        finally:
            self._receiving = False
            if self._closed:
                self._leave()

    def wait_readable(self, waker: Waker, others: Sequence[StreamConnection] = ()) -> None:
        """Blocks until there is something to receive, be it the end, here or from one of the
        `others`, or `waker` is released."""
        ends = (self, *others)
        for end in ends:
            end._receiving = True
        try:
            if not any(end._closed or end._has_unseen() for end in ends):
                poll = select.poll()
                for end in ends:
                    poll.register(end._socket, select.POLLIN)
                poll.register(waker.descriptor, select.POLLIN)
                poll.poll()
        finally:
            for end in ends:
                end._receiving = False
            for end in ends:
                if end._closed:
                    end._leave()

    def _has_unseen(self) -> bool:
        """Whether there may be something that the socket does not tell of; what comes from now on
        it will."""
        return False

    def send(
        self,
        buffers: Sequence[Buffer],
        sent: list[int] | None = None,
        *,
        remaining_time: RemainingTime | None = None,
    ) -> None:
        """Sends all of `buffers`; see `Connection.send`. Appends to `sent` how many bytes have left
        in each call of the system, none of which waits: what waits is `_await_room`.

        When an interrupt comes after a part has left, the rest is still sent before it is raised; a
        second interrupt gives up and closes the connection.
        """
        self._sending = True
        if sent is None:
            sent = []
        try:
            if self._closed or self._left_over is not None:
                self._send_left_over(remaining_time)
            try:
                if len(buffers) == 1:
                    sent.extend(map(self._send, buffers, AT_ONCE))
                    if type(buffers[0]) is bytes and sent[0] == len(buffers[0]):
                        return
                elif 0 < len(buffers) <= _MOST_BUFFERS:
                    sent.extend(map(self._sendmsg, (buffers,), _NO_ANCILLARY, AT_ONCE))
            except BlockingIOError:  # there is no room
                sent.append(0)
            if sum(sent) != sum(map(size_of, buffers)):
                self._send_rest_or_keep(buffers, sent, remaining_time)
        except BaseException as error:
            if isinstance(error, OSError) and error.errno is not None:
                self.end_sending()
                raise as_connection_error(error, self.peer) from error
            if sent and not self._closed and type(error) is not SendTimeoutError:
                self._keep_whole(buffers, sent)
            raise
        finally:
            self._sending = False
            if self._closed:
                self._leave()

    def send_some(self, buffers: Sequence[Buffer]) -> int:
        """Sends as much of `buffers` as there is room for, and returns how many bytes; it never
        waits. For a thread that no interrupt reaches, and that keeps the descriptor (`watch`).
        Raises `ConnectionError`."""
        if self._closed:
            raise BrokenPipeError(f"the connection to {self.peer} is closed")
        try:
            return self._sendmsg(buffers, (), *AT_ONCE)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise as_connection_error(error, self.peer) from error

    def receive_some(self, buffers: Sequence[bytearray | memoryview]) -> int:
        """Takes in what is there for `buffers`, one after the other, and returns how many bytes,
        perhaps none; likewise. The end raises `ConnectionError`, too."""
        if self._closed:
            raise BrokenPipeError(f"the connection to {self.peer} is closed")
        try:
            count = self._socket.recvmsg_into(buffers, 0, socket.MSG_DONTWAIT)[0]
        except BlockingIOError:
            return 0
        except OSError as error:
            raise as_connection_error(error, self.peer) from error
        if not count:
            raise ConnectionResetError(f"{self.peer} has closed the connection")
        return count

    def _send_rest(
        self,
        buffers: Sequence[Buffer],
        sent: list[int],
        remaining_time: RemainingTime | None = None,
    ) -> None:
        while rest := _unsent(buffers, sum(sent)):
            self._await_room(remaining_time)
            if self._closed:
                raise BrokenPipeError(f"the connection to {self.peer} is closed")
            with contextlib.suppress(BlockingIOError):
                sent.extend(map(self._sendmsg, (rest[:_MOST_BUFFERS],), _NO_ANCILLARY, AT_ONCE))
                self.progress += 1

    def _send_rest_or_keep(
        self, buffers: Sequence[Buffer], sent: list[int], remaining_time: RemainingTime | None
    ) -> None:
        try:
            self._send_rest(buffers, sent, remaining_time)
        except SendTimeoutError as error:
            if sum(sent):
                error.is_begun = True
                self._left_over = b"".join(_unsent(buffers, sum(sent))), []
            raise

    def _send_left_over(self, remaining_time: RemainingTime | None) -> None:
        if self._closed:
            raise BrokenPipeError(f"the connection to {self.peer} is closed")
        if self._left_over is not None:
            rest, sent = self._left_over  # whatever interrupts this, it is known what has left
            self._send_rest([rest], sent, remaining_time)
            self._left_over = None

    def _await_room(self, remaining_time: RemainingTime | None) -> None:
        """Waits until something can be sent, or the stream has ended, or for a second."""
        seconds = _SEND_SECONDS
        if remaining_time is not None:
            seconds = min(seconds, remaining_time())
            if seconds <= 0:
                raise SendTimeoutError(self.peer)
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        poll.poll(math.ceil(seconds * 1000))

    def end_sending(self) -> None:
        """What has failed may have left in part, or not at all, whatever the reason was. The peer
        must not wait for it: it sees the stream end. What it has sent can still be received."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def _keep_whole(self, buffers: Sequence[Buffer], sent: list[int]) -> None:
        """After an interrupt: half a message would make all that follows unreadable."""
        try:
            self._send_rest(buffers, sent)
        except OSError:
            self.close()  # the interrupt is what the caller hears of
        except BaseException:
            self.close()
            raise

    def seal(self, seal: Seal) -> None:
        """See `Connection.seal`."""
        self._seal = seal
        self._sealed = (0, [])
        self.send = self._send_sealed  # type: ignore[method-assign]

    def _send_sealed(
        self,
        buffers: Sequence[Buffer],
        sent: list[int] | None = None,
        *,
        remaining_time: RemainingTime | None = None,
    ) -> None:
        # An interrupt may have come before the last message had left, or after it: what has left is
        # counted where it leaves, and kept in one place.
        place, last = self._sealed
        place += sum(last)
        sent = []
        self._sealed = (place, sent)
        sealed = self._seal(place, buffers) if buffers else buffers
        try:
            StreamConnection.send(self, sealed, sent, remaining_time=remaining_time)
        except SendTimeoutError as error:
            if error.is_begun:  # the rest will be the next to leave
                self._sealed = (place + sum(map(size_of, sealed)), [])
            raise

    def waits_beside_peer(self, processor: int) -> bool:  # noqa: ARG002
        """Says to the other end on which processor this one waits; whether that is known to have
        waited there last, too."""
        return False

    def has_room(self, timeout_seconds: float) -> bool:
        """See `Connection.has_room`; true where sending would raise."""
        self._sending = True
        try:
            if self._closed:
                return True
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            return bool(poll.poll(timeout_seconds * 1000))
        finally:
            self._sending = False
            if self._closed:
                self._leave()

    def signs_of_life(self) -> tuple[int, ...]:
        """See `Connection.signs_of_life`."""
        return (self.progress,)

    def bound_silence(self, seconds: float) -> None:
        """See `Connection.bound_silence`."""
        bound_silence(self._socket, seconds)

    def await_bytes(self, count: int) -> None:
        """Has the system tell a poller that there is something to receive only when so many bytes
        are there, or the end, over TCP: waking up for each packet costs more than the packet."""
        if count != self._low_water:
            self._low_water = count
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def watch_silence(self, seconds: float) -> None:
        """Has the system see to it that `seconds_unacknowledged` tells of an end that is gone after
        so long."""
        probe_silence(self._socket, seconds)

    def seconds_unacknowledged(self) -> float:
        """Returns for how long the other end's host has said nothing at all; 0 where it owes
        nothing, or the system does not tell."""
        return seconds_unacknowledged(self._socket)

    def lend(self, nbytes: int, filled: Filled | None = None) -> Loan | None:  # noqa: ARG002
        """None: a stream is all there is between the two ends."""
        return None

    def window(self, number: int) -> tuple[Any, SegmentLease]:
        """Raises `ConnectionError`: nothing can have been lent."""
        raise ConnectionError(f"{self.peer} names a segment, {number}, where there can be none")

    def _is_in_use(self) -> bool:
        return self._receiving or self._sending or super()._is_in_use()


class StreamListener(SocketEnd):
    """A listening socket as a `Listener`; `greet` turns what it accepts into a connection."""

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        greet: Callable[[socket.socket], StreamConnection],
    ) -> None:
        super().__init__(sock)
        sock.setblocking(False)
        self.address = address
        self._greet = greet

    def __repr__(self) -> str:
        return f"<StreamListener at {self.address!r} · {'closed' if self._closed else 'open'}>"

    def accept(self) -> StreamConnection | None:
        """One waiting connection, or None; strangers are turned away without a word."""
        with self._closing:  # accepting never blocks, so a lock does for keeping the descriptor
            while not self._closed:
                try:
                    sock, _ = self._socket.accept()
                except BlockingIOError:
                    return None
                except ConnectionAbortedError:
                    continue
                try:
                    return self._greet(sock)
                except OSError:
                    sock.close()
            return None


def set_timeout(sock: socket.socket, option: int, timeout_seconds: float | None) -> None:
    """Sets SO_RCVTIMEO or SO_SNDTIMEO; None is for ever, which the kernel calls 0."""
    # Rounded up, so that a small rest does not become 0.
    microseconds = 0 if timeout_seconds is None else max(1, math.ceil(timeout_seconds * 1e6))
    value = struct.pack("@ll", *divmod(microseconds, 1_000_000))
    sock.setsockopt(socket.SOL_SOCKET, option, value)


def size_of(buffer: Buffer) -> int:
    """Returns how many bytes a buffer holds."""
    # len() of a memoryview counts items.
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def _unsent(buffers: Sequence[Buffer], count: int) -> list[memoryview]:
    """What remains of `buffers` after the first `count` bytes."""
    rest = []
    for buffer in buffers:
        size = size_of(buffer)
        if count < size:
            rest.append(memoryview(buffer).cast("B")[count:])
        count = max(0, count - size)
    return rest


def as_connection_error(error: OSError, peer: str) -> ConnectionError:
    """The error as one of the connection, in words."""
    if isinstance(error, ConnectionError):
        return error
    return ConnectionError(f"the connection to {peer} failed: {error}")
