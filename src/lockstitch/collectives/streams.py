"""Results that a stream of a GPU still computes: whoever asks for one lets its own stream wait, and
goes on at once.

Where a tensor goes from stream to stream torch has to be told (`record_stream`), or its memory is
given away while a stream still uses it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Streams:
    """The streams that are current in this thread, on the devices of some tensors."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        self._streams = [torch.cuda.current_stream(device) for device in devices]

    def current(self) -> ExitStack:
        """A context in which they are current again, in whichever thread."""
        stack = ExitStack()
        for stream in self._streams:
            stack.enter_context(torch.cuda.stream(stream))
        return stack

    def let_wait(self, tensors: Sequence[object]) -> None:
        """What is given from now on to the streams that are current here comes after what has been
        given to these; so the tensors may be used there."""
        for stream in self._streams:
            current = torch.cuda.current_stream(stream.device)
            if current == stream:
                continue
            current.wait_stream(stream)
            is_used_on(current, tensors)

    def record(self) -> list[torch.cuda.Event]:
        """Events that say when all that was given to them is done."""
        return [stream.record_event() for stream in self._streams]


def have_come(events: Iterable[torch.cuda.Event]) -> bool:
    """Whether nobody would wait for these."""
    return all(event.query() for event in events)  # type: ignore[no-untyped-call]


def wait_for(events: Iterable[torch.cuda.Event]) -> None:
    """Waits in this thread, which nobody else needs meanwhile."""
    for event in events:
        event.synchronize()


def is_used_on(stream: torch.cuda.Stream, tensors: Iterable[object]) -> None:
    """Tells torch that a stream uses those of the tensors that are on its device."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.device == stream.device:
            tensor.record_stream(stream)


class Arrival:
    """The landing of a result that the streams of who has submitted it compute."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def __call__(self, value: Any) -> Any:
        """The result; what the current streams are given from now on comes after it."""
        self._streams.let_wait(value if isinstance(value, list) else [value])
        return value

    def abandon(self) -> None:
        """Nothing: the operation failed."""
