"""Streams for tests: two ends in one thread, and between them somebody who may change all."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from lockstitch.ids import WorkerInfo
from lockstitch.link.door import Guest
from lockstitch.link.handshake import ListenerHandshake, why_other_version
from lockstitch.trust import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SECRET, OTHER_SECRET = Secret(bytes(range(32))), Secret(bytes(32))
HERE, THERE = WorkerInfo("rank1", 1), WorkerInfo("rank0", 0)


class End:
    """One end. What is sent passes `change`, and is kept in `sent`, too; an empty piece is the end
    of the stream. Before nothing can be received, `idle` is called."""

    def __init__(self) -> None:
        self.peer: End | None = None
        self.pieces: deque[bytes] = deque()
        self.sent: list[bytes] = []
        self.change: Callable[[bytes], bytes] = lambda data: data
        self.idle: Callable[[], object] = lambda: None
        self.is_closed = self.has_ended = False

    def send(self, buffers: Sequence[bytes]) -> None:
        if self.has_ended:
            raise BrokenPipeError("closed")
        data = b"".join(buffers)
        self.sent.append(data)
        assert self.peer is not None
        changed = self.change(data)
        if changed:
            self.peer.pieces.append(changed)

    def receive_into(
        self, view: memoryview, counts: list[int], _timeout_seconds: float | None
    ) -> None:
        if not self.pieces:
            self.idle()
        if not self.pieces:
            if self.is_closed or (self.peer is not None and self.peer.has_ended):
                counts.append(0)
                return
            raise BlockingIOError("nothing yet")
        piece = self.pieces.popleft()
        count = min(len(view), len(piece))
        view[:count] = piece[:count]
        if piece[count:]:
            self.pieces.appendleft(piece[count:])
        counts.append(count)

    def end_sending(self) -> None:
        self.has_ended = True

    def close(self) -> None:
        self.is_closed = self.has_ended = True


def pair() -> tuple[End, End]:
    near, far = End(), End()
    near.peer, far.peer = far, near
    return near, far


def guest(stream: End, secret: Secret | None = SECRET, refusal: str = "") -> Guest[End]:
    return Guest(
        stream, ListenerHandshake(THERE, secret, lambda hello: refusal or why_other_version(hello))
    )
