"""Schedules as tables of values: which worker does what with which micro-batch, in which order.

    gpipe, 3 stages, 4 micro-batches            1f1b
    F0 F1 F2 F3             B0 B1 B2 B3         F0 F1 F2       B0 F3 B1    B2    B3
       F0 F1 F2 F3       B0 B1 B2 B3               F0 F1    B0 F2 B1 F3 B2    B3
          F0 F1 F2 F3 B0 B1 B2 B3                     F0 B0 F1 B1 F2 B2 F3 B3

A table has a row for each worker, and a row is a sequence of actions: F, the forward pass of a
micro-batch through a stage; B, its backward pass; or, where that is done in two parts, I, the
gradients of the stage's inputs, and W, those of its parameters. A worker that carries out its row,
and waits before each action for what the action needs, cannot deadlock with others that do the
same.

Nothing here runs, waits or communicates: numbers go in, tables come out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Rows = Sequence[Sequence["Action"]]

Work = Literal["F", "B", "I", "W"]
"""Forward, backward, backward for the inputs only, backward for the parameters only."""
ScheduleName = Literal["1f1b", "gpipe", "interleaved", "zero_bubble"]

TICKS: Final[dict[Work, int]] = {"F": 1, "B": 2, "I": 1, "W": 1}
"""How long actions are taken to last when a table is laid out: a backward pass computes twice what
a forward pass does."""


class Action(NamedTuple):
    """One entry of a table."""

    work: Work
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.work}{self.micro_batch} of stage {self.stage}"


@dataclass(frozen=True)
class Schedule:
    """A table. `placement[stage]` is the number of the worker that has the stage; `rows[worker]`
    are its actions, in their order. Of each stage the micro-batches come in ascending order, in the
    forward passes as in the backward passes."""

    name: str
    placement: tuple[int, ...]
    chunks: int
    rows: tuple[tuple[Action, ...], ...]

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.placement)

    def needs(self, action: Action) -> list[Action]:
        """The actions that must be over before this one may begin."""
        work, stage, micro_batch = action
        if work == "F":
            return [Action("F", stage - 1, micro_batch)] if stage else []
        if work == "W":
            return [Action("I", stage, micro_batch)]
        needed = [Action("F", stage, micro_batch)]
        if stage + 1 < self.stages:
            needed.append(Action(work, stage + 1, micro_batch))
        return needed


def make_schedule(name: ScheduleName, placement: Sequence[int], chunks: int) -> Schedule:
    """The table of `chunks` micro-batches over the stages that `placement` puts onto workers 0, 1,
    …

    Raises `ValueError` for an unknown name, for fewer micro-batches than stages, and for an
    interleaved schedule whose stages do not go round the workers (stage s on worker s mod p).
    """
    placement = tuple(placement)
    check_name(name)
    if chunks < len(placement):
        raise ValueError(
            f"{chunks} micro-batches are fewer than the {len(placement)} stages: some would never "
            f"work while others do. Give chunks={len(placement)} or more, or make fewer stages"
        )
    rows = _LAYOUTS[name](placement, chunks)
    return Schedule(name, placement, chunks, tuple(map(tuple, rows)))


def forward_only(placement: Sequence[int], chunks: int) -> Schedule:
    """The table of an evaluation: forward passes alone."""
    rows = [
        [Action("F", stage, number) for stage in stages for number in range(chunks)]
        for stages in _stages_by_worker(placement)
    ]
    return Schedule("forward", tuple(placement), chunks, tuple(map(tuple, rows)))


def check_name(name: object) -> None:
    """Raises `ValueError` for what is not the name of a schedule."""
    if name not in get_args(ScheduleName):
        known = ", ".join(map(repr, get_args(ScheduleName)))
        raise ValueError(f"schedule is one of {known}, not {name!r}")


def most_live(row: Iterable[Action]) -> dict[int, int]:
    """How many micro-batches at most are between the forward pass and the end of the backward pass,
    for each stage of a row: so many activations the stage keeps."""
    live: dict[int, int] = {}
    most: dict[int, int] = {}
    for work, stage, _ in row:
        if work != "I":
            live[stage] = live.get(stage, 0) + (1 if work == "F" else -1)
        most[stage] = max(most.get(stage, 0), live[stage])
    return most


def _stages_by_worker(placement: Sequence[int]) -> list[list[int]]:
    return [
        [stage for stage, at in enumerate(placement) if at == worker]
        for worker in range(max(placement) + 1)
    ]


# ---------------------------------------------------------------- in fixed orders


def _gpipe(placement: tuple[int, ...], chunks: int) -> Rows:
    """All forward passes, stage by stage, then all backward passes, the last stage first."""
    numbers = range(chunks)
    return [
        [
            *[Action("F", stage, number) for stage in stages for number in numbers],
            *[Action("B", stage, number) for stage in reversed(stages) for number in numbers],
        ]
        for stages in _stages_by_worker(placement)
    ]


def _interleaved(placement: tuple[int, ...], chunks: int) -> Rows:
    """As many micro-batches as there are workers go through a worker's first stage, then through
    its second, and so on; backward likewise, from its last. Each worker goes forward so often that
    the first gradient is about to come, and alternates from then on."""
    workers, rounds = max(placement) + 1, len(placement) // (max(placement) + 1)
    if any(worker != stage % workers for stage, worker in enumerate(placement)):
        raise ValueError(
            "an interleaved schedule wants the stages to go round the workers, stage s on worker s "
            f"mod {workers}, but they are on workers {list(placement)}: order them so, or take "
            "schedule='1f1b'"
        )
    if len(placement) % workers or (rounds > 1 and chunks % workers):
        raise ValueError(
            f"an interleaved schedule wants stages and micro-batches in multiples of the {workers} "
            f"workers, not {len(placement)} stages and {chunks} micro-batches: choose others, or "
            "take schedule='1f1b'"
        )
    rows = []
    for worker, stages in enumerate(_stages_by_worker(placement)):
        places = [(number, at) for number in range(chunks) for at in range(rounds)]
        places.sort(key=lambda each: (each[0] // workers, each[1], each[0]))
        forward = [Action("F", stages[at], number) for number, at in places]
        backward = [Action("B", stages[-1 - at], number) for number, at in places]
        ahead = min(len(places), 2 * (workers - 1 - worker) + (rounds - 1) * workers)
        row = forward[:ahead]
        for pair in zip(forward[ahead:], backward, strict=False):
            row += pair
        rows.append(row + backward[len(places) - ahead :])
    return rows


# ---------------------------------------------------------------- stage by stage


def _one_forward_one_backward(placement: tuple[int, ...], chunks: int) -> Rows:
    """Each stage goes forward until its first gradient is about to come, and then backward and
    forward in turns: it keeps as many activations as there are stages from it on."""
    count = len(placement)
    rows = []
    for stage in range(count):
        row = [Action("F", stage, number) for number in range(min(count - stage, chunks))]
        for number in range(chunks):
            row.append(Action("B", stage, number))
            if number + count - stage < chunks:
                row.append(Action("F", stage, number + count - stage))
        rows.append(row)
    return _merge(placement, rows)


def _zero_bubble(placement: tuple[int, ...], chunks: int) -> Rows:
    """1F1B in which the gradients of parameters follow those of inputs by as many micro-batches as
    there are stages before: so all stages keep the same number of activations, and have something
    to do while the last gradients of inputs are on their way."""
    count = len(placement)
    rows = []
    for stage in range(count):
        row = [Action("F", stage, number) for number in range(min(count - stage, chunks))]
        for number in range(chunks):
            row.append(Action("I", stage, number))
            if number >= stage:
                row.append(Action("W", stage, number - stage))
            if number + count - stage < chunks:
                row.append(Action("F", stage, number + count - stage))
        row += [Action("W", stage, number) for number in range(max(chunks - stage, 0), chunks)]
        rows.append(row)
    return _merge(placement, rows)


def _merge(placement: tuple[int, ...], rows: Rows) -> Rows:
    """The rows of stages as rows of workers. Where a worker has several stages, the pass is played
    through, and the worker goes on with one of which the next action may begin: rather backward
    than forward, rather forward than for the parameters, rather with a later stage."""
    stages_of = _stages_by_worker(placement)
    if len(stages_of) == len(placement):
        return [rows[stage] for (stage,) in stages_of]
    table = Schedule("", placement, 0, tuple(map(tuple, rows)))
    merged: list[list[Action]] = [[] for _ in stages_of]
    places, ended = [0] * len(rows), set[Action]()
    running: dict[int, tuple[int, Action]] = {}  # by worker: when it ends, what
    now = 0
    while True:
        for worker, (end, action) in list(running.items()):
            if end == now:
                ended.add(action)
                del running[worker]
        for worker, stages in enumerate(stages_of):
            following = [rows[s][places[s]] for s in stages if places[s] < len(rows[s])]
            ready = [each for each in following if ended.issuperset(table.needs(each))]
            if worker not in running and ready:
                chosen = min(ready, key=lambda each: ("BIFW".index(each.work), -each.stage))
                merged[worker].append(chosen)
                places[chosen.stage] += 1
                running[worker] = now + TICKS[chosen.work], chosen
        if not running:
            return merged
        now = min(end for end, _ in running.values())


_LAYOUTS: Final[dict[str, Callable[[tuple[int, ...], int], Rows]]] = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "zero_bubble": _zero_bubble,
}
