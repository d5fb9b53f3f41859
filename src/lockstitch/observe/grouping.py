"""The job that somebody means, and what its processes have answered."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstitch.attach.outlines import rank_of
from lockstitch.errors import LockstitchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.attach.asking import Answers
    from lockstitch.attach.outlines import Outline
    from lockstitch.attach.values import Card, ProcessReport, Silence


class JobNotFoundError(LockstitchError, LookupError):
    """No running job is meant by a name or a number, or more than one is."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as far as its processes tell. `name`: what the launcher calls it, or what
    its workers run; `pid`: that of its launcher, else of its first worker."""

    name: str
    pid: int
    launcher: ProcessReport | None
    processes: tuple[ProcessReport, ...]
    """Its workers, by rank."""
    silent: tuple[Silence, ...]
    """Those that did not answer."""
    unreached: tuple[str, ...] = ()
    """Why nothing is known of other hosts of it, a sentence for each."""

    @property
    def cards(self) -> list[Card]:
        """The cards of its workers, also of those that did not answer."""
        return [*(each.card for each in self.processes), *(each.card for each in self.silent)]

    @property
    def age_seconds(self) -> float:
        """How long ago its first process began."""
        launchers = [] if self.launcher is None else [self.launcher.card]
        return max(0.0, time.time() - min(each.started_at for each in (*self.cards, *launchers)))

    @property
    def state(self) -> str:
        """`runs`, `begins` (none of its workers has met others yet), `ends` (some have ended), or
        `does not answer`."""
        if self.launcher is not None and any(each.ended_at for each in self.launcher.launched):
            return "ends"
        if self.silent:
            return "does not answer"
        in_groups = any(each.workers or each.groups for each in self.processes)
        return "runs" if in_groups else "begins"


def find(known: Sequence[Outline], wanted: str | None) -> Outline:
    """Returns the job of that name, or of which a process has that number, or which a process of
    that number has started; the only one, where none is named. Raises `JobNotFoundError`."""
    if wanted is None:
        found = list(known)
    else:
        found = [each for each in known if each.name == wanted]
        if not found and wanted.isdecimal():
            found = [each for each in known if int(wanted) in _numbers_of(each)]
    if len(found) == 1:
        return found[0]
    if not known:
        raise JobNotFoundError(
            "no process of this user on this host can be looked at: a worker can from `init_rpc` "
            "or `hvd.init` on, one of `lockstitch run` at once"
        )
    names = ", ".join(f"{each.name} (pid {each.pid})" for each in (found or known))
    if not found:
        raise JobNotFoundError(
            f"no job is called {wanted}, and none has a process of that number; there are: {names}"
        )
    which = "several jobs run" if wanted is None else f"several jobs are called {wanted}"
    how = "its name, or " if wanted is None else ""
    raise JobNotFoundError(f"{which}; say which by {how}the number of a process: {names}")


def job_of(outline: Outline, answers: Answers) -> Job:
    """Returns a job with what its processes have answered."""
    workers = [each for each in answers.reports if each.card.kind == "worker"]
    return Job(
        outline.name,
        outline.pid,
        next((each for each in answers.reports if each.card.kind == "launcher"), None),
        tuple(sorted(workers, key=lambda each: rank_of(each.card))),
        tuple(sorted(answers.silent, key=lambda each: rank_of(each.card))),
        tuple(answers.unreached),
    )


# ---------------------------------------------------------------- inside


def _numbers_of(outline: Outline) -> set[int]:
    return {number for card in outline.cards for number in (card.pid, card.parent)}
