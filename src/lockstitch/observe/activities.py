"""Which activities of a job can never go on by themselves: who is blocked, and by whom. No I/O.

A worker does several things at once: its program, the calls that it serves, backward passes. Each
is an *activity*, and waits for itself. That A waits for an answer of B and B for one of A is
harmless as long as one of the two calls is being worked on; it is a cycle where each activity waits
for the next one.

An activity *goes on* if it runs, sleeps or reads, or if something goes on that it waits for. Whose
lock it wants nobody says, so it is taken to go on as long as any other activity of its process does
that may have it. All others are blocked, and cycles are sought among these.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Literal, NamedTuple

from lockstitch.observe.cycles import find_cycles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lockstitch.observe.participants import Participant, Wait


class Activity(NamedTuple):
    """Something that a participant does. `kind`: a "thread" of that `number`; "passes": its parts
    of backward passes and pipelines; calls that it serves, one that is "parked" and holds no
    thread, or all in its "queue"; a "lock" that one of its threads has; or nothing that is known.
    """

    participant: str
    kind: Literal["thread", "passes", "parked", "queue", "lock", "unknown"]
    number: int = 0


_Way = tuple[tuple[Activity, "Wait | None"], ...]
"""What an activity needs to go on, all of it; where there are several ways, one is enough."""


class Activities:
    """See the module. What has been waited for since less than `patience_seconds` may be on its
    way: whoever waits for that goes on."""

    def __init__(
        self, participants: Sequence[Participant], waits: Iterable[Wait], patience_seconds: float
    ) -> None:
        self._patience_seconds = patience_seconds
        self._by_name = {each.name: each for each in participants}
        self._mains = {each.name: each.main_thread for each in participants}
        self._waits: dict[str, list[Wait]] = defaultdict(list)
        for wait in waits:
            self._waits[wait.waiter].append(wait)
        self._ways: dict[Activity, list[_Way]] = {}
        self._leads: dict[tuple[Activity, bool], bool] = {}

    def circles(self) -> list[tuple[Wait, ...]]:
        """Returns, of those that are blocked by each other, a shortest cycle each."""
        self._find_ways()
        blocked = self._ways.keys() - self._that_go_on()
        edges: dict[Activity, dict[Activity, Wait | None]] = {}
        for one in blocked:
            # Of several waits for the same the oldest counts.
            steps = [step for way in self._ways[one] for step in way if step[0] in blocked]
            steps.sort(key=lambda step: 0.0 if step[1] is None else step[1].seconds)
            edges[one] = dict(steps)
        cycles = find_cycles({one: list(targets) for one, targets in edges.items()})
        found = (
            [edges[a][b] for a, b in zip(cycle, [*cycle[1:], cycle[0]], strict=True)]
            for cycle in cycles
        )
        return [tuple(each for each in waits if each is not None) for waits in found]

    def target_of(self, wait: Wait) -> Activity:
        """Returns the activity that is waited for."""
        target = self._by_name.get(wait.target)
        if target is None or wait.seconds < self._patience_seconds:
            return Activity(wait.target, "unknown")
        if wait.kind == "call":
            return self._serving(target, wait)
        return Activity(target.name, "passes") if wait.is_of_passes else self._program_of(target)

    def leads_on(self, activity: Activity, *, with_apart: bool) -> bool:
        """Returns whether an activity itself waits for another participant. `with_apart`: also
        where it waits apart from what is served."""
        known = self._leads.get((activity, with_apart))
        if known is None:
            ways = self._ways_of(activity, with_apart=with_apart)
            self._leads[activity, with_apart] = known = bool(ways) and all(
                wait is not None or self.leads_on(target, with_apart=with_apart)
                for way in ways
                for target, wait in way
            )
        return known

    # ------------------------------------------------------------ inside

    def _serving(self, callee: Participant, wait: Wait) -> Activity:
        served = callee.served(wait)
        if served is None:
            has_queue = callee.worker is not None and callee.worker.backlog > 0
            return Activity(callee.name, "queue" if has_queue else "unknown")
        if served.thread:
            return Activity(callee.name, "thread", served.thread)
        return Activity(callee.name, "parked", served.number)

    def _program_of(self, one: Participant) -> Activity:
        main = self._mains[one.name]
        return Activity(
            one.name, "unknown" if main is None else "thread", main.ident if main else 0
        )

    def _find_ways(self) -> None:
        """Fills `_ways` with all activities that wait, or are waited for."""
        left = [self.target_of(wait) for waits in self._waits.values() for wait in waits]
        left += [
            Activity(wait.waiter, "thread", wait.thread)
            for waits in self._waits.values()
            for wait in waits
            if wait.thread
        ]
        left += [self._program_of(each) for each in self._by_name.values()]
        while left:
            activity = left.pop()
            if activity not in self._ways:
                self._ways[activity] = self._ways_of(activity)
                left += [target for way in self._ways[activity] for target, _ in way]

    def _that_go_on(self) -> set[Activity]:
        waiters: dict[Activity, set[Activity]] = defaultdict(set)
        for one, ways in self._ways.items():
            for way in ways:
                for target, _ in way:
                    waiters[target].add(one)
        on = {each for each, ways in self._ways.items() if not ways}
        left = deque(on)
        while left:
            for one in waiters[left.popleft()] - on:
                if any(all(target in on for target, _ in way) for way in self._ways[one]):
                    on.add(one)
                    left.append(one)
        return on

    def _ways_of(self, activity: Activity, *, with_apart: bool = False) -> list[_Way]:
        """What an activity waits for; nothing where it goes on by itself."""
        one = self._by_name.get(activity.participant)
        ways: Iterable[_Way] = ()
        if one is None or activity.kind == "unknown":
            pass
        elif activity.kind == "thread":
            ways = self._ways_of_thread(one, activity.number, with_apart=with_apart)
        elif activity.kind == "passes":
            ways = self._together(each for each in self._waits[one.name] if each.is_of_passes)
        elif activity.kind == "queue":
            threads = (Activity(one.name, "thread", call.thread) for call in one.serving)
            ways = (((each, None),) for each in threads if each.number)
        elif activity.kind == "lock":
            ways = (*self._holders(one, with_apart=with_apart), *self._in_whole(one))
        else:
            ways = self._together(each for each in self._waits[one.name] if _may_park(each))
        return list(ways)

    def _ways_of_thread(self, one: Participant, ident: int, *, with_apart: bool) -> list[_Way]:
        thread = one.thread(ident)
        if thread is None or thread.stands_in in ("", "sleep"):
            return []
        if thread.stands_in == "lock":
            return [((Activity(one.name, "lock"), None),)]
        calls = [
            each for each in self._waits[one.name] if each.kind == "call" and each.thread == ident
        ]
        return self._together(calls) if calls else self._in_whole(one, with_apart=with_apart)

    def _in_whole(self, one: Participant, *, with_apart: bool = False) -> list[_Way]:
        """What a participant waits for without it being known which thread of it does."""
        return self._together(
            each
            for each in self._waits[one.name]
            if (each.kind != "call" and (with_apart or not each.is_apart)) or _may_park(each)
        )

    def _holders(self, one: Participant, *, with_apart: bool) -> Iterator[_Way]:
        """Those of its threads that may have a lock which others want."""
        for thread in one.threads:
            is_idle = thread.kind == "user" and thread.stands_in == "sleep"
            if thread.kind == "library" or thread.stands_in == "lock" or is_idle:
                continue
            activity = Activity(one.name, "thread", thread.ident)
            if with_apart or not self._is_apart(activity):
                yield ((activity, None),)

    def _is_apart(self, thread: Activity) -> bool:
        """Whether a thread waits for nothing but what is waited for apart."""
        ways = self._ways_of(thread, with_apart=True)
        return bool(ways) and all(
            wait is not None and wait.is_apart for way in ways for _, wait in way
        )

    def _together(self, waits: Iterable[Wait]) -> list[_Way]:
        """Waits as ways: what is waited for in one is a part of the same way."""
        ways: dict[object, list[tuple[Activity, Wait | None]]] = defaultdict(list)
        for wait in waits:
            ways[wait.whole].append((self.target_of(wait), wait))
        return [tuple(each) for each in ways.values()]


def _may_park(wait: Wait) -> bool:
    """Whether a call that holds no thread may wait for that: an answer that no thread waits for, or
    a pass. An answer of its own worker may be its own."""
    if wait.kind == "call":
        return not wait.thread and wait.target != wait.waiter
    return wait.is_of_passes
