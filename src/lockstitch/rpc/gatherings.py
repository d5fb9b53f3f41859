"""Who has come to a meeting of several workers, and what each brought. No messages, no calls.

A *gathering* is one meeting of one set of workers. The one whose name comes first in the alphabet
leads: all others send it what they bring, and it sends everything to all. The same workers may meet
again and again, also from several threads at once: each meeting has its own name, counted up on
every worker alike.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstitch.errors import LockstitchError, PeerDiedError
    from lockstitch.ids import WorkerId


class Gathering:
    """One meeting, as one worker sees it. `settled` is set when nothing more is waited for."""

    def __init__(self) -> None:
        self.awaited: dict[str, WorkerId] = {}
        self.objects: dict[str, object] = {}
        self.failure: LockstitchError | None = None
        self.settled = threading.Event()

    @property
    def missing(self) -> list[str]:
        """The names of those who are waited for."""
        return sorted(self.awaited.keys() - self.objects.keys())


class Gatherings:
    """All meetings for one `purpose` that the worker named `name` takes part in; safe to use from
    any thread."""

    def __init__(self, name: str, purpose: str) -> None:
        self._name = name
        self._purpose = purpose
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._open: dict[str, Gathering] = {}
        self._lost: dict[WorkerId, PeerDiedError] = {}

    def begin(self, members: Mapping[str, WorkerId]) -> str:
        """This worker comes to the next meeting of `members`; returns the meeting's name."""
        if self._name not in members:
            raise ValueError(f"{self._name!r} is not among the workers {sorted(members)}")
        leader = min(members)
        with self._lock:
            everybody = f"{self._purpose} of {','.join(sorted(members))}"
            meeting = f"{everybody}#{self._counts[everybody]}"
            self._counts[everybody] += 1
            # What others brought before we came is there already.
            gathering = self._open.setdefault(meeting, Gathering())
            leads = self._name == leader
            gathering.awaited = dict(members) if leads else {leader: members[leader]}
            for worker, error in self._lost.items():
                self._check_loss(gathering, worker, error)
            self._check_complete(gathering)
        return meeting

    def bring(self, meeting: str, name: str, obj: object) -> None:
        """At the leader: the worker `name` has come and brings `obj`."""
        with self._lock:
            gathering = self._open.setdefault(meeting, Gathering())
            if name in gathering.objects:
                raise ValueError(f"{name} came twice to the gathering {meeting}")
            gathering.objects[name] = obj
            self._check_complete(gathering)

    def announce(self, meeting: str, objects: Mapping[str, object]) -> None:
        """At a follower: this is what everybody brought. Ignored by one who waits no longer."""
        with self._lock:
            gathering = self._open.get(meeting)
            if gathering is not None:
                gathering.objects = dict(objects)
                self._check_complete(gathering)

    def call_off(self, meeting: str, error: LockstitchError) -> None:
        """At a follower: nobody will come to that meeting."""
        with self._lock:
            gathering = self._open.get(meeting)
            if gathering is not None:
                gathering.failure = error
                gathering.settled.set()

    def get(self, meeting: str) -> Gathering:
        """The meeting of that name, between `begin` and `end`."""
        return self._open[meeting]

    def waiting(self) -> list[list[str]]:
        """Whom each open meeting waits for."""
        with self._lock:
            return [each.missing for each in self._open.values() if each.missing]

    def end(self, meeting: str) -> None:
        """This worker leaves the meeting."""
        with self._lock:
            self._open.pop(meeting, None)

    def lose(self, worker: WorkerId, error: PeerDiedError) -> None:
        """`worker` is dead: every meeting that waits for it, now or later, fails with `error`."""
        with self._lock:
            self._lost[worker] = error
            for gathering in self._open.values():
                self._check_loss(gathering, worker, error)

    @staticmethod
    def _check_complete(gathering: Gathering) -> None:
        if gathering.awaited and not gathering.missing:
            gathering.settled.set()

    @staticmethod
    def _check_loss(gathering: Gathering, worker: WorkerId, error: PeerDiedError) -> None:
        if worker in [gathering.awaited[name] for name in gathering.missing]:
            gathering.failure = error
            gathering.settled.set()
