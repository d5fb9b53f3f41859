"""A slot that is a thread with a CUDA stream of its own, on any device, the caller's included.

It computes with a replica on the device. Parameters that live there already are shared; of those on
another device the replica has copies, brought up to date before a pass if they have changed. Each
request waits, on the slot's stream, for all that the caller has queued before it; the caller's
stream waits for all that the slot has queued when it takes the answer. The CPU waits for neither.
A backward pass on another stream than its forward pass is right too, but torch may warn of it.

    DataParallel(model, device_ids=["cuda:0", on_stream("cuda:1")])
    DataParallel(model, device_ids=["cuda:0", on_stream("cuda:0")])      # two streams, one device

torch's engine has one thread for each device, which goes back through the caller's graph and the
slot's. It must never wait for the slot, which needs it too. So `start_backward` and
`finish_backward` take no lock (`Slot.is_thread_safe`), and the node that waits for the gradients
(`stitch.Begin`) returns a token of the CPU: the engine runs it on the thread that called backward.

All modules of a device draw from one generator of random numbers. What draws any, and what is over
so soon that a thread gains nothing, the caller queues itself on the slot's stream after its own
part: on the device the two still run at once. Not so for backward passes: what they compute again
under `torch.utils.checkpoint` must not draw any, or it may draw others than in the forward pass.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from lockstitch.devices.kinds import is_gpu, numbered
from lockstitch.devices.streams import SideStream, Streams, use_here
from lockstitch.memory.waiting import WorkEstimate
from lockstitch.nn.slots import generators
from lockstitch.nn.slots.answers import BACKWARD, COLLECT, FORWARD
from lockstitch.nn.slots.base import Gradients, Slot, SlotStatistics, is_short
from lockstitch.nn.slots.device_execution import DeviceExecutor, at_home
from lockstitch.nn.slots.failures import Failure, describe
from lockstitch.nn.slots.replicas import matching, replicate_here
from lockstitch.nn.slots.slot_thread import SlotThread, attempt
from lockstitch.unversioned import UNVERSIONED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from lockstitch.devices.streams import Event
    from lockstitch.nn.slots.answers import Key
    from lockstitch.nn.slots.base import BackwardRequest, Blueprint, Outcome, Request
    from lockstitch.nn.slots.generators import Mode


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
    if not is_gpu(place):
        raise ValueError(f"a slot on a stream needs a CUDA device, not {device}")
    return OnStream(numbered(place))


_Answer: TypeAlias = "tuple[Any, Sequence[Event]]"
"""What the work returns, a `Failure` if it raises; and what the slot has then queued."""


class _Task(NamedTuple):
    """Something to do on the slot's stream."""

    queued: Sequence[Event]
    """What the caller had queued when it asked for it."""
    context: contextvars.Context
    work: Callable[..., Any]
    answer: SimpleQueue[_Answer]


class _Pass(NamedTuple):
    """A forward pass that has been asked for."""

    mode: Mode
    state: int
    """The fingerprint of the caller's generators before its own part."""
    deferred: _Task | None
    """What the caller does itself when it wants the answer: its work wants to know whether the pass
    is to have random numbers of its own."""


