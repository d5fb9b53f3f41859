"""Streams between the processes of one user on one machine, over unix sockets.

Nobody else may talk to a worker, since a worker runs what it is told to: the socket lies in a fresh
directory that only its user may enter, and each end asks the kernel who the other one is.

Beside the stream the two ends may share memory: for what is large (`segments`), and for what is
short, while the receiver looks for it (`ring`).
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from lockstitch.folders import Folder
from lockstitch.link.sockets import cpu_ticks, peer_credentials
from lockstitch.memory import handover, ring
from lockstitch.memory.mapping import Mapping
from lockstitch.memory.received_segments import ReceivedSegments
from lockstitch.memory.segments import LEAST_BYTES, LentSegments
from lockstitch.transport.polling import EpollPoller
from lockstitch.transport.ring_stream import RingStream
from lockstitch.transport.stream import (
    StreamListener,
    as_connection_error,
    set_timeout,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.memory.handover import Handover, Note
    from lockstitch.memory.host_copies import Filled
    from lockstitch.memory.leases import Loan, SegmentLease
    from lockstitch.memory.segments import SegmentPool
    from lockstitch.transport.base import Buffer, RemainingTime

_SCHEME = "unix:"
_BACKLOG = 1024
# Half of it is the kernel's own bookkeeping; memory is only taken while bytes are on their way.
_SEND_BUFFER_BYTES = 1 << 20
_LONGEST_PATH = 107


class UnixConnection(RingStream):
    """A stream, and shared memory beside it where both ends want that."""

    def __init__(self, sock: socket.socket, peer: str, segments: SegmentPool | None) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        process, _user = peer_credentials(sock)
        super().__init__(sock, peer, is_own_process=process == os.getpid())
        self._process = process
        self._segments = segments
        self._handover: Handover | None = None
        self._lent: LentSegments | None = None
        self._received: ReceivedSegments | None = None
        self._beginning: list[Note] = []
        """What the first byte was, once the caller has sent it."""

    def signs_of_life(self) -> tuple[int, ...]:
        """What of a long message has left, and the CPU time of the process at the other end: it may
        be busy where it cannot answer, but a stopped process uses none."""
        return (*super().signs_of_life(), cpu_ticks(self._process))

    def lend(self, nbytes: int, filled: Filled | None = None) -> Loan | None:
        """A segment, if it is quicker than the stream; see `Connection.lend`."""
        if nbytes < LEAST_BYTES or self._lent is None:
            return None
        if filled is not None:
            return self._lent.lend_copy(filled)
        return self._lent.lend(nbytes)

    def window(self, number: int) -> tuple[Any, SegmentLease]:
        """The segment that the peer has lent; see `Connection.window`."""
        if self._received is None:
            return super().window(number)
        return self._received.window(number)

    def share_memory(self, link: Handover | None) -> None:
        """From now on descriptors can be handed over by `link`."""
        if link is not None and self._segments is not None:
            self._handover = link
            self._received = ReceivedSegments(link, self._segments.reserve)
            self._lent = LentSegments(self._segments, link)
            if self.is_closed:  # in the meantime
                self._end_sharing()
        elif link is not None:
            link.close()

    def make_beginning(self) -> None:
        """This end calls: the first byte, which it sends with the first message, tells whether it
        shares memory."""
        self.send = self._send_beginning  # type: ignore[method-assign]

    def _send_beginning(
        self,
        buffers: Sequence[Buffer],
        sent: list[int] | None = None,
        *,
        remaining_time: RemainingTime | None = None,
    ) -> None:
        """Takes the place of `send` until the first byte has left. Interrupted, the connection is
        of no use; it has not been used yet, either."""
        try:
            if self._closed:
                raise BrokenPipeError(f"the connection to {self.peer} is closed")
            self._offer_to_share()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise as_connection_error(error, self.peer) from error
            raise
        del self.send
        self.send(buffers, sent, remaining_time=remaining_time)

    def await_beginning(self) -> None:
        """This end was called: the first byte tells whether the caller shares memory."""
        self._recv_into = self._receive_beginning  # type: ignore[assignment]

    def _receive_beginning(self, view: memoryview, nbytes: int = 0, flags: int = 0) -> int:
        """Takes the place of the socket's `recv_into` until the first byte has come."""
        if not self._beginning:
            handover.receive_beginning(self._socket, self._beginning, flags)
        if not self._beginning[0][0]:
            return 0
        link, descriptors = handover.begin(self._beginning[0])
        self.share_memory(link)
        self._take_rings(descriptors)
        self._recv_into = self._socket.recv_into
        return self._socket.recv_into(view, nbytes, flags)

    def close(self) -> None:
        """Ends it, and forgets what was lent; harmless when repeated."""
        super().close()
        self._end_sharing()

    # ------------------------------------------------------------ rings

    def _offer_to_share(self) -> None:
        """Begins the connection, with a handover and with rings where this side wants that."""
        wanted = self._segments is not None
        memory, descriptors = None, []
        if wanted and ring.IS_AVAILABLE and not self.is_own_process:
            try:
                memory, descriptor = ring.create()
                descriptors.append(descriptor)
            except OSError:  # no memory, no descriptors: the stream will do
                pass
        try:
            link = handover.offer(self._socket, wanted=wanted, descriptors=descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self.share_memory(link)
        if memory is not None and link is not None:
            ours, theirs = ring.both_ways(memory)
            self.use_rings(ours, theirs)

    def _take_rings(self, descriptors: Sequence[int]) -> None:
        for descriptor in descriptors:
            try:
                if ring.IS_AVAILABLE:
                    theirs, ours = ring.both_ways(Mapping(descriptor, 2 * ring.RING_BYTES))
                    self.use_rings(ours, theirs)
            except OSError:  # it cannot be mapped, and nobody will ever look into it
                pass
            finally:
                os.close(descriptor)

    # ------------------------------------------------------------ segments

    def _end_sharing(self) -> None:
        if self._lent is not None:
            self._lent.close()
        if self._received is not None:
            self._received.close()
        if self._handover is not None:
            self._handover.close()


class UnixTransport:
    """Makes unix-socket streams; addresses are `unix:/path`.

    `segments` are lent to peers and taken from them; None leaves it at streams.
    """

    def __init__(self, segments: SegmentPool | None = None) -> None:
        self._segments = segments
        self._folders: list[Folder] = []

    def listen(self, address: str | None = None) -> StreamListener:
        """Listens at `address`, or in a fresh directory (mode 0700); the socket has mode 0600.

        Raises `OSError` when the address is taken or its path too long (107 bytes).
        """
        path = self._fresh_path() if address is None else _path_of(address)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(path)
            os.chmod(path, 0o600)
            sock.listen(_BACKLOG)
        except BaseException:
            sock.close()
            raise
        return StreamListener(sock, _SCHEME + path, self._accepted)

    def connect(self, address: str, timeout_seconds: float) -> UnixConnection:
        """Connects to the listener at `address`; waits while its backlog is full.

        Raises `ConnectionError` when nobody listens there or the listener is another user's,
        `TimeoutError` when the time is over.
        """
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise ConnectionError(f"cannot connect to {address}: {error}") from error
        try:
            sock.setblocking(True)
            # Waiting for room in the backlog counts as sending.
            set_timeout(sock, socket.SO_SNDTIMEO, timeout_seconds)
            sock.connect(_path_of(address))
            set_timeout(sock, socket.SO_SNDTIMEO, None)
            _check_peer(sock)
            connection = UnixConnection(sock, address, self._segments)
            connection.make_beginning()
            return connection
        except BlockingIOError as error:
            sock.close()
            raise TimeoutError(f"{address} did not answer in {timeout_seconds} s") from error
        except OSError as error:
            sock.close()
            raise ConnectionError(f"cannot connect to {address}: {error}") from error
        except BaseException:
            sock.close()
            raise

    def poller(self) -> EpollPoller:
        return EpollPoller()

    def close(self) -> None:
        """Removes the sockets' folders, unless this is a forked child."""
        while self._folders:
            self._folders.pop().close()

    def _accepted(self, sock: socket.socket) -> UnixConnection:
        process = _check_peer(sock)
        connection = UnixConnection(sock, f"{_SCHEME}process {process}", self._segments)
        connection.await_beginning()
        return connection

    def _fresh_path(self) -> str:
        folder = Folder()
        if len(os.fsencode(folder.path / "socket")) > _LONGEST_PATH:
            folder.close()
            folder = Folder("/tmp")
        self._folders.append(folder)
        return str(folder.path / "socket")


def _path_of(address: str) -> str:
    if not address.startswith(_SCHEME):
        raise ValueError(f"not a unix address: {address!r}")
    return address.removeprefix(_SCHEME)


def _check_peer(sock: socket.socket) -> int:
    """The process at the other end; raises `PermissionError` when that is a stranger's."""
    process, user = peer_credentials(sock)
    if user != os.geteuid():
        raise PermissionError(f"the other end belongs to user {user}, not to {os.geteuid()}")
    return process
