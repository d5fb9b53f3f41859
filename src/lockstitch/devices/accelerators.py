"""Accelerators of whichever kind torch was built for, GPUs or others, by its generic interface."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from lockstitch.devices.kinds import HOST, is_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


def exist() -> bool:
    """Whether torch sees an accelerator here."""
    return torch.accelerator.is_available()


def are_known() -> bool:
    """Whether torch was built for accelerators, be there any or not."""
    return torch.accelerator.current_accelerator() is not None


def indices() -> range:
    """The numbers of those that are here."""
    return range(torch.accelerator.device_count() if exist() else 0)


def numbered(index: int | None = None) -> torch.device:
    """The accelerator of that number, by default the current one; the host where there is none."""
    kind = torch.accelerator.current_accelerator() if exist() else None
    if kind is None:
        return HOST
    return _current(kind) if index is None else torch.device(kind.type, index)


def named(name: str | torch.device) -> torch.device:
    """What `torch.device` makes of a name; for an accelerator without a number the current one."""
    device = torch.device(name)
    kind = torch.accelerator.current_accelerator()
    return _current(device) if kind is not None and kind.type == str(device) else device


def _current(device: torch.device) -> torch.device:
    return torch.device(device.type, torch.accelerator.current_device_index())


def kinds() -> list[str]:
    """The kinds of device that computations run on here: "cpu", and the accelerator's if any."""
    accelerator = torch.accelerator.current_accelerator()
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]


def current_streams(devices: Iterable[torch.device]) -> dict[torch.device, torch.Stream]:
    """This thread's stream on each accelerator among `devices`."""
    return {
        device: torch.accelerator.current_stream(device)
        for device in devices
        if not is_host(device)
    }


@contextmanager
def made_current(device: torch.device, stream: torch.Stream | None) -> Iterator[None]:
    """Makes an accelerator the current one, and `stream` the stream on which work is queued."""
    if is_host(device):
        yield
        return
    with torch.accelerator.device_index(device.index):
        before = torch.accelerator.current_stream(device)
        before.query()  # binds a new thread to the device: cuBLAS does not, and warns
        if stream is None or stream == before:
            yield
            return
        torch.accelerator.set_stream(stream)
        try:
            yield
        finally:
            torch.accelerator.set_stream(before)


def wait_for_copies(
    pieces: Sequence[torch.Tensor], devices: Sequence[torch.device], streams: Sequence[torch.Stream]
) -> None:
    """Lets each device's main stream wait for what was copied beside it."""
    for piece, device, stream in zip(pieces, devices, streams, strict=False):
        with torch.accelerator.device_index(device.index):
            main = torch.accelerator.current_stream()
            main.wait_stream(stream)
            piece.record_stream(main)
