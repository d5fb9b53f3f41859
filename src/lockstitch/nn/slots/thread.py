"""A slot that is a thread of this process: for operators large enough to work without Python.

It computes with a replica on the same memory (`replicas.py`); nothing is copied but buffers.

Handing work over to a thread and hearing of its end takes about as long as a hundred operations of
Python, and these need the lock of the interpreter anyway. So a pass that is shorter than that (its
time is measured) is run by the caller, at the moment in which it would wait for it; with a module
that has nothing to tell its slots, on the caller's own graph (`own_passes.py`).

torch has one generator of random numbers for all threads. So a module that draws any has to be run
after the caller's own part, with the generator set for it and then set back. Whether it draws is
seen in the first call, which is made in this way, and checked in each: only the forward pass of
such a module gains nothing from this kind of slot. A backward pass that sets the generator is the
caller's too (`recomputing.py`).
"""

from __future__ import annotations

import contextvars
import weakref
from collections import deque
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from lockstitch.attach.recorder import RECORDER
from lockstitch.devices.kinds import is_host
from lockstitch.memory.waiting import WorkEstimate
from lockstitch.nn.slots import generators
from lockstitch.nn.slots.answers import BACKWARD, COLLECT, FORWARD, Answers, work_in_words
from lockstitch.nn.slots.base import Slot, SlotStatistics, is_short
from lockstitch.nn.slots.execution import Executor
from lockstitch.nn.slots.failures import Failure
from lockstitch.nn.slots.own_passes import OwnPasses
from lockstitch.nn.slots.recomputing import Recomputing
from lockstitch.nn.slots.replicas import matching, replicate_here
from lockstitch.nn.slots.slot_thread import SlotThread, attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from lockstitch.nn.slots.answers import Key
    from lockstitch.nn.slots.base import (
        BackwardRequest,
        Blueprint,
        Gradients,
        Outcome,
        OwnPass,
        Request,
    )
    from lockstitch.nn.slots.generators import Mode


