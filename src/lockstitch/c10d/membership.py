"""What all operations of one group have in common: its session, how people know it, who completes
its futures, and what is told when something goes wrong."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lockstitch.attach.logs import ProcessLog
from lockstitch.c10d.flight_recorder import NO_KEY, RECORDER, Entry
from lockstitch.c10d.requests import QUEUE
from lockstitch.c10d.trace import tell_failure
from lockstitch.errors import CollectiveError, RankLostError, StalledError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from lockstitch.attach.values import CollectiveWait
    from lockstitch.c10d.completions import Completions
    from lockstitch.c10d.flight_recorder import GroupLabel, Repetition
    from lockstitch.c10d.reports import Reports
    from lockstitch.collectives import Handle, Session, Stall

_log = ProcessLog(__name__)


class Membership:
    """One rank's part in a group."""

    def __init__(
        self,
        session: Session,
        label: GroupLabel,
        completions: Completions,
        reports: Reports | None = None,
    ) -> None:
        self.session = session
        self.label = label
        self.completions = completions
        self.submitted = 0
        """How many collectives this rank has submitted."""
        self._messages = 0
        self._in_callbacks: Counter[str] = Counter()
        """How many collectives each callback of a future has submitted (`futures`)."""
        self._is_wanted = False
        """Whether other ranks waited for this one at the last look."""
        self._reports = reports

    @property
    def me(self) -> str:
        """`rank 3`, a global rank."""
        return f"rank {self.label.global_rank}"

    def recorded(
        self,
        handle: Handle[Any],
        name: str,
        results: Sequence[torch.Tensor],
        limit_seconds: float,
        *,
        is_message: bool = False,
        callback: str = "",
    ) -> Entry:
        """Notes an operation in the flight recorder."""
        if is_message:
            self._messages = number = self._messages + 1
        elif callback:
            self._in_callbacks[callback] = number = self._in_callbacks[callback] + 1
        else:
            self.submitted = number = self.submitted + 1
        cached = handle.cached
        entry = Entry(
            self.label,
            number,
            name,
            is_message,
            cached.shapes,
            cached.dtypes,
            [each.shape for each in results] if results else (),
            handle.key,
            handle.submitted_at,
            limit_seconds,
            callback=callback,
        )
        if RECORDER.is_on:
            RECORDER.record(entry)
        return entry

    def repeated(self, like: Entry, submitted_at: float) -> Repetition:
        """Notes another operation like one that the program had submitted before."""
        if like.is_message:
            self._messages = number = self._messages + 1
        else:
            self.submitted = number = self.submitted + 1
        repetition = (like, number, submitted_at)
        if RECORDER.is_on:
            RECORDER.record(repetition)
        return repetition

    def recorded_message(self, name: str, tensor: torch.Tensor) -> Entry:
        """Notes a message that another library than the session brings. The caller sets its `work`
        as soon as there is one."""
        self._messages += 1
        shapes, dtypes = [tensor.shape], [tensor.dtype]
        now = self.session.clock.now()
        entry = Entry(self.label, self._messages, name, True, shapes, dtypes, (), NO_KEY, now, 0.0)
        if RECORDER.is_on:
            RECORDER.record(entry)
        return entry

    def in_its_words(self, waits: Sequence[CollectiveWait]) -> tuple[CollectiveWait, ...]:
        """Returns what this rank waits for, or others do, each with the label by which the program
        knows it."""
        entries = [each for each in RECORDER.entries() if each.group is self.label]
        under_way: dict[str, deque[Entry]] = {}
        for entry in entries:
            if entry.is_under_way:
                name = entry.key[1].partition(" #")[0]
                under_way.setdefault(name, deque()).append(entry)
        return tuple(
            replace(each, label=self._label_of(each, under_way.get(each.name))) for each in waits
        )

    def _label_of(self, wait: CollectiveWait, under_way: deque[Entry] | None) -> str:
        if not wait.is_submitted:
            is_next = wait.name == QUEUE
            return f"operation {self.submitted + 1}" if is_next else f"message {wait.name}"
        return str(under_way.popleft()).removesuffix(f" of {self.label}") if under_way else ""

    # ------------------------------------------------------------ when something goes wrong

    def explained(
        self, error: CollectiveError, what: object, missing: Sequence[int] = ()
    ) -> CollectiveError:
        """Returns an error of the same kind that also says what this rank was in, and what the
        `missing` ranks have said that they do instead. One that ends the group is told to the
        flight recorder."""
        if isinstance(what, Entry):
            what.has_failed = True
        end = ""
        if isinstance(error, StalledError):
            end = ", until the timeout of the group"  # the word for which programs look
        told = "".join(f"\n  {each}" for each in self.reports_of(missing))
        if isinstance(error, (RankLostError, StalledError)):
            told += tell_failure(self.label, error)
        return type(error)(f"{error}{end} ({self.me} was in {what}){told}")

    def not_passed(
        self, error: StalledError, limit: timedelta, missing: Sequence[int], *, wait_all: bool
    ) -> StalledError:
        """Returns the error of a monitored barrier in torch's words, with those of `error`."""
        milliseconds = f"{limit / timedelta(milliseconds=1):.0f} ms"
        if not limit:
            return StalledError(
                f"Rank {self.label.global_rank} timed out in monitoredBarrier after "
                f"{milliseconds}, without waiting for others. {error}"
            )
        if not missing:
            return error
        late = self.session.names.in_words(missing if wait_all else missing[:1]).capitalize()
        return StalledError(f"{late} failed to pass monitoredBarrier in {milliseconds}. {error}")

    def warn_of_stall(self, stall: Stall) -> None:
        """Logs that an operation waits for long, and for whom."""
        missing = stall.missing_ranks
        whom = self.session.names.in_words(missing) if missing else "other ranks"
        _log.warning(
            "%s in %s has waited %.0f s on %s for %s, which did not submit it%s",
            stall.kind.value,
            self.label,
            stall.waited_seconds,
            self.me,
            whom,
            "".join(f"\n  {each}" for each in self.reports_of(missing)),
        )

    def late(self, what: object, seconds: float, missing: Sequence[int]) -> StalledError:
        """Returns the error of who does not wait any longer."""
        whom = self.session.names.in_words(missing) if missing else "other ranks"
        told = "".join(f"\n  {each}" for each in self.reports_of(missing))
        return StalledError(
            f"{what} timed out on {self.me}: it waited {seconds:g} s for {whom}{told}"
        )

    def reports_of(self, ranks: Sequence[int]) -> list[str]:
        """Returns what ranks have said that they do instead of coming."""
        return self._reports.read(ranks) if self._reports is not None and ranks else []

    def report(self, what_it_does: Callable[[GroupLabel], str]) -> None:
        """If other ranks have waited for an operation of this one since the last look, says to them
        what it does instead; if the group has ended by a fault, tells the flight recorder."""
        try:
            self.session.check()
        except (RankLostError, StalledError) as error:
            if not (isinstance(error, RankLostError) and error.is_farewell):
                tell_failure(self.label, error)
            return
        is_wanted, self._is_wanted = self._is_wanted, bool(self.session.wanted())
        if is_wanted and self._is_wanted and self._reports is not None:
            self._reports.post(what_it_does(self.label))
