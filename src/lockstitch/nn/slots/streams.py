"""Work that is queued on CUDA streams: who waits for whom, and whose memory is still being read.

A stream works through its queue without regard to others. So whoever gives a tensor away says up to
where its queue must have come (`queued_here`), whoever takes it lets its own queue wait for that,
and the allocator is told of both (`lend`): else it would hand out memory again that one of them has
still to read. The CPU never waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lockstitch.devices import use_here

if TYPE_CHECKING:
    from collections.abc import Iterable


def gpus_of(devices: Iterable[torch.device]) -> list[torch.device]:
    """Those that have streams, each once."""
    return list(dict.fromkeys(device for device in devices if device.type == "cuda"))


def queued_here(devices: Iterable[torch.device]) -> list[torch.cuda.Event]:
    """For each GPU among `devices`: all that this thread's current stream there has queued."""
    return [torch.cuda.current_stream(each).record_event() for each in gpus_of(devices)]


def wait_here(events: Iterable[torch.cuda.Event], devices: Iterable[torch.device]) -> None:
    """Lets this thread's current streams on `devices` wait for what `queued_here` has noted."""
    listed = list(events)
    for device in gpus_of(devices):
        stream = torch.cuda.current_stream(device)
        for event in listed:
            stream.wait_event(event)


def lend(tensor: torch.Tensor | None) -> None:
    """Tells the allocator that the current stream of the tensor's device works with its memory."""
    if tensor is not None:
        use_here((tensor,))
