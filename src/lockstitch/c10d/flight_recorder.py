"""The last operations of this process, over all of its groups: a flight recorder, as NCCL's.

It keeps what an operation was (its group, its place in the order of that group, shapes, dtypes) and
none of its tensors. `TORCH_FR_BUFFER_SIZE`, or `TORCH_NCCL_TRACE_BUFFER_SIZE`, says how many: 2000
by default, 0 for none. When a group ends with an error the last few are logged.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from lockstitch.attach.logs import ProcessLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch
    from torch import distributed

    from lockstitch.collectives import Handle, Session

_SIZE: Final = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DEFAULT_SIZE: Final = 2000
_MOST_LOGGED: Final = 8
_FUTURES: Final = 1024
NO_KEY: Final = (-1, "")
"""Of what is not an operation of a session."""
_log = ProcessLog(__name__)


class GroupLabel:
    """How people know a group: by the name that torch gives it, and the global ranks of its
    members, in the order of their ranks in the group."""

    def __init__(self, session: Session, name: str, ranks: Sequence[int]) -> None:
        self._session = weakref.ref(session)
        self.rank = session.rank
        self.name = name
        self.description = ""
        self.ranks = tuple(ranks)
        self._failed: dict[tuple[tuple[int, str], float], None] = {}
        """Keys and times of what has failed, the latest ones."""

    def __str__(self) -> str:
        words = f"group {self.name!r}"
        if self.description and self.description != "undefined":
            words += f" ({self.description})"
        if self.ranks != tuple(range(len(self.ranks))):
            words += f" of ranks {', '.join(map(str, self.ranks))}"
        return words

    @property
    def global_rank(self) -> int:
        """Of this process."""
        return self.ranks[self.rank]

    def is_under_way(self, key: tuple[int, str], submitted_at: float) -> bool:
        """Returns whether the operation of that key which was submitted then is not done."""
        session = self._session()
        handle: Handle[Any] | None = session.in_flight(key) if session is not None else None
        return handle is not None and handle.submitted_at == submitted_at

    def note_failure(self, handle: Handle[Any], _error: BaseException) -> None:
        """An operation has failed, perhaps one whose error nobody will ask for."""
        if len(self._failed) >= _DEFAULT_SIZE:
            del self._failed[next(iter(self._failed))]
        self._failed[handle.key, handle.submitted_at] = None

    def has_failed(self, key: tuple[int, str], submitted_at: float) -> bool:
        """Returns whether the operation of that key which was submitted then has."""
        return (key, submitted_at) in self._failed


@dataclass(slots=True)
class Entry:
    """One operation of this process."""

    group: GroupLabel
    number: int
    """Its place among the collectives of the group, or among the messages; from 1."""
    name: str
    """As torch calls it: `all_reduce`; `send 0->1`, `recv 1<-0`, with ranks in the group."""
    is_message: bool
    shapes: Sequence[torch.Size]
    dtypes: Sequence[torch.dtype]
    results: Sequence[torch.Size]
    key: tuple[int, str]
    """Under which the session has it, or `NO_KEY`."""
    submitted_at: float
    """By the monotonic clock, in seconds."""
    limit_seconds: float
    """How long it may take by its own options; 0: as long as its group allows."""
    has_failed: bool = False
    """Whether somebody has been told that it has."""
    callback: str = ""
    """The callback of a future that has submitted it (`futures`), among whose operations it has its
    place; empty: the program."""

    work: weakref.ref[distributed.Work] | None = None
    """For what is done by another library than the session: its work, which is over when nobody
    has it any more."""

    @property
    def is_under_way(self) -> bool:
        """Whether it is not done."""
        if self.work is not None:
            work = self.work()
            return work is not None and not work.is_completed()
        return self.group.is_under_way(self.key, self.submitted_at)

    @property
    def state(self) -> str:
        """How far it has come, in a word or two."""
        if self.has_failed or self.group.has_failed(self.key, self.submitted_at):
            return "failed"
        return "under way" if self.is_under_way else "done"

    def __str__(self) -> str:
        """`all_reduce of float32 (4, 3), operation 7 of group '0' (default_pg)`."""
        dtypes = {str(dtype).removeprefix("torch.") for dtype in self.dtypes}
        shapes = ", ".join(str(tuple(shape)) for shape in self.shapes[:3])
        rest = f" and {len(self.shapes) - 3} more" if len(self.shapes) > 3 else ""
        of = f" of {'/'.join(sorted(dtypes))} {shapes}{rest}" if self.shapes else ""
        kind = "message" if self.is_message else "operation"
        by = f" in callback {self.callback!r}" if self.callback else ""
        return f"{self.name}{of}, {kind} {self.number}{by} of {self.group}"

    @property
    def future_name(self) -> str:
        """What all ranks call the future of this operation. Numbers come around again, so that the
        ranks need not tell each other new names for ever."""
        return f"{self.callback or self.group.name}:{self.number % _FUTURES}"


Repetition = tuple[Entry, int, float]
"""Another operation like one before: that one, and what differs, its number and its time."""


class FlightRecorder:
    """See the module. A process has one, `RECORDER`."""

    def __init__(self, size: int, now: Callable[[], float] = time.monotonic) -> None:
        self.is_on = size > 0
        self._entries: deque[Entry | Repetition] = deque(maxlen=size)
        self._now = now
        self._told: weakref.WeakSet[GroupLabel] = weakref.WeakSet()
        os.register_at_fork(after_in_child=self.clear)

    def __repr__(self) -> str:
        return f"<FlightRecorder · {len(self._entries)} of {self._entries.maxlen} operations>"

    def record(self, entry: Entry | Repetition) -> None:
        """Keeps it, in the place of the oldest."""
        self._entries.append(entry)

    def entries(self) -> list[Entry]:
        """Returns all of them, the oldest first."""
        return [_entry_of(each) for each in list(self._entries)]

    def as_entry(self, repetition: Repetition) -> Entry:
        """Keeps it as an entry from now on, which can be changed, and returns that."""
        entry = _entry_of(repetition)
        # It was dropped, or is not kept, or another thread records something at this moment.
        with contextlib.suppress(ValueError, IndexError):
            self._entries.remove(repetition)
            self._entries.append(entry)
        return entry

    def clear(self) -> None:
        """Forgets them. A forked child has done none of it."""
        self._entries.clear()

    def lines(self, entries: Iterable[Entry]) -> list[str]:
        """A line for each: what it is, how far it has come, and how long ago it began."""
        now = self._now()
        return [
            f"{entry}: {entry.state}, {now - entry.submitted_at:.1f} s ago" for entry in entries
        ]

    def last_of(self, group: GroupLabel) -> Entry | None:
        """Returns the latest operation of a group."""
        found = (entry for entry in reversed(self.entries()) if entry.group is group)
        return next(found, None)

    def is_first_failure(self, group: GroupLabel) -> bool:
        """Returns True once for each group."""
        is_first = group not in self._told
        self._told.add(group)
        return is_first

    def log(self, group: GroupLabel, error: BaseException) -> None:
        """Logs with what error a group has ended, and the last operations."""
        last = self.lines(self.entries()[-_MOST_LOGGED:])
        _log.error(
            "on rank %d %s has ended: %s. The last operations here:\n  %s",
            group.global_rank,
            group,
            str(error),  # whoever keeps records would keep its frames, and so the group, alive
            "\n  ".join(last) or "none is recorded",
        )


def _entry_of(each: Entry | Repetition) -> Entry:
    if isinstance(each, Entry):
        return each
    like, number, submitted_at = each
    return replace(like, number=number, submitted_at=submitted_at, has_failed=False)


def recorder_size(environment: Mapping[str, str]) -> int:
    """Returns how many operations are to be kept. Raises `ValueError` for what is no number."""
    for variable in _SIZE:
        if given := environment.get(variable):
            try:
                return max(0, int(given))
            except ValueError as error:
                raise ValueError(f"{variable}={given!r} must be a number of operations") from error
    return _DEFAULT_SIZE


RECORDER = FlightRecorder(recorder_size(os.environ))
