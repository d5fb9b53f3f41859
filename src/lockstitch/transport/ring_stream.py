"""Streams with a ring along each direction (`transport.ring`): what is short goes there, while
somebody looks; all else, and what wakes those who sleep, goes by the stream.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from lockstitch.transport.base import SendTimeoutError
from lockstitch.transport.ring import KNOCK, TAKEN, RingReader, RingWriter
from lockstitch.transport.stream import StreamConnection, as_connection_error, size_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.transport.base import Buffer, Patience
    from lockstitch.transport.waker import Waker

# How many bytes have been sent, where an interrupt has kept that from being known: then nothing is
# put into the ring any more.
_UNKNOWN = -1
_PEEKING = int(socket.MSG_PEEK)
_KNOCKING = ((b"\0",), (socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0),))


class RingStream(StreamConnection):
    """A stream, with rings from when it is given some."""

    def __init__(self, sock: socket.socket, peer: str, *, is_own_process: bool = False) -> None:
        super().__init__(sock, peer, is_own_process=is_own_process)
        self._writer: RingWriter | None = None
        self._sent = 0
        """How many bytes have been sent, or kept to be, along the stream."""
        self._taken = 0
        self._glimpse = memoryview(bytearray(1))

    def use_rings(self, outgoing: memoryview, incoming: memoryview) -> None:
        """From now on there are rings in this memory, as `ring.both_ways` gives it."""
        self._writer, self.ring = RingWriter(outgoing), RingReader(incoming)
        if self.is_closed:  # in the meantime
            self._forget_rings()

    def abandon(self) -> None:
        """See `StreamConnection.abandon`."""
        self._forget_rings()
        super().abandon()

    def close(self) -> None:
        """See `StreamConnection.close`."""
        super().close()
        self._forget_rings()

    def _forget_rings(self) -> None:
        self._writer = self.ring = None

    def send(
        self,
        buffers: Sequence[Buffer],
        sent: list[int] | None = None,
        *,
        patience: Patience | None = None,
    ) -> None:
        """Sends all of `buffers`; see `Connection.send`."""
        writer = self._writer
        if (
            writer is not None
            and len(buffers) == 1
            and type(buffers[0]) is bytes
            and self._left_over is None
        ):
            try:
                has_left = writer.put(buffers[0], self._sent)
            finally:
                if writer.is_doubtful:
                    self._see_to_notice(writer)
            if has_left:
                return
        position, self._sent = self._sent, _UNKNOWN
        if sent is None:
            sent = []
        try:
            super().send(buffers, sent, patience=patience)
        except BaseException as error:
            if position != _UNKNOWN:
                is_kept = isinstance(error, SendTimeoutError) and error.is_begun
                self._sent = position + sum(map(size_of, buffers) if is_kept else sent)
            raise
        if position != _UNKNOWN:
            self._sent = position + sum(sent)

    def _see_to_notice(self, writer: RingWriter) -> None:
        """Knocks, where nobody looks any more who could notice what is in the ring."""
        if not writer.is_noticed():
            sent: list[int] = []
            writer.words[KNOCK] = self._sent + 1
            try:
                sent.extend(map(self._send, *_KNOCKING))
            except OSError as error:
                raise as_connection_error(error, self.peer) from error
            finally:
                if sent:
                    self._sent += 1
                else:  # nobody can tell any more where the knock lies
                    self.close()
        writer.is_doubtful = False

    def receive_into(
        self,
        view: memoryview,
        counts: list[int],
        timeout_seconds: float | None,
        flags: int = 0,
    ) -> None:
        """Waits for bytes; see `Connection.receive_into`."""
        reader = self.ring
        if reader is None:
            self._receive_counted(view, counts, timeout_seconds, flags)
            return
        while not reader.take(view, counts):
            if timeout_seconds != 0 and reader.look_away():
                continue
            seen: list[int] = []
            super().receive_into(self._glimpse, seen, timeout_seconds, _PEEKING)
            if reader.take(view, counts):
                return
            if reader.words[KNOCK] == self._taken + 1 and 0 not in seen:
                seen.clear()
                self._receive_counted(self._glimpse, seen, 0, 0)
            else:
                self._receive_counted(view, counts, 0, 0)
                return

    def _receive_counted(
        self, view: memoryview, counts: list[int], timeout_seconds: float | None, flags: int
    ) -> None:
        received: list[int] = []
        try:
            super().receive_into(view, received, timeout_seconds, flags)
        finally:
            if received:  # from here on without a call: no interrupt can come between
                counts += received
                self._taken += received[0]
                if self.ring is not None:
                    self.ring.words[TAKEN] = self._taken

    def has_left_over(self) -> bool:
        """See `Connection.has_left_over`."""
        reader = self.ring
        return reader is not None and reader.look_away()

    def wait_readable(self, waker: Waker) -> None:
        """See `StreamConnection.wait_readable`."""
        if not self.has_left_over():
            super().wait_readable(waker)
