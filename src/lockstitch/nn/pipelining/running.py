"""A worker's part of one step: it carries out its row of the table.

    the driver ── Order ──► run_row ─► F0 F1 B0 F2 B1 …  ── Report ──► the driver
                               │ ▲
              to other workers ▼ │ from other workers, into the inbox

Outputs go straight to the worker that has the next stage, gradients to the one that has the stage
before, each into an inbox: plain values and tensors up to a megabyte as a one-way message, and what
is larger, or has to be pickled, as a call that nobody waits for. What goes wrong in such a call
fails the step here; what goes wrong in a stage, the driver is told, and tells the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from lockstitch.attach.recorder import RECORDER
from lockstitch.autograd.context import context_of_this_thread, set_current_context
from lockstitch.autograd.emission import compact
from lockstitch.errors import PeerDiedError, RpcError, add_note, text_of
from lockstitch.ids import GlobalId, WorkerId
from lockstitch.modes import Modes
from lockstitch.nn.pipelining.graphs import Gradients, Values
from lockstitch.nn.pipelining.inbox import Inbox, Inboxes, StepEndedError
from lockstitch.nn.pipelining.micro_batches import cut
from lockstitch.nn.pipelining.schedules import Action
from lockstitch.nn.pipelining.stage import MicroBatch, Stage, StageOptions, owned
from lockstitch.nn.slots.generators import seed_for
from lockstitch.nn.slots.lifting import SINGLE, Hole, fill, lift
from lockstitch.runtime.worker import Worker, current_worker
from lockstitch.trust.registry import needed
from lockstitch.wire.messages import HandOver
from lockstitch.wire.pickling import pack_flat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.attach.spans import SpanRing
    from lockstitch.nn.pipelining.graphs import InputGradients
    from lockstitch.nn.pipelining.schedules import Work
    from lockstitch.nn.pipelining.skips import SkipReference
    from lockstitch.rpc import RRef
    from lockstitch.runtime.pending import Answering, Pending

NO_LIMIT: Final = 0
"""A timeout: a stage may take long, and a worker that dies ends the calls to it."""
_ONE_WAY_BYTES: Final = 1 << 20


@dataclass
class Order:
    """What a worker is told about a step."""

    step: GlobalId
    row: Sequence[tuple[Work, int, int]]
    """The actions, as tuples of no class of ours: these are packed several times as fast."""
    workers: Sequence[WorkerId]
    """The worker of each stage."""
    modules: dict[int, RRef[nn.Module]]
    """Those of this worker's stages."""
    modes: Modes
    trains: bool
    seed: int
    recomputes: frozenset[int] = frozenset()
    sizes: Sequence[int] = ()
    """The rows of each micro-batch. What follows is of all of them, and cut by the worker that
    needs it: many small tensors take far longer to pack than one."""
    dim: int = 0
    batch: Any = None
    """For the first stage."""
    kwargs: dict[int, dict[str, Any]] = field(default_factory=dict)
    """For stages that get keyword arguments."""
    loss_fn: Callable[..., Any] | None = None
    target: Any = None
    weights: Sequence[float] = ()


@dataclass
class Report:
    """What a worker answers when it has carried out its row."""

    received: float
    times: list[tuple[float, float]]
    """When each action began and ended, by this worker's clock."""
    most_live: dict[int, int]
    results: list[Any]
    """From the last stage: the losses, or the outputs of an evaluation."""
    keeps_skips: bool
    """Whether other stages may still fetch something here, until the driver ends the step."""


# ---------------------------------------------------------------- called by other workers


@needed
def run_row(order: Order) -> Report:
    """Carries out a worker's part of a step. Raises what a stage raises, saying which it was; and
    `PeerDiedError` where another worker of the step is gone."""
    worker = current_worker()
    received = worker.clock.now()
    inboxes = Inboxes.of(worker)
    inbox = inboxes.open(order.step)
    if inbox is None:
        raise StepEndedError("a step of a pipeline was given up before this worker began")
    context = context_of_this_thread()
    if order.trains and context is None:
        inboxes.close(order.step)
        raise StepEndedError("the autograd context of a step was released before it began")
    set_current_context(None)  # what workers tell each other is no part of the pass
    keeps = False
    try:
        runner = _Runner(order, worker, inbox, context if order.trains else None)
        with _training_modes().active():
            report = runner.run(received)
        keeps = report.keeps_skips
        if context is not None and order.trains and context.has_replicas:
            with worker.agent.blocked():
                context.reduce_replicas()
        return report
    finally:
        set_current_context(context)
        if not keeps:
            inboxes.close(order.step)


