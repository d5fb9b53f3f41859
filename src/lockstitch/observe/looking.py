"""Looks at the jobs of this user: asks their processes, and returns what they say as values."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lockstitch.attach import asking
from lockstitch.attach.values import Question
from lockstitch.observe.context_graph import ContextGraph, graph_of
from lockstitch.observe.explanation import Explanation, Participant, explain, participants_of
from lockstitch.observe.grouping import Job, JobNotFoundError, Outline, find, job_of, outlines
from lockstitch.observe.native import NOT_INSTALLED, PySpyError, find_py_spy, stacks_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.attach.folder import Entry

_SECONDS: Final = 1.0
_RATE_SECONDS: Final = 0.25
_AT_ONCE: Final = 8


def jobs() -> list[Job]:
    """Returns the jobs of this user on this host, the oldest first.

    Raises `PermissionError` where others may enter the folder in which processes are listed.
    """
    known, places = _known()
    answers = asking.ask(places.values(), Question(seconds=_SECONDS))
    return [job_of(each, _part(answers, each)) for each in known]


def status(job: str | int | None = None, *, rate_seconds: float = _RATE_SECONDS) -> Job:
    """Returns a job with the counters of its workers, and how fast they grow.

    `job`: its name, or the number of its launcher or of any of its processes; None: that of this
    process, else the only one there is. `rate_seconds`: for so long their growth is looked at
    (0.25); 0: not at all. Raises `JobNotFoundError`.
    """
    question = Question(counters=True, threads=True, seconds=_SECONDS, rate_seconds=rate_seconds)
    return ask_job(job, question)


def waits(job: str | int | None = None) -> Explanation:
    """Returns what the workers of a job wait for, which of them wait for each other in a circle,
    and who else holds the job up. `job`: as in `status`. Raises `JobNotFoundError`."""
    return explain(ask_job(job, Question(waits=True, threads=True, seconds=_SECONDS)))


def stacks(job: str | int | None = None, *, native: bool = False) -> list[Participant]:
    """Returns the workers of a job with the stacks of all their threads of Python's.

    `native`: also those of C and C++, which py-spy reads; where that is installed it looks at
    workers that do not answer, too. `job`: as in `status`. Raises `JobNotFoundError`, and
    `PySpyError` where `native` cannot be.
    """
    question = Question(waits=True, threads=True, stacks=True, seconds=_SECONDS)
    found = participants_of(ask_job(job, question))
    if native and find_py_spy() is None:
        raise PySpyError(NOT_INSTALLED)
    if find_py_spy() is None:
        return found
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda each: _with_outside(each, native=native), found))


def graph(context_id: int | None = None, job: str | int | None = None) -> ContextGraph:
    """Returns the graph of an autograd context that is open in a job.

    `context_id`: None means the only one that is open. `job`: as in `status`. Raises
    `JobNotFoundError` and `ContextNotFoundError`.
    """
    return graph_of(ask_job(job, Question(contexts=True, seconds=_SECONDS)), context_id)


def ask_job(wanted: str | int | None, question: Question) -> Job:
    """Asks all processes of a job. Raises `JobNotFoundError`."""
    return Watch(wanted).look(question)


class Watch:
    """A job that is looked at again and again. It stays the same one whatever becomes of the
    process by whose number it was named. `job`: as in `status`. Raises `JobNotFoundError`."""

    def __init__(self, job: str | int | None = None) -> None:
        known, _ = _known()
        if job is None:
            own = [each for each in known if any(card.pid == os.getpid() for card in each.cards)]
            outline = find(own or known, None)
        else:
            outline = find(known, str(job))
        self.name = outline.name
        self._members = _births(outline)

    def __repr__(self) -> str:
        return f"<Watch of job {self.name}>"

    def look(self, question: Question) -> Job:
        """Asks its processes. Raises `JobNotFoundError` where it has ended."""
        known, places = _known()
        outline = next((each for each in known if self._members & _births(each)), None)
        if outline is None:
            raise JobNotFoundError(f"job {self.name} has ended")
        self._members = _births(outline)
        asked: Sequence[Entry] = [places[card.pid] for card in outline.cards]
        return job_of(outline, asking.ask(asked, question))


def _births(outline: Outline) -> set[tuple[int, int]]:
    """The numbers of a job's processes with the times of their births."""
    return {(card.pid, card.born) for card in outline.cards}


def _with_outside(one: Participant, *, native: bool) -> Participant:
    if not native and one.silence is None:
        return one
    try:
        return replace(one, outside=stacks_of(one.pid, native=native))
    except PySpyError as error:
        return replace(one, outside=str(error))


# ---------------------------------------------------------------- inside


def _known() -> tuple[list[Outline], dict[int, Entry]]:
    """The jobs there are, and where their processes can be asked."""
    places, cards = {}, []
    for entry in asking.all_entries():
        card = entry.read_card()
        if card is not None:
            places[card.pid] = entry
            cards.append(card)
    return outlines(cards), places


def _part(answers: asking.Answers, outline: Outline) -> asking.Answers:
    pids = {card.pid for card in outline.cards}
    return asking.Answers(
        [each for each in answers.reports if each.card.pid in pids],
        [each for each in answers.silent if each.card.pid in pids],
    )
