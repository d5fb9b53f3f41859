"""A model of the threads that share a connection: each step of `ReadingRight` and of those who use
it, as values, with the tables of `next_reader` in it. Any thread may make the next step.

The steps are those between which another thread may come: one read or write of something shared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from lockstitch.runtime.next_reader import ACTIONS, Action, Event, Successor, Watch, due, successor

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = -1
MOST_DEFERRALS = 1


class State(NamedTuple):
    """`at` says for each thread which step comes next, and with what."""

    at: tuple[tuple[Any, ...], ...]
    holder: int = NOBODY
    arming: int = NOBODY
    followers: tuple[int, ...] = ()
    woken: frozenset[int] = frozenset()
    pending: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()
    coming: frozenset[int] = frozenset()
    """Answers that may arrive at any time."""
    arrived: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    """Taken from the connection, and not delivered yet."""
    is_armed: bool = False
    is_scheduled: bool = False
    is_polled: bool = False
    """The poller will tell the pool's reader of what arrives."""
    told: int = 0
    """How often the pool's reader has been told, and has not come yet."""
    checks: int = 0
    is_urgent: bool = False
    is_sending: bool = False
    deferrals: int = 0
    waiters: int = 0
    """How many threads wait; they are the first."""
    strikes: int = 0
    """How many interrupts may still come to them."""

    def go(self, thread: int, *to: Any, **changes: Any) -> State:
        at = (*self.at[:thread], to, *self.at[thread + 1 :])
        return self._replace(at=at, **changes)

    def poll(self) -> State:
        """The poller tells once of what has arrived."""
        if self.is_polled and self.arrived:
            return self._replace(is_polled=False, told=self.told + 1)
        return self

    @property
    def watch(self) -> Watch:
        if self.is_armed:
            return Watch.ARMED
        return Watch.SCHEDULED if self.is_scheduled else Watch.IDLE


def start(waiters: int = 0, senders: int = 0, urgent: int = 0, strikes: int = 0) -> State:
    """Threads that call and wait, that call without waiting, and that do so and want the answer as
    soon as it comes; a reader of the pool and its monitor. No step was made yet."""
    threads = [("request", "try")] * waiters + [("request", "expect")] * senders
    threads += [("request", "demand")] * urgent
    return State(at=(*threads, ("pool",), ("monitor",)), waiters=waiters, strikes=strikes)


def following(state: State) -> Iterator[State]:
    """What may come next."""
    for answer in state.coming:
        arrived = state._replace(coming=state.coming - {answer}, arrived=(*state.arrived, answer))
        yield arrived.poll()
    for thread, (step, *rest) in enumerate(state.at):
        yield from STEPS[step](state, thread, *rest)
        if state.strikes and thread < state.waiters and step not in ("request", "end"):
            yield strike(state, thread)


# ---------------------------------------------------------------- threads that ask for something


def request(s: State, me: int, then: str) -> Iterator[State]:
    step = (then,) if then == "try" else (then, ("end",))
    yield s.go(me, *step, pending=s.pending | {me}, coming=s.coming | {me}, is_sending=True)


def try_(s: State, me: int) -> Iterator[State]:
    if me in s.done:
        yield s.go(me, "leave")
    elif s.holder == NOBODY:
        yield s.go(me, "read", ("try",), holder=me)
    else:
        yield s.go(me, "publish")


def publish(s: State, me: int) -> Iterator[State]:
    yield s.go(me, "look_once_more", followers=(*s.followers, me))


def look_once_more(s: State, me: int) -> Iterator[State]:
    yield s.go(me, "withdraw" if s.holder == NOBODY or me in s.done else "sleep")


def sleep(s: State, me: int) -> Iterator[State]:
    if me in s.woken:
        yield s.go(me, "withdraw")


def withdraw(s: State, me: int) -> Iterator[State]:
    followers = tuple(each for each in s.followers if each != me)
    yield s.go(me, "try", followers=followers, woken=s.woken - {me})


def leave(s: State, me: int) -> Iterator[State]:
    yield s.go(me, *(("pass_on", ("end",)) if s.followers else ("leave_if_nothing_comes",)))


def leave_if_nothing_comes(s: State, me: int) -> Iterator[State]:
    yield s.go(me, *(("pass_on", ("end",)) if s.pending else ("end",)))


def strike(s: State, me: int) -> State:
    """An interrupt: what `finally` gives back, and then somebody else is to go on."""
    return s.go(
        me,
        "pass_on",
        ("end",),
        strikes=s.strikes - 1,
        holder=NOBODY if s.holder == me else s.holder,
        followers=tuple(each for each in s.followers if each != me),
        woken=s.woken - {me},
        is_armed=s.is_armed and s.at[me][0] != "poll",
        arming=NOBODY if s.arming == me else s.arming,
        is_scheduled=s.is_scheduled and s.at[me][0] != "ask",
    )


# ---------------------------------------------------------------- reading and passing on


def read(s: State, me: int, then: tuple[Any, ...]) -> Iterator[State]:
    is_pool = s.at[me] == ("read", ("end_of_serving",))
    if me in s.done:
        yield s.go(me, "release", then)
    elif s.received:
        done = s.received[0]
        yield s.go(me, "deliver", then, done=s.done | {done}, woken=s.woken | {done})
    elif s.arrived:
        yield s.go(me, "read", then, arrived=s.arrived[1:], received=(s.arrived[0],))
    elif is_pool:  # it does not wait for more
        yield s.go(me, "release", then)