def _training_modes() -> Modes:
    """Those of this thread, but without autocast and inference mode, which the call may have
    carried: stages enter them for their forward passes, and nothing else happens in them."""
    here = Modes.of_this_thread()
    autocast = tuple((kind, False, dtype) for kind, _, dtype in here.autocast)
    return dataclasses.replace(here, is_grad_enabled=True, is_inference=False, autocast=autocast)


@needed
def deliver(  # noqa: PLR0913, PLR0917 - flat, which crosses fastest
    rank: int,
    generation: int,
    counter: int,
    kind: str,
    stage: int,
    micro_batch: int,
    number: int,
    origin: int,
    *values: Any,
) -> None:
    """Brings a value to the worker that will want it."""
    inbox = Inboxes.of(current_worker()).open(GlobalId(rank, generation, counter))
    if inbox is not None:
        inbox.put((kind, stage, micro_batch, number, origin), values)


@needed
def fetch_skip(step: GlobalId, skip: SkipReference, borrower: int) -> torch.Tensor:
    """The tensor of a skip, for a stage on another worker."""
    inbox = Inboxes.of(current_worker()).open(step)
    if inbox is None:
        raise StepEndedError(f"{skip!r} is no more: its step is over")
    return inbox.stashes[skip.stage].lend(skip, borrower)


@needed
def end_step(step: GlobalId, why: str) -> None:
    """Gives a step up, or forgets what is kept of it."""
    Inboxes.of(current_worker()).close(step, why)


# ---------------------------------------------------------------- here