class CudaSlot(Slot):
    """Slot number `number`, on `device`."""

    is_thread_safe = True

    def __init__(self, number: int, blueprint: Blueprint, device: torch.device) -> None:
        self.name = f"slot {number} (thread, {device})"
        self.statistics = SlotStatistics()
        self._device = device
        self._home = blueprint.device
        self._drawing = generators.DrawingModes(blueprint.module, blueprint.device)
        self._originals = list(blueprint.leaves)
        self._devices = list({device, self._home, *(leaf.device for leaf in self._originals)})
        self._runner = _StreamRunner(self.name, SideStream(device), self._devices)
        replica = self._runner.replicate(blueprint.module, device)
        copies = matching(blueprint.module, replica, blueprint.leaves)
        self._executor = DeviceExecutor(replica, copies, device, waits=False)
        self._copied = [
            i for i, leaf in enumerate(copies) if leaf.device != self._originals[i].device
        ]
        self._sent = UNVERSIONED.states_of(self._originals)
        self._thread = SlotThread(self.name)
        self._answers: dict[Key, SimpleQueue[_Answer]] = {}
        self._passes: dict[int, _Pass] = {}
        self._estimate = WorkEstimate()

    def start(self, request: Request) -> None:
        if request.vjp_of is not None:
            work = partial(self._executor.forward, request)
            self._hand_over(self._task((FORWARD, request.number), work))
            return
        mode = self._drawing.mode(request.modes.is_grad_enabled)
        self.statistics.passes += 1
        states = UNVERSIONED.states_of(self._originals)
        stale = [i for i in self._copied if states[i] != self._sent[i]]
        for i in stale:
            self._sent[i] = states[i]
            self.statistics.parameter_bytes += self._originals[i].nbytes
        executor, originals, estimate = self._executor, self._originals, self._estimate

        def run(*, draws: bool) -> Any:
            with torch.no_grad():
                for i in stale:
                    # In place: a graph that has saved it must not be gone through any more.
                    executor.leaves[i].copy_(originals[i], non_blocking=True)
            executor.draws_random_numbers = draws
            return estimate.measure(partial(executor.forward, request))

        task = self._task((FORWARD, request.number), partial(run, draws=False))
        is_deferred = not self._drawing.never_drew(mode) or is_short(estimate)
        if is_deferred:
            # Kept with what was queued by now: it is not to wait for the caller's own part.
            deferred = task._replace(work=run)
            self._passes[request.number] = _Pass(mode, request.generator_state, deferred)
        else:
            self._passes[request.number] = _Pass(mode, request.generator_state, None)
            self._hand_over(task)

    def finish(self, number: int) -> Outcome:
        asked = self._passes.pop(number, None)
        if asked is not None:
            self._finish_asking(asked)
        outcome: Outcome = self._wait((FORWARD, number))
        use_here(outcome.tensors)
        return outcome

    def _finish_asking(self, asked: _Pass) -> None:
        """Does what was left for after the caller's own part of a pass through the module."""
        draws = self._drawing.note_call(asked.mode, asked.state)
        if asked.deferred is not None:
            task = asked.deferred._replace(work=partial(asked.deferred.work, draws=draws))
            with generators.kept(self._device) if draws else contextlib.nullcontext():
                task.answer.put(self._runner.do(task))

    def start_backward(self, request: BackwardRequest) -> None:
        work = partial(self._executor.backward, request)
        self._hand_over(self._task((BACKWARD, request.number), work))

    def finish_backward(self, number: int) -> Gradients:
        gradients: Gradients = self._wait((BACKWARD, number))
        use_here(gradients.inputs)
        return Gradients(gradients.inputs, at_home(gradients.leaves, self._originals))

    def collect(self) -> Sequence[torch.Tensor | None]:
        self._hand_over(self._task((COLLECT, 0), self._executor.collect))
        return at_home(self._wait((COLLECT, 0)), self._originals)

    def release(self, number: int) -> None:
        for kind in (FORWARD, BACKWARD):
            self._answers.pop((kind, number), None)
        self._executor.release(number)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive

    def close(self) -> None:
        self._thread.close()

    def _task(self, key: Key, work: Callable[..., Any]) -> _Task:
        answer = self._answers[key] = SimpleQueue()
        return _Task(Streams(self._devices).record(), contextvars.copy_context(), work, answer)

    def _hand_over(self, task: _Task) -> None:
        """Gives the task to the thread."""
        self._thread.hand_over(partial(self._runner.do, task), task.answer.put)

    def _wait(self, key: Key) -> Any:
        """The answer; this thread's streams wait for what the slot has queued with it."""
        result, queued = self._answers[key].get()
        self._answers.pop(key, None)
        Streams(self._devices).wait_for(queued)
        if isinstance(result, Failure):
            raise result.error()
        return result


class _StreamRunner:
    """Does the slot's work on its stream: one task at a time, in whichever thread."""

    def __init__(self, name: str, stream: SideStream, devices: Sequence[torch.device]) -> None:
        self._name = name
        self._stream = stream
        self._devices = devices
        self._lock = threading.Lock()

    def replicate(self, module: nn.Module, device: torch.device) -> nn.Module:
        """A replica on the device, made of what the caller's module is by then."""
        queued = Streams(self._devices).record()
        with self._stream.current():
            Streams(self._devices).wait_for(queued)
            return replicate_here(module, device)

    def do(self, task: _Task) -> _Answer:
        """Does it, on the slot's stream; returns the answer, whatever happens."""
        queued: Sequence[Event] = ()
        try:
            with self._lock, self._stream.current():
                Streams(self._devices).wait_for(task.queued)
                result = task.context.run(attempt, task.work, self._name)
                queued = [self._stream.record()]
        except BaseException as error:  # noqa: BLE001 - whatever it is, somebody waits for it
            result = describe(error, self._name, crosses=False)
        return result, queued
