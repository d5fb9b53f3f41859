"""Work that is queued on the streams of GPUs: who waits for whom, and whose memory is being read.

A stream works through its queue without regard to others. So whoever gives a tensor away notes up
to where its queue must have come (`Streams.record`), whoever takes it lets its own queue wait for
that (`Streams.wait_for`), and the allocator is told of both (`use_here`, `use_on`): else it would
hand out memory again that one of them has still to read. The CPU waits only where it says so.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from lockstitch.devices.kinds import is_gpu, is_gpu_context_open
from lockstitch.torch_internals.tensors import indices_of, values_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Event: TypeAlias = torch.cuda.Event
"""A place in the queue of a stream."""


class Streams:
    """The streams that are current in this thread on the GPUs among `devices`, each once."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        gpus = dict.fromkeys(device for device in devices if is_gpu(device))
        self._streams = [torch.cuda.current_stream(gpu) for gpu in gpus]

    @classmethod
    def of(cls, tensors: Iterable[torch.Tensor]) -> Streams:
        """Those on the devices of some tensors."""
        return cls([tensor.device for tensor in tensors])

    def current(self) -> ExitStack:
        """A context in which they are current again, in whichever thread."""
        stack = ExitStack()
        for stream in self._streams:
            stack.enter_context(torch.cuda.stream(stream))
        return stack

    def record(self) -> list[Event]:
        """Events that say when all that was given to them is done."""
        return [stream.record_event() for stream in self._streams]

    def wait_for(self, events: Sequence[Event]) -> None:
        """What is given to them from now on comes after all these events."""
        for stream in self._streams:
            for event in events:
                stream.wait_event(event)

    def let_wait(self, tensors: Iterable[object]) -> None:
        """What is given from now on to the streams that are current here comes after what has been
        given to these; so the tensors may be used there."""
        for stream in self._streams:
            current = torch.cuda.current_stream(stream.device)
            if current == stream:
                continue
            current.wait_stream(stream)
            use_on(current, tensors)


def are_done(events: Iterable[Event]) -> bool:
    """Whether nobody would wait for these."""
    return all(event.query() for event in events)  # type: ignore[no-untyped-call]


def wait_for(events: Iterable[Event]) -> None:
    """Waits in this thread, which nobody else needs meanwhile."""
    for event in events:
        event.synchronize()


def wait_for_current(devices: Iterable[torch.device]) -> None:
    """Returns when what this thread's current streams on these GPUs have to do by now is done."""
    for device in devices:
        torch.cuda.current_stream(device).record_event().synchronize()


def side_streams() -> list[Event]:
    """Events on the streams that this thread has made current instead of the default ones, for
    another thread to wait for; none where CUDA is not in use."""
    if not is_gpu_context_open():
        return []
    streams = map(torch.cuda.current_stream, range(torch.cuda.device_count()))
    return [
        stream.record_event()
        for stream in streams
        if stream != torch.cuda.default_stream(stream.device)
    ]


def use_here(tensors: Iterable[torch.Tensor | None]) -> None:
    """Their memory is in use by this thread's current streams, too, whichever they were made on."""
    for tensor in tensors:
        if tensor is not None and tensor.is_cuda:
            _record(tensor, torch.cuda.current_stream(tensor.device))


def use_on(stream: torch.cuda.Stream, tensors: Iterable[object]) -> None:
    """The memory of those of the tensors that are on its device is in use by `stream`, too."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.device == stream.device:
            _record(tensor, stream)


def _record(tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
    for part in (tensor,) if tensor.layout is torch.strided else _parts(tensor):
        part.record_stream(stream)


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that hold what one of another layout consists of."""
    if tensor.layout is torch.sparse_coo:
        return [indices_of(tensor), values_of(tensor)]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


class SideStream:
    """A stream of one's own on a GPU, beside what the program computes there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def current(self) -> torch.cuda.StreamContext:
        """A context in which it is the current one."""
        return torch.cuda.stream(self._stream)

    def record(self) -> Event:
        """An event that says when all that was given to it is done."""
        event: Event = self._stream.record_event()
        return event

    def operation(self, tensors: Iterable[torch.Tensor]) -> SideStreamOperation:
        """For an operation with these tensors that this thread asks for now."""
        return SideStreamOperation(tensors, self._stream)

    def finish(self) -> None:
        """Waits for all that was given to it."""
        self._stream.synchronize()


class SideStreamOperation:
    """An operation's way to a side stream and back. It waits only for what was queued where it was
    asked for, and only whoever takes the result waits for it; no thread waits for the GPU."""

    def __init__(self, tensors: Iterable[torch.Tensor], stream: torch.cuda.Stream) -> None:
        self._tensors = list(tensors)
        self._stream = stream
        self._is_ready = Streams.of(self._tensors).record()
        self._is_done: Event | None = None

    def begin(self) -> None:
        """From now on the stream may use the tensors."""
        for event in self._is_ready:
            self._stream.wait_event(event)
        use_on(self._stream, self._tensors)
        self._tensors = []

    def end(self) -> None:
        """The stream has been given all that makes the result."""
        self._is_done = self._stream.record_event()

    def __call__(self, value: Any) -> Any:
        """The result; what the current stream is given from now on comes after it."""
        current = torch.cuda.current_stream(self._stream.device)
        if self._is_done is not None and current != self._stream:
            current.wait_event(self._is_done)
            use_on(current, value if isinstance(value, list) else [value])
        return value

    def abandon(self) -> None:
        """Nothing: the operation failed."""


class Arrival:
    """The copy-back of a result that the streams of who has asked for it compute."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def __call__(self, value: Any) -> Any:
        """The result; what the current streams are given from now on comes after it."""
        self._streams.let_wait(value if isinstance(value, list) else [value])
        return value

    def abandon(self) -> None:
        """Nothing: the operation failed."""
