"""When the actions of a table begin and end, and how much of the time workers are idle.

`simulate` carries a table out on paper: each action begins when its worker is free and what it
needs is there. The *bubble* is the share of the workers' time in which they have nothing to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.nn.pipelining.schedules import Action, Schedule


class Span(NamedTuple):
    """From when to when an action was carried out, in seconds from the beginning of the step."""

    action: Action
    begin: float
    end: float


def simulate(
    schedule: Schedule, seconds: Callable[[Action], float], transfer_seconds: float = 0.0
) -> list[list[Span]]:
    """The spans of each worker, if actions last `seconds(action)`, and what one worker has done
    reaches another `transfer_seconds` later.

    Raises `ValueError` for a table that cannot be carried out: one in which an action is needed
    that never comes, or comes only after what needs it.
    """
    ends: dict[Action, float] = {}
    spans: list[list[Span]] = [[] for _ in schedule.rows]
    progress = True
    while progress:
        progress = False
        for worker, row in enumerate(schedule.rows):
            while len(spans[worker]) < len(row):
                action = row[len(spans[worker])]
                needed = schedule.needs(action)
                if not all(each in ends for each in needed):
                    break
                begin = spans[worker][-1].end if spans[worker] else 0.0
                for each in needed:
                    is_here = schedule.placement[each.stage] == worker
                    begin = max(begin, ends[each] + (0.0 if is_here else transfer_seconds))
                ends[action] = begin + seconds(action)
                spans[worker].append(Span(action, begin, ends[action]))
                progress = True
    for row, done in zip(schedule.rows, spans, strict=True):
        if len(done) < len(row):
            raise ValueError(
                f"{row[len(done)]} can never begin: what it needs does not come before"
            )
    return spans


def bubble(spans: Sequence[Sequence[Span]]) -> float:
    """The share, between 0 and 1, of the time from the first beginning to the last end in which
    workers do nothing, over all of them."""
    every = [span for row in spans for span in row]
    if not every:
        return 0.0
    total = max(span.end for span in every) - min(span.begin for span in every)
    busy = sum(span.end - span.begin for span in every)
    return 1 - busy / (total * len(spans)) if total > 0 else 0.0


def theoretical_bubble(schedule: Schedule) -> float:
    """The bubble of the schedule according to its authors, for stages that are all alike and go
    round p workers, v on each, and m micro-batches, with transfers that take no time.

    (p − 1) / (m + p − 1) for GPipe (Huang et al. 2019) and 1F1B (Narayanan et al. 2019), with v·m
    in the place of m if interleaved (Narayanan et al. 2021) and for GPipe with several stages on
    each worker; and with 3·m for zero bubble, if the three parts of a pass take the same time
    (ZB-H1, Qi et al. 2023).
    """
    workers = len(schedule.rows)
    rounds = -(-schedule.stages // workers)
    passes = schedule.chunks
    if schedule.name in ("gpipe", "interleaved"):
        passes *= rounds
    elif schedule.name == "zero_bubble":
        passes *= 3
    return (workers - 1) / (passes + workers - 1)