class _Runner:
    """Carries out one row."""

    def __init__(self, order: Order, worker: Worker, inbox: Inbox, context: Any) -> None:
        self._order = order
        self._worker = worker
        self._inbox = inbox
        inbox.participants |= frozenset(order.workers)
        inbox.stages = order.workers
        for other in frozenset(order.workers):
            if worker.agent.is_lost(other):
                worker.agent.peers.channel(other)  # raises what it was lost by
        self._stages = {
            stage: self._make_stage(stage, rref, context) for stage, rref in order.modules.items()
        }
        inbox.stashes.update({number: stage.stash for number, stage in self._stages.items()})
        pieces = partial(cut, sizes=order.sizes, dim=order.dim)
        self._inputs = pieces(order.batch) if 0 in order.modules else []
        self._kwargs = {stage: pieces(kwargs) for stage, kwargs in order.kwargs.items()}
        self._targets = None if order.target is None else pieces(order.target)
        self._results: list[Any] = []
        self._works = {
            "F": self._forward,
            "B": self._backward,
            "I": self._backward_for_inputs,
            "W": self._backward_for_weights,
        }

    def _make_stage(self, number: int, rref: RRef[nn.Module], context: Any) -> Stage:
        order = self._order
        is_last = number + 1 == len(order.workers)
        options = StageOptions(
            number,
            context,
            order.modes,
            number in order.recomputes,
            order.loss_fn if is_last else None,
            is_last,
        )
        return Stage(rref.local_value(), options, partial(self._fetch, number))

    def run(self, received: float) -> Report:
        now, times = self._worker.clock.now, []
        for action in map(Action._make, self._order.row):
            self._inbox.check()
            begun = self._works[action.work](action)
            ended = now()
            times.append((begun, ended))
            if RECORDER.spans is not None:
                self._record(RECORDER.spans, action, begun, ended)
        self._inbox.check()
        stages = self._stages
        return Report(
            received,
            times,
            {number: stage.most_live for number, stage in stages.items()},
            self._results,
            any(stage.stash for stage in stages.values()),
        )

    def _record(self, spans: SpanRing, action: Action, begun: float, ended: float) -> None:
        order, (work, stage, number) = self._order, action
        name = f"{_WORKS[work]} of stage {stage}, micro-batch {number}"
        source = stage - 1 if work == "F" else stage + 1
        key: tuple[str, int] = "", 0
        has_source = work != "W" and 0 <= source < len(order.workers)
        if has_source and order.workers[source] != self._worker.id:
            key = _key_of_handover("F" if work == "F" else "B", order.step, stage, number)
        spans.add("stage", name, self._worker.name, begun, ended, *key)

    # ------------------------------------------------------------ the actions

    def _forward(self, action: Action) -> float:
        order, (_, stage, number) = self._order, action
        if stage == 0:
            skeleton, tensors = lift(self._inputs[number])
            values = Values(skeleton, tensors, [False] * len(tensors))
        else:
            values = self._take_values(stage, number)
        begun = self._worker.clock.now()
        micro_batch = MicroBatch(
            number,
            values,
            self._kwargs[stage][number] if stage in self._kwargs else {},
            seed_for(seed_for(order.seed, stage), number),
        )
        is_last = stage + 1 == len(order.workers)
        if is_last and self._targets is not None:
            micro_batch.target, micro_batch.has_target = self._targets[number], True
        try:
            output = self._stages[stage].forward(micro_batch)
        except StepEndedError:
            raise
        except Exception as error:  # noqa: BLE001 - raised again, with more to say
            raise self._told(error, action, values.tensors) from error.__cause__
        if not is_last:
            if order.workers[stage + 1] == self._worker.id:
                output = output._replace(tensors=[each.clone() for each in output.tensors])
            self._send("F", stage + 1, number, _flat(output))
        elif order.trains:
            self._results.append(output.tensors[0])
        else:
            self._results.append(fill(output.skeleton, owned(output.tensors)))
        return begun

    def _backward(self, action: Action) -> float:
        return self._go_back(action, Stage.backward)

    def _backward_for_inputs(self, action: Action) -> float:
        return self._go_back(action, Stage.backward_for_inputs)

    def _backward_for_weights(self, action: Action) -> float:
        begun = self._worker.clock.now()
        try:
            self._stages[action.stage].backward_for_weights(action.micro_batch)
        except Exception as error:  # noqa: BLE001 - raised again, with more to say
            raise self._told(error, action, ()) from error.__cause__
        return begun

    def _go_back(self, action: Action, run: Callable[..., InputGradients]) -> float:
        order, (_, stage, number) = self._order, action
        if stage + 1 == len(order.workers):
            loss = self._results[number]
            weight = order.weights[number]  # one that counts for nothing may have a loss of 0/0
            outputs: Any = [torch.full_like(loss, weight) if weight else None]
        else:
            outputs = self._inbox.take(("B", stage, number, 0, 0))
        skips = [
            (skip, self._inbox.take(("S", stage, number, skip, borrower))[0])
            for skip, borrower in self._stages[stage].stash.clear(number)
        ]
        begun = self._worker.clock.now()
        try:
            found = run(self._stages[stage], number, Gradients(outputs, skips))
        except Exception as error:  # noqa: BLE001 - raised again, with more to say
            raise self._told(error, action, outputs) from error.__cause__
        if stage:
            self._send("B", stage - 1, number, tuple(map(compact, found.inputs)))
        for skip, gradient in found.skips.items():
            port = skip.stage, number, (compact(gradient),), skip.number, stage
            self._send("S", *port)
        return begun

    # ------------------------------------------------------------ between workers

    def _take_values(self, stage: int, number: int) -> Values:
        skeleton, wanted, *tensors = self._inbox.take(("F", stage, number, 0, 0))
        if skeleton is None:
            skeleton = SINGLE
        return Values(skeleton, tensors, [bool(wanted >> i & 1) for i in range(len(tensors))])

    def _send(
        self,
        kind: str,
        stage: int,
        number: int,
        values: tuple[Any, ...],
        skip: int = 0,
        origin: int = 0,
    ) -> None:
        to = self._order.workers[stage]
        if to == self._worker.id:
            self._inbox.put((kind, stage, number, skip, origin), values)
            return
        begun = RECORDER.begin()
        self._send_to(to, (kind, stage, number, skip, origin), values)
        if begun and kind != "S":
            key = _key_of_handover(kind, self._order.step, stage, number)
            sent = _bytes_of(values)
            RECORDER.end(begun, "handover", f"to stage {stage}", self._worker.name, *key, sent)

    def _send_to(
        self, to: WorkerId, place: tuple[str, int, int, int, int], values: tuple[Any, ...]
    ) -> None:
        flat = pack_flat(values) if _bytes_of(values) <= _ONE_WAY_BYTES else None
        if flat is not None:
            self._worker.agent.send(to, HandOver(self._order.step, *place, flat))
            return
        # What is pickled may hold references, which their sender keeps until it is answered; and
        # how much is under way of what is large is limited for calls only. But an answer has both
        # workers do more between two micro-batches, and their monitors look all the time.
        args = (*self._order.step, *place, *values)
        receipt = _Receipt(self._worker, self._inbox, self._order.step, to)
        self._worker.agent.outgoing.call_into(receipt, to, (deliver, args, None), NO_LIMIT)

    def _fetch(self, stage: int, skip: SkipReference) -> torch.Tensor:
        to = self._order.workers[skip.stage]
        if to == self._worker.id:
            return self._stages[skip.stage].stash.lend(skip, stage).clone()
        before = set_current_context(None)
        try:
            call = self._worker.agent.outgoing.call
            return call(to, fetch_skip, (self._order.step, skip, stage), timeout=NO_LIMIT)
        finally:
            set_current_context(before)

    def _told(
        self, error: Exception, action: Action, given: Sequence[torch.Tensor | None]
    ) -> Exception:
        """The error, which says where it came up."""
        stages, name = len(self._order.workers), self._worker.name
        way = "forward" if action.work == "F" else "backward"
        where = (
            f"stage {action.stage} of {stages} (numbered from 0), on worker {name!r}, in the {way} "
            f"pass of micro-batch {action.micro_batch}, for which it was given "
            f"{_described(given)}"
        )
        # Where all that it has is its text.
        if type(error).__module__ == "builtins" and error.args == (text_of(error),):
            error.args = (f"{where}: {error.args[0]}",)
        else:
            add_note(error, f"in {where}")
        return error


