"""A step, as the driver sees it: orders go to all workers at once, and reports come back.

The first that goes wrong anywhere ends the step: it is raised at once, and the other workers are
told to give it up.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from lockstitch.autograd.context import set_current_context
from lockstitch.errors import PeerDiedError
from lockstitch.nn.pipelining.inbox import Inboxes, StepEndedError
from lockstitch.nn.pipelining.running import NO_LIMIT, Order, run_row, tell_end
from lockstitch.nn.pipelining.simulation import Span, bubble, theoretical_bubble
from lockstitch.rpc import RRef, rpc_async
from lockstitch.runtime.inherited import refuse_to_block
from lockstitch.runtime.worker import current_worker
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.autograd.context import DistAutogradContext
    from lockstitch.ids import WorkerInfo
    from lockstitch.nn.pipelining.running import Report
    from lockstitch.nn.pipelining.schedules import Schedule
    from lockstitch.runtime.pending import Future
    from lockstitch.runtime.worker import Worker


@dataclass(frozen=True)
class StepRecord:
    """How a step went. `spans[worker]` says from when to when each action was carried out, in
    seconds from the beginning of the step; workers are in the order of their first stages, and
    those of other hosts are put as if their orders had needed no time. `most_live[stage]` is how
    many micro-batches at most the stage kept something of at once."""

    schedule: Schedule
    spans: tuple[tuple[Span, ...], ...]
    most_live: dict[int, int]
    bubble: float = field(init=False)
    """The share of the workers' time in which they waited."""
    theoretical_bubble: float = field(init=False)
    """What it is in theory, for equal stages and transfers that take no time; see
    `simulation.theoretical_bubble`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bubble", bubble(self.spans))
        object.__setattr__(self, "theoretical_bubble", theoretical_bubble(self.schedule))


class Team:
    """The stages and their workers. `members` are the workers, each once; `placement[stage]` is the
    place of its worker among them."""

    def __init__(self, worker: Worker, references: Sequence[RRef[nn.Module]]) -> None:
        self.worker = worker
        self.references = references
        self.owners: list[WorkerInfo] = [each.owner() for each in references]
        self.members = list(dict.fromkeys(self.owners))
        self.placement = tuple(self.members.index(owner) for owner in self.owners)

    def stages_of(self, member: int) -> dict[int, RRef[nn.Module]]:
        """The stages of a worker, by their numbers."""
        return {
            stage: self.references[stage] for stage, at in enumerate(self.placement) if at == member
        }

    def orders(self, schedule: Schedule, **given: Any) -> list[Order]:
        """An order for each worker, with what is the same for all."""
        workers = [owner.worker for owner in self.owners]
        rows = [[(*action,) for action in row] for row in schedule.rows]
        return [
            Order(row=row, workers=workers, modules=self.stages_of(member), **given)
            for member, row in enumerate(rows)
        ]

    def check(self) -> None:
        """Waits until all stages are there. Raises what one of them was made in vain by, and
        `TypeError` for one that is no module."""
        for stage, kind in self._ask(_kinds_of_others).items():
            if kind is not None:
                raise TypeError(
                    f"stage {stage}, on worker {self.owners[stage].name!r}, is a {kind} and no "
                    "module"
                )

    def set_training(self, mode: bool) -> None:
        """Sets the mode of all modules."""
        self._ask(_set_training, mode)

    def parameters(self) -> list[RRef[nn.Parameter]]:
        """References to the parameters of all stages, each once, in the order of the stages."""
        found = self._ask(_parameters)
        return [reference for stage in sorted(found) for reference in found[stage]]

    def _ask(self, function: Any, *args: Any) -> dict[int, Any]:
        """What a function returns of each stage; it runs once for all stages of a worker."""
        futures = [
            (stages, rpc_async(member, function, (list(stages.values()), *args)))
            for member, stages in (
                (member, self.stages_of(number)) for number, member in enumerate(self.members)
            )
        ]
        found: dict[int, Any] = {}
        for stages, future in futures:
            answers = future.wait()
            found.update(zip(stages, answers or [None] * len(stages), strict=True))
        return found


@needed
def _kinds_of_others(references: list[RRef[nn.Module]]) -> list[str | None]:
    Inboxes.of(current_worker())  # from now on values may come
    values: list[object] = [each.local_value() for each in references]
    return [None if isinstance(each, nn.Module) else type(each).__name__ for each in values]


@needed
def _set_training(references: list[RRef[nn.Module]], mode: bool) -> None:
    for each in references:
        each.local_value().train(mode)


@needed
def _parameters(references: list[RRef[nn.Module]]) -> list[list[RRef[nn.Parameter]]]:
    seen = set[nn.Parameter]()
    found: list[list[RRef[nn.Parameter]]] = []
    for each in references:
        fresh = [every for every in each.local_value().parameters() if every not in seen]
        seen.update(fresh)
        found.append([RRef(parameter) for parameter in fresh])
    return found


def carry_out(
    team: Team,
    schedule: Schedule,
    orders: Sequence[Order],
    context: DistAutogradContext | None,
) -> tuple[StepRecord, list[Any]]:
    """Gives the orders, and waits for all reports; returns how it went, and the results of the last
    stage. Raises the first error."""
    refuse_to_block("a step of a pipeline")
    clock = team.worker.clock
    sent = clock.now()
    try:
        reports = _wait(team, _send(team, orders, context))
        if any(report.keeps_skips for report in reports):
            _end(team, orders, "all outputs are there")
    except BaseException as error:  # an interrupt too
        why = f"the step was given up on worker {team.worker.name!r}: {type(error).__name__}"
        team.worker.agent.spawn(partial(_end, team, orders, why))  # where no second one comes
        if isinstance(error, PeerDiedError):
            raise _told(team, error) from error
        raise
    ended = clock.now()
    spans = []
    for row, report in zip(schedule.rows, reports, strict=True):
        is_same_clock = sent <= report.received <= ended
        origin = sent if is_same_clock else report.received
        spans.append(
            tuple(
                Span(action, begin - origin, end - origin)
                for action, (begin, end) in zip(row, report.times, strict=True)
            )
        )
    most_live = {stage: most for report in reports for stage, most in report.most_live.items()}
    record = StepRecord(schedule, tuple(spans), most_live)
    return record, reports[schedule.placement[-1]].results


def _send(
    team: Team, orders: Sequence[Order], context: DistAutogradContext | None
) -> list[Future[Report]]:
    before = set_current_context(context)
    try:
        return [
            rpc_async(member, run_row, (order,), timeout=NO_LIMIT)
            for member, order in zip(team.members, orders, strict=True)
        ]
    finally:
        set_current_context(before)


def _wait(team: Team, futures: list[Future[Report]]) -> list[Report]:
    done: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number, future in enumerate(futures):
        future.add_inner_callback(partial(_note, done, number))
        future.attend()
    ended: StepEndedError | None = None  # something else has come before, and will be told
    with team.worker.agent.blocked():
        for _ in futures:
            try:
                futures[done.get()].wait()
            except StepEndedError as error:
                ended = error
    if ended is not None:
        raise ended
    return [future.wait() for future in futures]


def _note(done: queue.SimpleQueue[int], number: int, _future: object) -> None:
    done.put(number)


def _end(team: Team, orders: Sequence[Order], why: str) -> None:
    for member in team.members:
        tell_end(team.worker, member.worker, orders[0].step, why)


def _told(team: Team, error: PeerDiedError) -> PeerDiedError:
    """The error, which says what the dead worker had."""
    stages = [stage for stage, owner in enumerate(team.owners) if owner.name == error.worker]
    if not stages:
        return error
    which = f"stage {stages[0]}" if len(stages) == 1 else f"stages {stages}"
    return type(error)(error.worker, f"{error.cause}; it had {which} of the pipeline")
