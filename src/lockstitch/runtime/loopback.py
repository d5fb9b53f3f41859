"""Calls to oneself: the same route without a socket. Values are copied as on the wire, and the
function runs on another thread, so a program behaves alike whoever it calls."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lockstitch.runtime.channel import Channel
from lockstitch.wire.decoding import FrameDecoder
from lockstitch.wire.encoding import encode
from lockstitch.wire.messages import CALLS, Failure, Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.devices.maps import DeviceMap
    from lockstitch.runtime.channel import AnswerSink
    from lockstitch.runtime.core import Core
    from lockstitch.transport.base import RemainingTime
    from lockstitch.wire.messages import Message


class Loopback(Channel):
    """Both ends of a connection to oneself."""

    def __init__(self, core: Core, answers: AnswerSink, receive: Callable[[Message], None]) -> None:
        """`receive` takes what this worker sends to itself."""
        super().__init__(core, core.info, answers)
        self._lock = threading.Lock()
        self._decoder: FrameDecoder | None = None
        self._receive = receive

    def transmit(self, message: Message, remaining_time: RemainingTime | None = None) -> None:
        """A request of ours, or a control message, arrives where it came from, at once."""
        del remaining_time
        device_map = self.device_map if type(message) in CALLS else None
        self._receive(self._copy(message, device_map))

    def send(self, message: Message) -> None:
        """Delivers a reply of this worker to its own request."""
        copied = self._copy(message)
        assert isinstance(copied, (Reply, Failure))
        self.deliver(copied)

    def _copy(self, message: Message, device_map: DeviceMap | None = None) -> Message:
        buffers = encode(message, self.core.limits, device_map=device_map)
        with self._lock:
            # Who is struck by an interrupt leaves none: what is in it would be taken for the next.
            decoder, self._decoder = self._decoder or FrameDecoder(self.core.limits), None
            for buffer in buffers:
                decoder.feed(buffer)
            copied = decoder.messages.popleft()
            self._decoder = decoder
            return copied
