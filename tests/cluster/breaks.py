"""A program, run again and again: each time connections break at another one of its messages.

First it runs undisturbed, and every message is noted: who sent it, to whom, of which kind, and
which of these it was. Then, for each message and each way of breaking, it runs with exactly that
break. It ends, in the right value or in an error that names a worker; and the same workers go on.
"""

from __future__ import annotations

import gc
import itertools
import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from lockstitch.autograd.service import AutogradService
from lockstitch.errors import LockstitchError
from lockstitch.runtime.agent import AgentOptions
from lockstitch.testing.clock import ManualClock
from lockstitch.testing.cluster import LocalCluster
from lockstitch.testing.time_limits import ActiveTimeLimit
from lockstitch.transport.memory import Action, Break, Deliver
from lockstitch.wire.messages import KINDS
from tests.unit.runtime.stage import Background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.runtime.agent import Agent
    from lockstitch.testing.faults import Faults

BOUND_SECONDS = 10.0
"""That of the heartbeats."""
_SOON_SECONDS = 0.05
_STEP_SECONDS = 0.25
_REAL_STEP_SECONDS = 0.01
_PATIENCE_SECONDS = 20.0


class Moment(NamedTuple):
    """One message of a program."""

    sender: str
    receiver: str
    kind: str
    nth: int


class Way(NamedTuple):
    """What breaks, and whether before the message has arrived or after."""

    own: bool
    others: bool
    before: bool

    def __str__(self) -> str:
        which = "both" if self.own and self.others else "own" if self.own else "other"
        return f"{which} {'before' if self.before else 'after'}"


WAYS = [
    Way(own, others, before)
    for own, others in ((True, False), (False, True), (True, True))
    for before in (True, False)
]


class Script:
    """A script that notes what is said, and breaks connections at one moment."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self.is_watching = False
        self.strikes: tuple[Moment, Way] | None = None
        self.has_struck = False
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        if self.strikes is None:
            return "undisturbed"
        moment, way = self.strikes
        return f"{moment.sender} → {moment.receiver}: {moment.kind} #{moment.nth}, {way}"

    def apply(self, sender: str, receiver: str, kind: int) -> list[Action]:
        """See `transport.memory.FrameScript`."""
        delivered: list[Action] = [Deliver()]
        with self._lock:
            name = KINDS[kind].__name__ if kind in KINDS else ""
            if not self.is_watching or name in ("", "Heartbeat", "Alive"):
                return delivered
            key = sender, receiver, name
            self._counts[key] += 1
            moment = Moment(*key, self._counts[key])
            self.moments.append(moment)
            if self.strikes is None or self.strikes[0] != moment:
                return delivered
            self.has_struck = True
            way = self.strikes[1]
        broken = Break(way.own, way.others)
        return [broken, *delivered] if way.before else [*delivered, broken]

    def watch(self) -> None:
        """From now on what is said counts."""
        self.is_watching = True

    @contextmanager
    def watched(self) -> Iterator[None]:
        """What is said within counts."""
        self.watch()
        try:
            yield
        finally:
            self.is_watching = False


class World:
    """Three workers, a clock that stands still unless something waits for it, and a script."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.script = Script()
        options = AgentOptions(heartbeat_timeout=BOUND_SECONDS, default_timeout=0)
        self.cluster = LocalCluster(
            3, faults=cast("Faults", self.script), clock=self.clock, options=options
        )

    def run(self, program: Callable[[World], Any]) -> Any:
        """What the program returns, or the error of ours that it ends in: either in time."""
        running = Background(program, self)
        self.go_on_until(lambda: not running.is_running)
        try:
            return running.result(repr(self.script))
        except LockstitchError as error:
            return error

    def go_on_until(self, holds: Callable[[], bool]) -> None:
        """Lets time pass, as far as nothing happens without."""
        pause, time_limit, started = (
            threading.Event(),
            ActiveTimeLimit(_PATIENCE_SECONDS),
            self.clock.now(),
        )
        soon = ActiveTimeLimit(_SOON_SECONDS)
        while not holds():
            assert not time_limit.is_over(), f"hangs after {self.clock.now() - started} s: {self!r}"
            if soon.is_over():
                self.clock.advance(_STEP_SECONDS)
                pause.wait(_REAL_STEP_SECONDS)
            else:
                pause.wait(0.0005)

    def __repr__(self) -> str:
        waits = [
            wait.what for each in self.cluster for wait in each.service(AutogradService).waits()
        ]
        agents = [each.agent for each in self.cluster]
        unnoticed = [_broken(each) for each in agents]
        return f"{self.script!r} · {waits} · {agents} · {unnoticed}"

    def check_rest(self) -> None:
        """Nobody has lost anybody, nobody has anything left, and all breaks have been noticed."""
        agents = [worker.agent for worker in self.cluster]
        services = [worker.service(AutogradService) for worker in self.cluster]
        self.go_on_until(
            lambda: (
                all(each.is_at_rest() and not _broken(each) for each in agents)
                and not any(each.contexts or each.running_passes for each in services)
            )
        )
        for agent, other in itertools.product(agents, agents):
            lost = agent.peers._lost.get(other.id)
            assert lost is None, (self.script, agent, other, lost)


def _broken(agent: Agent) -> list[object]:
    """The breaks of which it is still to notice something, or to tell."""
    peers = agent.peers
    ends = [*peers._channels.values(), *peers._incoming]
    broken = [each for each in ends if hasattr(each, "connection") and each.connection.is_ended]
    return [*agent.liveness._hopes.items(), *peers.breakages.channels(), *broken]


def moments_of(program: Callable[[World], Any], check: Callable[[Any], None]) -> list[Moment]:
    """What is said in the program, undisturbed."""
    world = World()
    with world.cluster:
        check(world.run(program))
        world.check_rest()
    return list(dict.fromkeys(world.script.moments))


def run_broken(
    program: Callable[[World], Any],
    check: Callable[[Any], None],
    moment: Moment,
    way: Way,
    is_clean: Callable[[World], bool] = lambda _world: True,
) -> None:
    """Runs it with that break, and once more without; after each, `is_clean` comes true."""
    world = World()
    world.script.strikes = moment, way
    with world.cluster:
        result = world.run(program)
        if isinstance(result, LockstitchError):
            assert world.script.has_struck, (world.script, result)
            assert any(name in str(result) for name in world.cluster.names), (world.script, result)
        else:
            check(result)
        del result  # the frames of an error hold references
        gc.collect()
        world.check_rest()
        world.go_on_until(lambda: is_clean(world))
        world.script.strikes = None
        check(world.run(program))
        world.check_rest()
        world.go_on_until(lambda: is_clean(world))