class _Receipt:
    """Completes a call that nobody waits for: if it fails, so does the step, on both sides."""

    has_callbacks = False
    settled_by = 0

    def __init__(self, worker: Worker, inbox: Inbox, step: GlobalId, to: WorkerId) -> None:
        self._worker = worker
        self._inbox = inbox
        self._step = step
        self._to = to

    def attach(self, channel: Answering, pending: Pending) -> None:
        """See `runtime.pending.Completion`."""

    def complete(self, value: object, error: BaseException | None) -> None:
        """See `runtime.pending.Completion`."""
        del value
        if error is not None:
            self._inbox.fail(error)
            if not isinstance(error, PeerDiedError):
                where = f"on the way from worker {self._worker.name!r}"
                why = f"{type(error).__name__} {where}: {text_of(error)}"
                self._worker.agent.spawn(lambda: tell_end(self._worker, self._to, self._step, why))


_WORKS: Final = {
    "F": "forward",
    "B": "backward",
    "I": "backward for inputs",
    "W": "backward for weights",
}


def _key_of_handover(kind: str, step: GlobalId, stage: int, number: int) -> tuple[str, int]:
    """By what both ends of a message between two stages know it, for who records."""
    rank, generation, counter = step
    return f"step {rank}.{generation}.{counter} {kind} {stage}", number + 1


def tell_end(worker: Worker, to: WorkerId, step: GlobalId, why: str) -> None:
    """Has a worker end a step, unless it is gone."""
    with contextlib.suppress(RpcError, ConnectionError):
        worker.agent.outgoing.call_async(to, end_step, (step, why), timeout=NO_LIMIT)


def _flat(values: Values) -> tuple[Any, ...]:
    """Values as plain arguments, if they can be: the usual structure is one tensor."""
    wanted = sum(1 << place for place, is_wanted in enumerate(values.wanted) if is_wanted)
    is_single = type(values.skeleton) is Hole
    return (None if is_single else values.skeleton, wanted, *values.tensors)


def _bytes_of(values: tuple[Any, ...]) -> int:
    return sum(each.nbytes for each in values if isinstance(each, torch.Tensor))


def _described(tensors: Sequence[torch.Tensor | None]) -> str:
    """The forms of tensors, for people."""
    words = [
        f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}"
        for each in tensors
        if each is not None
    ]
    return ", ".join(words) or "no tensor"
