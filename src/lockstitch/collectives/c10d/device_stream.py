"""The stream of a GPU on which a plane works, and how tensors come there and away.

Operations run beside what the program computes, and wait for it only where they need it: for what
had been given to the stream that was current where the operation was submitted. Whoever asks for
the result lets its own stream wait for it. No thread waits for the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lockstitch.collectives.streams import Streams, is_used_on

if TYPE_CHECKING:
    from lockstitch.collectives.requests import Request


class DeviceStream:
    """Of one plane."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def current(self) -> torch.cuda.StreamContext:
        """A context in which it is the current one."""
        return torch.cuda.stream(self._stream)

    def passage(self, request: Request) -> Passage:
        """For a request that is submitted in this thread, now."""
        return Passage(request, self._stream)

    def finish(self) -> None:
        """Waits for all that was given to it."""
        self._stream.synchronize()


class Passage:
    """One operation's way to the stream and back: the landing of its handle."""

    def __init__(self, request: Request, stream: torch.cuda.Stream) -> None:
        self._tensors = [*request.tensors, *(request.outputs or ())]
        self._stream = stream
        self._is_ready = Streams(self._tensors).record()
        self._is_done: torch.cuda.Event | None = None

    def begin(self) -> None:
        """From now on the stream may use the tensors."""
        for event in self._is_ready:
            self._stream.wait_event(event)
        is_used_on(self._stream, self._tensors)
        self._tensors = []

    def end(self) -> None:
        """The stream has been given all that makes the result."""
        self._is_done = self._stream.record_event()

    def __call__(self, value: Any) -> Any:
        """The result; what the current stream is given from now on comes after it."""
        current = torch.cuda.current_stream(self._stream.device)
        if self._is_done is not None and current != self._stream:
            current.wait_event(self._is_done)
            is_used_on(current, value if isinstance(value, list) else [value])
        return value

    def abandon(self) -> None:
        """Nothing: the operation failed."""