class ThreadSlot(Slot):
    """Slot number `number`, in a thread of its own."""

    def __init__(self, number: int, blueprint: Blueprint) -> None:
        self._number = number
        self.name = f"slot {number} (thread)"
        self.statistics = SlotStatistics()
        self._module = weakref.ref(blueprint.module)
        self._executor = self.make_executor(blueprint)
        self._thread = SlotThread(self.name, blueprint.threads)
        self._handed_over = _HandedOver(self._thread)
        self._answers = Answers(self._handed_over.take)
        self._drawing = generators.DrawingModes(blueprint.module)
        self._estimates = {kind: WorkEstimate() for kind in (FORWARD, BACKWARD, COLLECT)}
        self._recomputing = Recomputing()
        self._own_passes = OwnPasses(self.name)
        self._own: deque[tuple[Key, Callable[[], Any]]] = deque()
        self._deferred: dict[int, Request] = {}
        self._passes: dict[int, tuple[Mode, int]] = {}

    def make_executor(self, blueprint: Blueprint) -> Executor:
        """What runs the requests, with a replica of the module. Raises `ValueError` for a module
        that is not on the CPU."""
        if not is_host(blueprint.device):
            raise ValueError(
                f"a slot that is a thread works on the CPU, the module is on {blueprint.device}: "
                'use slots on streams, device_ids=["cuda:0", on_stream("cuda:0")], with '
                "on_stream from lockstitch.nn.slots.cuda"
            )
        replica = replicate_here(blueprint.module)
        return Executor(replica, matching(blueprint.module, replica, blueprint.leaves))

    def own_pass(
        self, state: int, leaves: Sequence[torch.Tensor], *, fills_unused: bool
    ) -> OwnPass | None:
        if not self._own_passes.are_possible() or not self._is_at_rest:
            return None
        module = self._module()
        mode = self._drawing.mode(True)
        if module is None or not self._drawing.never_drew(mode):
            return None
        estimate = self._estimates[FORWARD]
        if not is_short(estimate) or not is_short(self._estimates[BACKWARD]):
            return None
        self._own_passes.prepare(module, leaves, fills_unused=fills_unused)
        self.statistics.passes += 1
        note_draw = partial(self._drawing.note, mode)
        return self._own_passes.timed(estimate, state, self._number, note_draw)

    @property
    def _is_at_rest(self) -> bool:
        """Whether nothing is under way that the caller's own pass could overtake."""
        return not (self._own or self._deferred or self._handed_over.under_way) and self.is_alive

    def start(self, request: Request) -> None:
        if request.vjp_of is not None:
            self._start_going_back(
                (FORWARD, request.number), partial(self._executor.forward, request)
            )
            return
        if request.changes:
            self._own_passes.disturb()
        mode = self._drawing.mode(request.modes.is_grad_enabled)
        self._passes[request.number] = mode, request.generator_state
        self.statistics.passes += 1
        self._answers.expect((FORWARD, request.number))
        if self._drawing.never_drew(mode):
            self._post_forward(request, draws=False)
        else:
            self._deferred[request.number] = request

    def finish(self, number: int) -> Outcome:
        if number not in self._passes:
            return self._wait((FORWARD, number))  # type: ignore[no-any-return]
        draws = self._drawing.note_call(*self._passes.pop(number))
        request = self._deferred.pop(number, None)
        if request is None:
            return self._wait((FORWARD, number))  # type: ignore[no-any-return]
        if not draws:
            self._post_forward(request, draws=False)
            return self._wait((FORWARD, number))  # type: ignore[no-any-return]
        with generators.kept():
            self._post_forward(request, draws=True)
            return self._wait((FORWARD, number))  # type: ignore[no-any-return]

    def _post_forward(self, request: Request, *, draws: bool) -> None:
        def run() -> Outcome:
            self._executor.draws_random_numbers = draws
            return self._executor.forward(request)

        self._post((FORWARD, request.number), run, self._estimates[FORWARD])

    def start_backward(self, request: BackwardRequest) -> None:
        self._start_going_back(
            (BACKWARD, request.number), partial(self._executor.backward, request)
        )

    def _start_going_back(self, key: Key, work: Callable[[], Any]) -> None:
        self._answers.expect(key)
        estimate = self._estimates[BACKWARD]
        if self._recomputing.must_be_alone():
            self._post(key, partial(self._recomputing.run, work), estimate, by_caller=True)
        else:
            self._post(key, work, estimate)

    def finish_backward(self, number: int) -> Gradients:
        return self._wait((BACKWARD, number))  # type: ignore[no-any-return]

    def collect(self) -> Sequence[torch.Tensor | None]:
        key = (COLLECT, 0)
        self._answers.expect(key)
        self._post(key, self._executor.collect, self._estimates[COLLECT])
        return self._wait(key)  # type: ignore[no-any-return]

    def _post(
        self, key: Key, work: Callable[[], Any], estimate: WorkEstimate, *, by_caller: bool = False
    ) -> None:
        self._thread.check_alive()
        self._run_own()  # in their order
        if RECORDER.spans is not None:
            work = partial(_recorded, work_in_words(key, self.name), work)
        attempted = partial(
            contextvars.copy_context().run, attempt, partial(estimate.measure, work), self.name
        )
        if is_short(estimate) or by_caller:
            self._own.append((key, attempted))
        else:
            self._handed_over.add(key, attempted)

    def _wait(self, key: Key) -> Any:
        self._run_own()
        answer = self._answers.wait(key)
        if isinstance(answer, Failure):
            raise answer.error()
        return answer

    def _run_own(self) -> None:
        """Runs what the caller does itself, because it is short or has to be alone, when the thread
        has done what came before."""
        while self._own:
            while self._handed_over.under_way:
                self._answers.take_one()
            key, work = self._own.popleft()
            self._answers.accept(key, work())

    def release(self, number: int) -> None:
        self._answers.release(number)
        self._executor.release(number)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive

    def close(self) -> None:
        self._thread.close()


class _HandedOver:
    """What the thread has been given and has not answered yet, in order."""

    def __init__(self, thread: SlotThread) -> None:
        self._thread = thread
        self._done: SimpleQueue[tuple[Key, Any]] = SimpleQueue()
        self.under_way = 0
        """How much has been handed over and not been taken yet."""

    def add(self, key: Key, work: Callable[[], Any]) -> None:
        """Hands work over, which raises nothing. Raises `SlotDiedError`."""
        done = self._done
        self._thread.hand_over(work, lambda answer: done.put((key, answer)))
        self.under_way += 1

    def take(self, _kind: int) -> tuple[Key, Any]:
        """The next answer, when the thread has it."""
        answer = self._done.get()
        self.under_way -= 1
        return answer


def _recorded(name: str, work: Callable[[], Any]) -> Any:
    begun = RECORDER.begin()
    result = work()
    RECORDER.end(begun, "slot", name)
    return result
