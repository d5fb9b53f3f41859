"""A slot that is a thread with a CUDA stream of its own, on any device, the caller's included.

It is the thread slot (`thread.py`) with a replica on the device. Parameters that live there already
are shared; of those on another device the replica has copies, brought up to date before a pass if
they have changed. Each request waits, on the slot's stream, for all that the caller has queued
before it; the caller's stream waits for all that the slot has queued when it takes the answer. The
CPU waits for neither.

    DataParallel(model, device_ids=["cuda:0", on_stream("cuda:1")])
    DataParallel(model, device_ids=["cuda:0", on_stream("cuda:0")])      # two streams, one device

The node that waits for a slot's gradients (`stitch.Begin`) returns a token of the CPU, so the
engine runs it on the thread that called backward, and the devices' threads stay free for the slot.

On a single device the streams draw from one generator: random numbers then depend on timing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.nn.slots.base import Gradients, Outcome
from lockstitch.nn.slots.execution import Executor
from lockstitch.nn.slots.replicas import matching, replicate_here
from lockstitch.nn.slots.thread import ThreadSlot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.nn.slots.answers import Key
    from lockstitch.nn.slots.base import BackwardOrder, Blueprint, Request


class OnStream:
    """Makes the slots of `device`, as an entry of `device_ids`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __repr__(self) -> str:
        return f"on_stream({str(self.device)!r})"

    def __call__(self, number: int, blueprint: Blueprint) -> CudaSlot:
        return CudaSlot(number, blueprint, self.device)


def on_stream(device: str | torch.device) -> OnStream:
    """An entry of `device_ids`: a slot on a CUDA device, with a thread and a stream of its own.
    Raises `ValueError` for a device of another kind."""
    place = torch.device(device)
    if place.type != "cuda":
        raise ValueError(f"a slot on a stream needs a CUDA device, not {device}")
    return OnStream(torch.device("cuda", place.index or 0))


class CudaSlot(ThreadSlot):
    """Slot number `number`, on `device`."""

    def __init__(self, number: int, blueprint: Blueprint, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._originals = list(blueprint.leaves)
        super().__init__(number, blueprint)
        self.name = f"slot {number} (thread, {device})"

    def make_executor(self, blueprint: Blueprint) -> Executor:
        """With a replica on the device."""
        with torch.cuda.stream(self._stream):
            replica = replicate_here(blueprint.module, self._device)
        copies = matching(blueprint.module, replica, blueprint.leaves)
        self._copied = [
            i for i, leaf in enumerate(copies) if leaf.device != self._originals[i].device
        ]
        self._sent = [leaf._version for leaf in self._originals]
        return _DeviceExecutor(replica, copies, self._device)

    def start(self, request: Request) -> None:
        stale = [i for i in self._copied if self._originals[i]._version != self._sent[i]]
        if stale:
            with torch.no_grad(), torch.cuda.stream(self._stream):
                self._stream.wait_stream(torch.cuda.current_stream(self._device))
                for i in stale:
                    # In place: a graph that has saved it must not be gone through any more.
                    self._executor.leaves[i].copy_(self._originals[i], non_blocking=True)
                    self._sent[i] = self._originals[i]._version
                    self.statistics.parameter_bytes += self._originals[i].nbytes
        super().start(request)

    def finish(self, number: int) -> Outcome:
        outcome = super().finish(number)
        self._catch_up(outcome.tensors)
        return outcome

    def finish_backward(self, number: int) -> Gradients:
        gradients = super().finish_backward(number)
        self._catch_up(gradients.inputs)
        return Gradients(gradients.inputs, self._at_home(gradients.leaves))

    def collect(self) -> Sequence[torch.Tensor | None]:
        return self._at_home(super().collect())

    def _at_home(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The leaves' gradients on the devices of the leaves."""
        self._catch_up(gradients)
        return [
            None if gradient is None else gradient.to(leaf.device)
            for gradient, leaf in zip(gradients, self._originals, strict=False)
        ]

    def _post(self, key: Key, work: Callable[[], Any]) -> None:
        queued = [
            torch.cuda.current_stream(device).record_event()
            for device in {self._device, *(leaf.device for leaf in self._originals)}
            if device.type == "cuda"
        ]

        def on_stream() -> Any:
            with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                for event in queued:
                    self._stream.wait_event(event)
                return work()

        super()._post(key, on_stream)

    def _catch_up(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """The caller's streams wait for what the slot has queued."""
        done = self._stream.record_event()
        for tensor in tensors:
            if tensor is not None and tensor.is_cuda:
                stream = torch.cuda.current_stream(tensor.device)
                stream.wait_event(done)
                tensor.record_stream(stream)


class _DeviceExecutor(Executor):
    """Brings what it is given to the device, and gradients back to where they belong."""

    def __init__(
        self, module: torch.nn.Module, leaves: Sequence[torch.Tensor], device: torch.device
    ) -> None:
        super().__init__(module, leaves)
        self._device = device
        self._origins: dict[int, list[torch.device]] = {}

    def forward(self, request: Request) -> Outcome:
        wanting = zip(request.tensors, request.wants_gradient, strict=True)
        self._origins[request.number] = [tensor.device for tensor, wants in wanting if wants]
        others = [(i, self._here(tensor)) for i, tensor in request.changes.others]
        return super().forward(
            dataclasses.replace(
                request,
                tensors=[self._here(tensor) for tensor in request.tensors],
                changes=dataclasses.replace(request.changes, others=others),
            )
        )

    def backward(self, order: BackwardOrder) -> Gradients:
        gradients = [self._here(each) for each in order.gradients]
        found = super().backward(dataclasses.replace(order, gradients=gradients))
        inputs = [
            gradient if gradient is None else gradient.to(origin)
            for gradient, origin in zip(found.inputs, self._origins[order.number], strict=True)
        ]
        return Gradients(inputs, found.leaves)

    def release(self, number: int) -> None:
        self._origins.pop(number, None)
        super().release(number)

    def _here(self, tensor: Any) -> Any:
        if tensor is None:
            return None
        here = tensor.to(self._device, non_blocking=True)
        if here.is_cuda:
            here.record_stream(torch.cuda.current_stream(self._device))
        return here
