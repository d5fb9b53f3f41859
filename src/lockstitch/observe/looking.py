"""Looks at the jobs of this user: asks their processes, and returns what they say as values.

A job of several hosts is one job from any of them. From elsewhere it is named by the address of one
of its gateways (`tcp://HOST:PORT`), which takes the job's secret.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lockstitch.attach import asking
from lockstitch.attach.far import (
    PURPOSE,
    UnreachedError,
    add,
    ask_everywhere,
    ask_far,
)
from lockstitch.attach.outlines import Outline, outline_of, outlines
from lockstitch.attach.values import FarQuestion, Question
from lockstitch.observe.context_graph import ContextGraph, graph_of
from lockstitch.observe.explanation import Explanation, explain
from lockstitch.observe.grouping import Job, JobNotFoundError, find, job_of
from lockstitch.observe.native import NOT_INSTALLED, PySpyError, find_py_spy, stacks_of
from lockstitch.observe.participants import Participant, participants_of
from lockstitch.observe.sampling import Holdup
from lockstitch.observe.sampling import holdups as holdups_in
from lockstitch.trust import find_secret

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.attach.folder import Entry

_SECONDS: Final = 1.0
_RATE_SECONDS: Final = 0.25
_BETWEEN_LOOKS: Final = 0.05
_WAITS: Final = Question(waits=True, threads=True, seconds=_SECONDS)
STATUS: Final = Question(counters=True, threads=True, seconds=_SECONDS, rate_seconds=_RATE_SECONDS)
"""What `status` asks."""
_AT_ONCE: Final = 8
_SCHEME: Final = "tcp://"


def jobs() -> list[Job]:
    """Returns the jobs of this user on this host, the oldest first, with their workers of other
    hosts.

    Raises `PermissionError` where others may enter the folder in which processes are listed.
    """
    known, places = _known()
    asked = [[places[card.pid] for card in each.cards] for each in known]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = pool.map(
            lambda entries: ask_everywhere(entries, Question(seconds=_SECONDS)), asked
        )
        told = zip(known, answers, strict=True)
        return [job_of(outline, each) for outline, each in told if each.cards()]


def status(job: str | int | None = None, *, rate_seconds: float = _RATE_SECONDS) -> Job:
    """Returns a job with the counters of its workers, and how fast they grow.

    `job`: its name, or the number of its launcher or of any of its processes; None: that of this
    process, else the only one there is; `tcp://HOST:PORT`: that of a gateway, for which the
    environment has to tell the job's secret (LOCKSTITCH_SECRET_FILE). `rate_seconds`: for so long
    their growth is looked at (0.25); 0: not at all. Raises `JobNotFoundError`, and for an address
    `ConnectionError`, and `ValueError` where there is no secret, or no such address.
    """
    return ask_job(job, replace(STATUS, rate_seconds=rate_seconds))


def waits(job: str | int | None = None) -> Explanation:
    """Returns what the workers of a job wait for, which of them wait for each other in a circle,
    and who else holds the job up. `job`: as in `status`. Raises `JobNotFoundError`."""
    return explain(ask_job(job, _WAITS))


def holdups(job: str | int | None = None, *, seconds: float = 3.0) -> list[Holdup]:
    """Looks at a job again and again for `seconds`. Returns who was waited for in how many of the
    looks, and where it was then: of ranks that take steps together, the slow one. `job`: as in
    `status`. Raises `JobNotFoundError`."""
    return holdups_in(looks_at(job, seconds))


def looks_at(job: str | int | None, seconds: float) -> list[Explanation]:
    """Returns what the workers of a job wait for, however shortly, again and again for so long;
    until then where it ends."""
    watched, pause = watch(job), threading.Event()
    looks: list[Explanation] = []
    ends_at = time.monotonic() + seconds
    while not looks or time.monotonic() < ends_at:
        try:
            looks.append(explain(watched.look(_WAITS), patience_seconds=0.0))
        except JobNotFoundError:
            if not looks:
                raise
            break
        pause.wait(_BETWEEN_LOOKS)
    return looks


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
    return watch(wanted).look(question)


def watch(job: str | int | None = None) -> Watch | FarWatch:
    """Returns a job that is to be looked at again and again. `job`, and what is raised: as in
    `status`."""
    if isinstance(job, str) and job.startswith(_SCHEME):
        return FarWatch(job.removeprefix(_SCHEME))
    return Watch(job)


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
        answers = ask_everywhere(asked, question)
        if not answers.cards():  # all were gone before they could be asked
            raise JobNotFoundError(f"job {self.name} has ended")
        return job_of(outline, answers)


class FarWatch:
    """A job that is looked at from elsewhere, by way of the gateway at an address. Raises
    `ValueError` where the environment tells no secret."""

    def __init__(self, address: str) -> None:
        secret = find_secret(None, None, os.environ)
        if secret is None:
            raise ValueError(
                f"to ask {address} takes the job's secret: name its file in LOCKSTITCH_SECRET_FILE"
            )
        self.name = address
        self._address, self._secret = address, secret.of(PURPOSE)
        self._has_looked = False

    def __repr__(self) -> str:
        return f"<FarWatch of the job at {self._address}>"

    def look(self, question: Question) -> Job:
        """Asks its processes. Raises `UnreachedError`, and `JobNotFoundError` where it was there
        before."""
        try:
            told = ask_far(self._address, self._secret, FarQuestion(question, is_whole=True))
        except UnreachedError as error:
            if self._has_looked:
                raise JobNotFoundError(f"job {self.name} has ended: {error}") from error
            raise
        answers = asking.Answers()
        add(answers, told)
        if not answers.cards():
            raise JobNotFoundError(f"job {self.name} has ended")
        job = job_of(outline_of(answers.cards()), answers)
        self._has_looked, self.name = True, job.name
        return job


def _births(outline: Outline) -> set[tuple[int, int]]:
    """The numbers of a job's processes with the times of their births."""
    return {(card.pid, card.born) for card in outline.cards}


def _with_outside(one: Participant, *, native: bool) -> Participant:
    is_here = one.host in ("", socket.gethostname())
    if not is_here or (not native and one.silence is None):
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
