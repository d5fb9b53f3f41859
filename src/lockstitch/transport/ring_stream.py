"""Streams with a ring along each direction (`memory.ring`): what is short goes there, while
somebody looks; all else, and what wakes those who sleep, goes by the stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch.memory.ring import KNOCK, PLACE, SENT, TAIL, TAKEN, RingReader, RingWriter
from lockstitch.transport.base import SendTimeoutError
from lockstitch.transport.stream import AT_ONCE, StreamConnection, as_connection_error, size_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from lockstitch.transport.base import Buffer, RemainingTime

# How many bytes have been sent, where an interrupt has kept that from being known: then nothing is
# put into the ring any more.
_UNKNOWN = -1
_KNOCKING = ((b"\0",), AT_ONCE)


class RingStream(StreamConnection):
    """A stream, with rings from when it is given some."""

    def __init__(self, sock: socket.socket, peer: str, *, is_own_process: bool = False) -> None:
        super().__init__(sock, peer, is_own_process=is_own_process)
        self._writer: RingWriter | None = None
        self._sent = 0
        """How many bytes have been sent, or kept to be, along the stream."""
        self._taken = 0
        self._kept = b""
        """What the stream has brought, but is behind what is in the ring."""

    def use_rings(self, outgoing: memoryview, incoming: memoryview) -> None:
        """From now on there are rings in this memory, as `ring.both_ways` gives it."""
        self._writer, self.ring = RingWriter(outgoing), RingReader(incoming)
        if self.is_closed:  # in the meantime
            self._forget_rings()

    def waits_beside_peer(self, processor: int) -> bool:
        """Says that this end waits on that processor; whether the other end has done so last."""
        reader, writer = self.ring, self._writer
        if reader is None or writer is None:
            return False
        reader.words[PLACE] = processor + 1
        return writer.words[PLACE] == processor + 1

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
        remaining_time: RemainingTime | None = None,
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
            StreamConnection.send(self, buffers, sent, remaining_time=remaining_time)
        except BaseException as error:
            if position != _UNKNOWN:
                is_kept = isinstance(error, SendTimeoutError) and error.is_begun
                self._sent = position + sum(map(size_of, buffers) if is_kept else sent)
            raise
        if position != _UNKNOWN:
            self._sent = position + sum(sent)
            if writer is not None:
                writer.words[SENT] = self._sent

    def end_sending(self) -> None:
        self._writer = None
        super().end_sending()

    def _see_to_notice(self, writer: RingWriter) -> None:
        """Knocks, where nobody looks any more who could notice what is in the ring.

        Not while the stream has something that has not been taken: that wakes the receiver, and a
        knock that comes behind other bytes would pass for one of them."""
        words = writer.words
        if not writer.is_noticed() and words[TAKEN] == self._sent:
            sent: list[int] = []
            self._sending = True  # keeps the descriptor, as in `send`
            words[KNOCK] = self._sent + 1
            try:
                sent.extend(map(self._send, *_KNOCKING))
            except OSError as error:
                raise as_connection_error(error, self.peer) from error
            finally:
                self._sending = False
                if sent:
                    self._sent += 1
                else:  # nobody can tell any more where the knock lies
                    self.close()
                if self._closed:
                    self._leave()
        writer.is_doubtful = False

    def receive_into(
        self, view: memoryview, counts: list[int], timeout_seconds: float | None
    ) -> None:
        """Waits for bytes; see `Connection.receive_into`."""
        reader = self.ring
        if reader is None:
            self._receive_before_rings(view, counts, timeout_seconds)
            return
        words, has_come = reader.words, False
        while not has_come:
            if words[TAIL] != reader.head:
                has_come = reader.take(view, counts)
                continue
            if self._kept and self._take_kept(reader, view, counts):
                return
            if timeout_seconds != 0 and reader.look_away():
                continue
            received: list[int] = []
            try:
                StreamConnection.receive_into(self, view, received, timeout_seconds)
            except ConnectionError:  # a peer may have put in its last answer just before it ended
                if words[TAIL] == reader.head:
                    raise
            finally:
                if received:  # from here on without a call: no interrupt can come between
                    has_knock = words[KNOCK] == self._taken + 1 and received[0]
                    if words[TAIL] != reader.head or has_knock:
                        self._kept = b"" + view[: received[0]]
                    else:
                        counts += received
                        words[TAKEN] = self._taken = self._taken + received[0]
                        has_come = True

    def _receive_before_rings(
        self, view: memoryview, counts: list[int], timeout_seconds: float | None
    ) -> None:
        received: list[int] = []
        try:
            StreamConnection.receive_into(self, view, received, timeout_seconds)
        finally:
            if received:
                counts += received
                self._taken += received[0]
                if self.ring is not None:  # since just now
                    self.ring.words[TAKEN] = self._taken

    def _take_kept(self, reader: RingReader, view: memoryview, counts: list[int]) -> bool:
        """Hands out what the stream has brought while there was something in the ring, which came
        first, but for a knock; False if that was all."""
        kept, words = self._kept, reader.words
        if words[KNOCK] == self._taken + 1:
            self._kept = kept = kept[1:]
            words[TAKEN] = self._taken = self._taken + 1
        if not kept:
            return False
        count = min(len(view), len(kept))
        view[:count] = kept[:count]
        counts += (count,)
        self._kept = kept[count:]
        words[TAKEN] = self._taken = self._taken + count
        return True

    def has_left_over(self) -> bool:
        """See `Connection.has_left_over`."""
        reader = self.ring
        return reader is not None and (reader.look_away() or len(self._kept) > 0)

    def _has_unseen(self) -> bool:
        return self.has_left_over()