def deliver(s: State, me: int, then: tuple[Any, ...]) -> Iterator[State]:
    pending = s.pending - {s.received[0]}
    yield s.go(me, "deliver_2", then, pending=pending)


def deliver_2(s: State, me: int, then: tuple[Any, ...]) -> Iterator[State]:
    is_urgent = s.is_urgent and bool(s.pending)
    yield s.go(me, "read", then, received=s.received[1:], is_urgent=is_urgent)


def release(s: State, me: int, then: tuple[Any, ...]) -> Iterator[State]:
    to = then if then == ("try",) else ("pass_on", then)
    yield s.go(me, *to, holder=NOBODY)


def pass_on(s: State, me: int, then: tuple[Any, ...]) -> Iterator[State]:
    waiting = [each for each in s.followers if each not in s.done]
    yield s.go(me, *(("wake", waiting[0], then) if waiting else ("look_for_left_over", then)))


def wake(s: State, me: int, follower: int, then: tuple[Any, ...]) -> Iterator[State]:
    who = successor(has_follower=True, is_closed=False, is_left_over=lambda: bool(s.received))
    assert who is Successor.FOLLOWER
    yield s.go(me, *then, woken=s.woken | ({follower} & set(s.followers)))


def look_for_left_over(s: State, me: int, then: tuple[Any, ...]) -> Iterator[State]:
    who = successor(has_follower=False, is_closed=False, is_left_over=lambda: bool(s.received))
    if who is Successor.POOL_NOW:
        yield s.go(me, *then, told=s.told + 1)
    else:
        yield s.go(me, "expect", then)


# ---------------------------------------------------------------- telling the pool's reader


def expect(s: State, me: int, then: tuple[Any, ...]) -> Iterator[State]:
    yield s.go(me, "look_up", Event.DEMAND if s.is_urgent else Event.EXPECT, then)


def demand(s: State, me: int, then: tuple[Any, ...]) -> Iterator[State]:
    yield s.go(me, "look_up", Event.DEMAND, then, is_urgent=True)


def look_up(s: State, me: int, event: Event, then: tuple[Any, ...]) -> Iterator[State]:
    action = ACTIONS[event][s.watch]
    yield s.go(me, *(then if action is Action.NOTHING else ("unless_read", action, then)))


def unless_read(s: State, me: int, action: Action, then: tuple[Any, ...]) -> Iterator[State]:
    yield s.go(me, *(("if_expected", action, then) if s.holder == NOBODY else then))


def if_expected(s: State, me: int, action: Action, then: tuple[Any, ...]) -> Iterator[State]:
    if not s.pending:
        yield s.go(me, *then)
    elif action is Action.ARM:
        yield s.go(me, "arm", then)
    elif then == ("monitor",):
        yield s.go(me, "ask_again", is_sending=False, deferrals=s.deferrals - 1)
    else:
        yield s.go(me, "schedule", then, is_sending=False, deferrals=MOST_DEFERRALS)


def arm(s: State, me: int, then: tuple[Any, ...]) -> Iterator[State]:
    if s.arming == NOBODY:
        yield s.go(me, "poll", then, arming=me, is_armed=True)


def poll(s: State, me: int, then: tuple[Any, ...]) -> Iterator[State]:
    yield s.go(me, *then, arming=NOBODY, is_polled=True).poll()


def schedule(s: State, me: int, then: tuple[Any, ...]) -> Iterator[State]:
    yield s.go(me, "ask", then, is_scheduled=True)


def ask(s: State, me: int, then: tuple[Any, ...]) -> Iterator[State]:
    yield s.go(me, *then, checks=s.checks + 1)


# ---------------------------------------------------------------- the pool's reader and monitor


def pool(s: State, me: int) -> Iterator[State]:
    if s.told:
        yield s.go(me, "serve", told=s.told - 1)


def serve(s: State, me: int) -> Iterator[State]:
    yield s.go(me, "serve_2", is_armed=False)


def serve_2(s: State, me: int) -> Iterator[State]:
    if s.holder == NOBODY:
        yield s.go(me, "read", ("end_of_serving",), holder=me)
    else:
        yield s.go(me, "end_of_serving")


def end_of_serving(s: State, me: int) -> Iterator[State]:
    if s.arming == NOBODY:  # from now on the poller tells of the connection's end only
        yield s.go(me, "pool", is_polled=s.is_polled and s.is_armed)


def monitor(s: State, me: int) -> Iterator[State]:
    if s.checks:
        yield s.go(me, "check", checks=s.checks - 1)


def check(s: State, me: int) -> Iterator[State]:
    yield s.go(me, "check_2", is_scheduled=False)


def check_2(s: State, me: int) -> Iterator[State]:
    event = due(is_busy=s.is_sending, deferrals_left=s.deferrals)
    yield s.go(me, "look_up", event, ("monitor",))


def ask_again(s: State, me: int) -> Iterator[State]:
    yield s.go(me, "ask", ("monitor",), is_scheduled=True)


def end(s: State, me: int) -> Iterator[State]:
    del s, me
    yield from ()


STEPS = {
    function.__name__.rstrip("_"): function
    for function in (
        *(request, try_, publish, look_once_more, sleep, withdraw, leave, leave_if_nothing_comes),
        *(read, deliver, deliver_2, release, pass_on, wake, look_for_left_over),
        *(expect, demand, look_up, unless_read, if_expected, arm, poll, schedule, ask),
        *(pool, serve, serve_2, end_of_serving, monitor, check, check_2, ask_again, end),
    )
}
