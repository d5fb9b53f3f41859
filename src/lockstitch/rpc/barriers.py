"""Barriers of several workers: who has come to one, and what each brought. No messages, no calls.

The workers of a barrier talk to each other along a tree (`tree`). What is brought goes up: at a
worker the barrier is *ready* when it has come itself and all below it have; the worker then brings
everything of its subtree to its parent. The result comes down from the leader, and the barrier is
*settled*.

The same workers may meet at a barrier again and again, also from several threads at once: each
barrier has an id of its own, counted up on every worker alike.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.errors import LockstitchError, PeerDiedError
    from lockstitch.ids import WorkerId
    from lockstitch.rpc.tree import Attendance, TreeNode


class Barrier:
    """One barrier, as one worker sees it. Both events are set when it fails."""

    def __init__(self) -> None:
        self.node: TreeNode | None = None
        """None until this worker comes itself."""
        self.brought: dict[str, Any] = {}
        """What this worker and its children brought, by name; a child brings all of its subtree."""
        self.result: Any = None
        self.failure: LockstitchError | None = None
        self.ready = threading.Event()
        self.settled = threading.Event()
        self._told_missing: dict[str, Sequence[str]] = {}

    @property
    def awaited(self) -> dict[str, WorkerId]:
        """The neighbours that must say something next: the children, then the parent."""
        if self.node is None or self.settled.is_set():
            return {}
        if self.ready.is_set():
            return self.node.parent
        return {
            name: child for name, child in self.node.children.items() if name not in self.brought
        }

    @property
    def neighbours_above(self) -> list[WorkerId]:
        """The parent; nobody for the leader."""
        return [] if self.node is None else list(self.node.parent.values())

    @property
    def neighbours_below(self) -> list[WorkerId]:
        """The children."""
        return [] if self.node is None else list(self.node.children.values())

    @property
    def missing(self) -> list[str]:
        """The names of the workers that are waited for; of those below a child that has come
        itself, as far as it has told."""
        return sorted(
            name for child in self.awaited for name in self._told_missing.get(child, [child])
        )

    def note_missing(self, child: WorkerId, names: Sequence[str]) -> None:
        """Notes that a child has come, but waits for these itself."""
        if self.node is not None:
            for name, worker in self.node.children.items():
                if worker == child:
                    self._told_missing[name] = names

    def fail(self, error: LockstitchError) -> None:
        """Ends all waiting for it; the first error counts."""
        if self.failure is None and not self.settled.is_set():
            self.failure = error
            self.ready.set()
            self.settled.set()

    def check_ready(self, name: str) -> None:
        """Sets `ready` when `name`, who this worker is, and all its children have come."""
        if self.node is not None and self.brought.keys() >= {name, *self.node.children}:
            self.ready.set()


class Barriers:
    """All barriers for one `purpose` that the worker named `name` takes part in. Safe to use from
    any thread."""

    def __init__(self, name: str, purpose: str) -> None:
        self._name = name
        self._purpose = purpose
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._open: dict[str, Barrier] = {}
        self._lost: dict[WorkerId, PeerDiedError] = {}
        self._latest: dict[str, tuple[str, Any]] = {}
        """Of each set of workers the barrier that was left last, and its result."""

    def begin(self, attendance: Attendance) -> str:
        """Brings this worker to the next barrier of those who meet; returns the barrier's id."""
        everybody = f"{self._purpose} of {attendance.everybody}"
        with self._lock:
            barrier_id = f"{everybody}#{self._counts[everybody]}"
            self._counts[everybody] += 1
            # What others brought before we came is there already.
            barrier = self._open.setdefault(barrier_id, Barrier())
            barrier.node = attendance.node
            self._check_losses(barrier)
        return barrier_id

    def bring(self, barrier_id: str, name: str, obj: object, *, may_repeat: bool = False) -> None:
        """Notes that `name`, this worker or a child, has come with everything of its subtree.
        Raises `ValueError` when it comes twice, unless it may."""
        with self._lock:
            barrier = self._expected(barrier_id)
            if barrier is None:
                return
            if name in barrier.brought:
                if may_repeat:
                    return
                raise ValueError(f"{name} came twice to the gathering {barrier_id}")
            barrier.brought[name] = obj
            barrier.check_ready(self._name)
            self._check_losses(barrier)  # of the parent, which may be awaited only now

    def announce(self, barrier_id: str, result: object) -> None:
        """Notes the result, which comes from the leader. Ignored where nobody waits any longer."""
        with self._lock:
            barrier = self._open.get(barrier_id)
            if barrier is not None and barrier.failure is None:
                barrier.result = result
                barrier.settled.set()

    def result_of(self, barrier_id: str) -> list[Any]:
        """Returns the result, alone in a list, of a barrier that is settled; an empty list while it
        is not. Nobody asks for barriers before the latest any more."""
        with self._lock:
            barrier = self._open.get(barrier_id)
            if barrier is not None:
                is_settled = barrier.settled.is_set() and barrier.failure is None
                return [barrier.result] if is_settled else []
            latest, result = self._latest.get(_everybody_of(barrier_id), ("", None))
            return [result] if latest == barrier_id else []

    def call_off(self, barrier_id: str, error: LockstitchError) -> None:
        """Ends that barrier with an error; whoever comes to it later gets the error at once."""
        with self._lock:
            barrier = self._expected(barrier_id)
            if barrier is not None:
                barrier.fail(error)

    def note_missing(self, barrier_id: str, child: WorkerId, names: Sequence[str]) -> None:
        """Notes that a child has come to a barrier, but waits for these itself."""
        with self._lock:
            barrier = self._open.get(barrier_id)
            if barrier is not None:
                barrier.note_missing(child, names)

    def get(self, barrier_id: str) -> Barrier:
        """Returns the barrier with that id, between `begin` and `end`."""
        return self._open[barrier_id]

    def holds(self, barrier_id: str) -> bool:
        """Whether that barrier is one of these, and open."""
        return barrier_id in self._open

    def waiting(self) -> list[list[str]]:
        """Returns, for each open barrier, the names of those that it waits for."""
        with self._lock:
            return [each.missing for each in self._open.values() if each.missing]

    def awaited(self) -> set[WorkerId]:
        """Returns the neighbours that any open barrier waits for."""
        with self._lock:
            return {each for open_ in self._open.values() for each in open_.awaited.values()}

    def end(self, barrier_id: str) -> None:
        """Forgets the barrier: this worker leaves it."""
        with self._lock:
            barrier = self._open.pop(barrier_id, None)
            if barrier is not None and barrier.settled.is_set() and not barrier.failure:
                self._latest[_everybody_of(barrier_id)] = barrier_id, barrier.result

    def lose(self, worker: WorkerId, error: PeerDiedError) -> None:
        """Has every barrier that waits for the dead `worker`, now or later, fail with `error`."""
        with self._lock:
            self._lost[worker] = error
            for barrier in self._open.values():
                self._check_losses(barrier)

    def _expected(self, barrier_id: str) -> Barrier | None:
        """Returns a barrier that is open, or that this worker has not come to yet; None for one
        that it has left, and for those of another purpose."""
        everybody, _, number = barrier_id.rpartition("#")
        if not everybody.startswith(f"{self._purpose} of "):
            return None
        if barrier_id not in self._open and int(number) < self._counts[everybody]:
            return None
        return self._open.setdefault(barrier_id, Barrier())

    def _check_losses(self, barrier: Barrier) -> None:
        for worker in barrier.awaited.values():
            if worker in self._lost:
                barrier.fail(self._lost[worker])


def _everybody_of(barrier_id: str) -> str:
    """Returns what the ids of all barriers of the same workers begin with."""
    return barrier_id.rpartition("#")[0]
