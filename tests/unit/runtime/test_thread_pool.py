"""One thread reads, the others run: whoever blocks loses the reading right, nested waits never
starve, no more than the limit run at once, and all threads end."""

from __future__ import annotations

import sys
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import pytest

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.runtime.arrival import Arrival
from lockstitch.runtime.monitor import Sight
from lockstitch.runtime.thread_pool import ThreadPool
from lockstitch.transport.memory_streams import MemoryPoller
from tests.unit.runtime.stage import PATIENCE_SECONDS, Background, wait_until
from tests.unit.wire.interrupts import (
    Interrupter,
    interrupted,
    interrupted_again,
    strike_everywhere,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT = 2
QUICK, APART, CONTROL = "run_quick", "run_apart", "handle_as_reader"


class Inbox:
    """A source whose messages are functions, and how they are to be run."""

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool
        self._messages: deque[tuple[str, Callable[[], None]]] = deque()
        self._watchers: set[threading.Event] = set()
        pool.watch(self, self)
        pool.arm(self)

    def put(self, how: str, function: Callable[[], None]) -> None:
        self._messages.append((how, function))
        for watcher in list(self._watchers):
            watcher.set()

    # As something that a poller watches:

    def readable_at(self) -> float | None:
        return float("-inf") if self._messages else None

    def watch(self, changed: threading.Event) -> None:
        self._watchers.add(changed)

    def unwatch(self, changed: threading.Event) -> None:
        self._watchers.discard(changed)

    def close(self) -> None: ...

    # As a source of the pool:

    def serve(self) -> None:
        while self._messages:
            how, function = self._messages.popleft()
            if not getattr(self._pool, how)(self, function):
                return
        self._pool.arm(self)

    def leave(self) -> None:
        if self._messages:
            self._pool.revisit(self)
        else:
            self._pool.arm(self)


class Gate:
    """A place where functions of a test wait, without the thread pool knowing of it."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._lock = threading.Lock()
        self.inside = 0
        self.most = 0
        self.threads: list[str] = []

    def __call__(self) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.threads.append(threading.current_thread().name)
        assert self._open.wait(PATIENCE_SECONDS)
        with self._lock:
            self.inside -= 1

    def open(self) -> None:
        self._open.set()


class Scene:
    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.entered: list[str] = []
        self.poller = MemoryPoller(SYSTEM_CLOCK)
        self.thread_pool = ThreadPool("pool", LIMIT, self.poller, self._enter, self.errors.append)
        self.inbox = Inbox(self.thread_pool)
        self.gate = Gate()
        self.thread_pool.start()

    def _enter(self) -> None:
        self.entered.append(threading.current_thread().name)

    def put(self, how: str, function: Callable[[], None]) -> None:
        self.inbox.put(how, function)

    def runs(self, how: str = APART) -> None:
        """Returns when the thread pool has read and run one more message."""
        done = threading.Event()
        self.put(how, done.set)
        assert done.wait(PATIENCE_SECONDS), "the thread pool reads no more"


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.gate.open()
    assert scene.thread_pool.close(5) == []
    scene.poller.close()
    assert scene.errors == []


# ---------------------------------------------------------------- the reading right


@pytest.mark.parametrize("how", [QUICK, APART, CONTROL])
def test_messages_run_in_order_of_their_arrival(
    scene: Scene, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a quick function takes milliseconds, and the monitor has another go on.
    monkeypatch.setattr(scene.thread_pool, "_take_reading_right", lambda token: None)
    ran: list[int] = []
    for number in range(100):
        scene.put(how, lambda number=number: ran.append(number))  # type: ignore[misc]
    scene.runs(how)
    if how != APART:
        assert ran == list(range(100))
    wait_until(lambda: sorted(ran) == list(range(100)))


def test_quick_functions_need_one_thread(scene: Scene) -> None:
    for _ in range(50):
        scene.runs(QUICK)
    assert scene.thread_pool.threads == 1


def test_reading_goes_on_while_a_function_runs_apart(scene: Scene) -> None:
    scene.put(APART, scene.gate)
    for _ in range(3):
        scene.runs()
    assert scene.gate.inside == 1


def test_quick_function_that_blocks_after_all_loses_the_reading_right(scene: Scene) -> None:
    scene.runs(QUICK)
    scene.put(QUICK, scene.gate)
    scene.runs(QUICK)
    scene.put(QUICK, scene.gate)
    scene.runs(QUICK)
    wait_until(lambda: scene.gate.inside == 2)


def test_handler_that_blocks_loses_the_reading_right(scene: Scene) -> None:
    scene.put(CONTROL, scene.gate)
    scene.runs(CONTROL)
    assert scene.gate.inside == 1


def test_monitor_rests_and_is_roused_again(scene: Scene) -> None:
    scene.runs(QUICK)
    wait_until(lambda: scene.thread_pool._monitor.rests)
    scene.put(QUICK, scene.gate)
    scene.runs(QUICK)


def test_thread_that_lost_the_reading_right_serves_on_in_the_pool(scene: Scene) -> None:
    scene.put(QUICK, scene.gate)
    scene.runs(QUICK)
    threads = scene.thread_pool.threads
    scene.gate.open()
    for _ in range(20):
        scene.runs()
    assert scene.thread_pool.threads <= threads + 1


def test_failing_functions_do_not_end_the_reading(scene: Scene) -> None:
    for how in (QUICK, APART, CONTROL):
        for error in (ValueError("no"), SystemExit(1), KeyboardInterrupt()):
            scene.put(how, _raiser(error))
            scene.runs(how)
    assert sorted(type(error).__name__ for error in scene.errors) == sorted(
        3 * ["ValueError", "SystemExit", "KeyboardInterrupt"]
    )
    assert scene.thread_pool.running == 0
    scene.errors.clear()


def _raiser(error: BaseException) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_failing_source_does_not_end_the_reading(scene: Scene, kind: type[BaseException]) -> None:
    class Broken(Inbox):
        def serve(self) -> None:
            raise kind("broken source")

    Broken(scene.thread_pool).put(QUICK, lambda: None)
    wait_until(lambda: scene.errors)
    scene.runs()
    assert [str(error) for error in scene.errors] == ["broken source"]
    scene.errors.clear()


# ---------------------------------------------------------------- the limit


def test_at_most_the_limit_run_at_once_and_the_rest_waits(scene: Scene) -> None:
    for _ in range(10):
        scene.put(APART, scene.gate)
    wait_until(lambda: scene.gate.inside == LIMIT and scene.thread_pool.backlog == 8)
    assert scene.thread_pool.running == LIMIT
    scene.gate.open()
    wait_until(lambda: len(scene.gate.threads) == 10 and scene.gate.inside == 0)
    assert scene.gate.most == LIMIT
    wait_until(lambda: scene.thread_pool.running == 0)
    assert scene.thread_pool.backlog == 0


def test_submitted_calls_count_like_read_ones(scene: Scene) -> None:
    for _ in range(5):
        scene.thread_pool.submit(scene.gate)
    wait_until(lambda: scene.gate.inside == LIMIT and scene.thread_pool.backlog == 3)
    scene.gate.open()
    wait_until(lambda: len(scene.gate.threads) == 5 and scene.thread_pool.running == 0)
    assert scene.gate.most == LIMIT


def test_submitted_calls_begin_in_their_order_on_no_more_threads_than_may_run(
    scene: Scene,
) -> None:
    """The first ones fill all places, so that the others follow each other on one thread."""
    begun: list[int] = []
    before, may_go_on = scene.thread_pool.threads, threading.Event()
    for _ in range(LIMIT - 1):
        scene.thread_pool.submit(scene.gate)
    scene.thread_pool.submit(partial(wait_until, may_go_on.is_set))
    for number in range(200):
        scene.thread_pool.submit(partial(begun.append, number))
    may_go_on.set()
    wait_until(lambda: len(begun) == 200)
    assert begun == [*range(200)]
    assert scene.thread_pool.threads - before <= LIMIT + 1
    scene.gate.open()


def test_an_interrupt_while_a_call_is_submitted_takes_no_place_for_good(scene: Scene) -> None:
    modules = [f"lockstitch.runtime.{name}" for name in ("thread_pool", "call_limit", "threads")]

    def attempt(number: int) -> Interrupter:
        with interrupted(number, *modules) as striker:
            scene.thread_pool.submit(lambda: None)
        wait_until(lambda: scene.thread_pool.running == 0 and scene.thread_pool.is_resting)
        return striker

    assert strike_everywhere(attempt) > 1


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="the profile function itself may see the signal, too late"
)
def test_a_second_interrupt_leaves_no_submitted_call_behind(scene: Scene) -> None:
    modules = [f"lockstitch.runtime.{name}" for name in ("thread_pool", "call_limit", "threads")]
    with interrupted_again((), *modules) as unstruck:
        scene.thread_pool.submit(lambda: None)
    for first in range(1, unstruck.seen + 1):
        for second in range(1, 6):
            with interrupted_again((first, second), *modules) as interrupter:
                scene.thread_pool.submit(lambda: None)
            wait_until(
                lambda: scene.thread_pool.running == 0 and scene.thread_pool.is_resting,
                f"struck at {interrupter.where}",
            )


def test_what_is_submitted_runs_in_turn_where_the_system_has_no_more_threads(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    assign, ran = scene.thread_pool._threads.assign, list[int]()
    tasks: list[Callable[[], None]] = []

    def refuse_second(task: Callable[[], None]) -> None:
        tasks.append(task)
        if len(tasks) == 2:
            raise RuntimeError("can't start new thread")
        if len(tasks) > 2:
            assign(task)

    monkeypatch.setattr(scene.thread_pool._threads, "assign", refuse_second)
    scene.thread_pool.submit(partial(ran.append, 1))
    scene.thread_pool.submit(partial(ran.append, 2))
    assign(tasks[0])
    wait_until(lambda: ran == [1, 2] and scene.thread_pool.running == 0)
    assert [str(error) for error in scene.errors] == ["can't start new thread"]
    scene.errors.clear()


def test_quick_functions_that_block_after_all_respect_the_limit_too(scene: Scene) -> None:
    for _ in range(20):
        scene.put(QUICK, scene.gate)
    scene.runs(CONTROL)
    wait_until(lambda: scene.thread_pool.backlog >= 20 - LIMIT - 1)
    assert scene.gate.most <= LIMIT + 1
    scene.gate.open()
    wait_until(lambda: len(scene.gate.threads) == 20)
    assert scene.gate.most <= LIMIT + 1
    wait_until(lambda: scene.thread_pool.running == 0)


def test_control_messages_and_tasks_do_not_wait_behind_user_functions(scene: Scene) -> None:
    for _ in range(5):
        scene.put(APART, scene.gate)
    wait_until(lambda: scene.thread_pool.backlog == 3)
    scene.runs(CONTROL)
    done = threading.Event()
    scene.thread_pool.spawn(done.set)
    assert done.wait(PATIENCE_SECONDS)


def test_task_spawned_by_a_handler_runs_although_the_handler_goes_on(scene: Scene) -> None:
    first, second = threading.Event(), threading.Event()

    def handler() -> None:
        scene.thread_pool.spawn(first.set)
        scene.thread_pool.spawn(second.set)
        with scene.thread_pool.blocked():
            assert first.wait(PATIENCE_SECONDS)

    scene.put(CONTROL, handler)
    assert second.wait(PATIENCE_SECONDS)


def test_what_a_task_spawns_does_not_wait_for_it_once_it_has_waited(scene: Scene) -> None:
    spawned = threading.Event()

    def task() -> None:
        with scene.thread_pool.blocked():
            pass
        scene.thread_pool.spawn(spawned.set)
        assert spawned.wait(PATIENCE_SECONDS)

    scene.put(CONTROL, lambda: scene.thread_pool.spawn(task))
    assert spawned.wait(PATIENCE_SECONDS)


def test_tasks_spawned_by_a_handler_all_run(scene: Scene) -> None:
    gate, ran = scene.gate, threading.Semaphore(0)

    def handler() -> None:
        for _ in range(3):
            scene.thread_pool.spawn(lambda: (gate(), ran.release()))

    scene.put(CONTROL, handler)
    wait_until(lambda: gate.inside == 3)
    scene.runs(CONTROL)
    gate.open()
    assert all(ran.acquire(timeout=PATIENCE_SECONDS) for _ in range(3))


# ---------------------------------------------------------------- waits of our own


def test_thread_that_waits_does_not_count(scene: Scene) -> None:
    gate = scene.gate

    def waits() -> None:
        with scene.thread_pool.blocked():
            gate()

    for _ in range(10):
        scene.put(APART, waits)
    wait_until(lambda: gate.inside == 10)
    assert scene.thread_pool.running == 0
    scene.runs()


def test_thread_that_waits_inside_a_wait_counts_once(scene: Scene) -> None:
    inner, outer = Gate(), Gate()

    def waits() -> None:
        with scene.thread_pool.blocked():
            with scene.thread_pool.blocked():
                inner()
            outer()

    scene.put(APART, waits)
    wait_until(lambda: inner.inside == 1)
    assert scene.thread_pool.running == 0
    inner.open()
    wait_until(lambda: outer.inside == 1)
    assert scene.thread_pool.running == 0
    for _ in range(5):
        scene.put(APART, scene.gate)
    wait_until(lambda: scene.gate.inside == LIMIT)
    assert scene.thread_pool.running == LIMIT
    outer.open()
    scene.gate.open()
    wait_until(lambda: len(scene.gate.threads) == 5 and scene.thread_pool.running == 0)


def test_wait_of_the_reader_passes_the_reading_right_on_at_once(scene: Scene) -> None:
    gate = scene.gate

    def waits() -> None:
        with scene.thread_pool.blocked():
            gate()

    for _ in range(10):
        scene.put(QUICK, waits)
    wait_until(lambda: gate.inside == 10)
    scene.runs(QUICK)
    gate.open()
    wait_until(lambda: gate.inside == 0 and scene.thread_pool.running == 0)


def test_waits_nested_to_any_depth_do_not_starve(scene: Scene) -> None:
    def call(depth: int, done: threading.Event) -> None:
        if depth:
            inner = threading.Event()
            scene.put(APART, lambda: call(depth - 1, inner))
            with scene.thread_pool.blocked():
                assert inner.wait(PATIENCE_SECONDS)
        done.set()

    ends = [threading.Event() for _ in range(3)]
    for end in ends:
        scene.put(APART, lambda end=end: call(40, end))  # type: ignore[misc]
    assert all(end.wait(PATIENCE_SECONDS) for end in ends)
    wait_until(lambda: scene.thread_pool.running == 0)


def test_waits_of_other_threads_are_none_of_its_business(scene: Scene) -> None:
    def wait_elsewhere() -> bool:
        with scene.thread_pool.blocked():
            return scene.thread_pool.owns_current_thread()

    assert Background(wait_elsewhere).result() is False
    assert scene.thread_pool.running == 0


# ---------------------------------------------------------------- threads that read for themselves


class Row:
    """A call that waits again and again for what messages bring, and notes on which threads they
    were read; `work` runs between two waits."""

    def __init__(self, scene: Scene, waits: int, work: Callable[[], object] = int) -> None:
        self._scene = scene
        self._waits = waits
        self._work = work
        self.waiting: list[Arrival] = []
        self.passed = 0
        self.thread = ""
        self.readers: list[str] = []
        self.ended = threading.Event()

    def __call__(self) -> None:
        self.thread = threading.current_thread().name
        for _ in range(self._waits):
            arrival = Arrival(may_keep=True)
            self.waiting.append(arrival)
            self._scene.thread_pool.wait_for(arrival)
            assert arrival.is_there
            self.passed += 1
            self._work()
        self.ended.set()

    def bring(self, number: int) -> None:
        """Has a message bring what it waits for the `number`th time."""
        wait_until(lambda: len(self.waiting) > number)
        arrival, pool = self.waiting[number], self._scene.thread_pool
        wait_until(lambda: arrival.interrupt is not None or arrival in pool._asleep)

        def handler() -> None:
            self.readers.append(threading.current_thread().name)
            self._scene.thread_pool.bring(self.waiting[number])

        self._scene.put(CONTROL, handler)
        wait_until(lambda: self.passed > number)


def _keeps_the_right(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the monitor comes between."""
    monkeypatch.setattr(scene.thread_pool, "_look", lambda: Sight.QUIET)


def _reads_for_itself(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Row:
    """Returns a call that waits for the second time, and reads meanwhile."""
    _keeps_the_right(scene, monkeypatch)
    row = Row(scene, 2)
    scene.put(APART, row)
    row.bring(0)
    wait_until(lambda: row.waiting[-1].interrupt is not None)
    return row


def test_thread_that_waits_again_and_again_reads_for_itself(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _keeps_the_right(scene, monkeypatch)
    row = Row(scene, 5)
    scene.put(APART, row)
    for number in range(5):
        row.bring(number)
    assert row.ended.wait(PATIENCE_SECONDS)
    assert row.readers[0] != row.thread
    assert row.readers[1:] == [row.thread] * 4
    scene.runs()  # it has given the right back
    wait_until(lambda: scene.thread_pool.running == 0)


def test_thread_that_reads_for_itself_need_not_be_woken(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _keeps_the_right(scene, monkeypatch)
    woken: list[None] = []
    monkeypatch.setattr(scene.poller, "wake", lambda: woken.append(None))
    row = Row(scene, 4)
    scene.put(APART, row)
    for number in range(4):
        row.bring(number)
    assert woken == []


def test_thread_that_reads_for_itself_runs_nothing_else(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = _reads_for_itself(scene, monkeypatch)
    for how in (QUICK, APART):
        scene.put(how, scene.gate)
    scene.put(CONTROL, lambda: scene.thread_pool.spawn(scene.gate))
    wait_until(lambda: scene.gate.inside == 3)
    assert row.thread not in scene.gate.threads
    row.bring(1)
    assert row.readers[1] == row.thread


def test_what_others_bring_ends_the_wait_of_a_thread_that_reads(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = _reads_for_itself(scene, monkeypatch)
    scene.thread_pool.bring(row.waiting[1])
    assert row.ended.wait(PATIENCE_SECONDS)
    scene.runs()


@pytest.mark.parametrize("how", [QUICK, APART])
def test_others_read_while_such_a_thread_computes_or_waits_for_something_else(
    scene: Scene, how: str
) -> None:
    def waits() -> None:
        with scene.thread_pool.blocked():
            scene.gate()

    for work in (scene.gate, waits):
        row = Row(scene, 2, work)
        scene.put(how, row)
        row.bring(0)
        wait_until(lambda: scene.gate.inside == 1)
        scene.runs()
        scene.gate.open()
        row.bring(1)
        assert row.ended.wait(PATIENCE_SECONDS)
        wait_until(lambda: scene.thread_pool.running == 0)
        scene.gate = Gate()


def test_two_such_threads_do_not_keep_each_other_waiting(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _keeps_the_right(scene, monkeypatch)
    rows = Row(scene, 3), Row(scene, 3)
    for row in rows:
        scene.put(APART, row)
    for number in range(3):
        for row in rows:
            row.bring(number)
    assert all(row.ended.wait(PATIENCE_SECONDS) for row in rows)
    scene.runs()


def test_failing_source_does_not_end_the_wait_of_a_thread_that_reads(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _keeps_the_right(scene, monkeypatch)

    class Broken(Inbox):
        def serve(self) -> None:
            raise ValueError("broken source")

    row = Row(scene, 2)
    scene.put(APART, row)
    row.bring(0)
    Broken(scene.thread_pool).put(QUICK, lambda: None)
    wait_until(lambda: scene.errors)
    row.bring(1)
    assert row.readers[1] == row.thread
    scene.errors.clear()


def test_wait_of_a_thread_of_others_is_ended_too(scene: Scene) -> None:
    arrival = Arrival(may_keep=True)
    waiting = Background(scene.thread_pool.wait_for, arrival)
    scene.put(CONTROL, lambda: scene.thread_pool.bring(arrival))
    waiting.result()
    scene.runs()


# ---------------------------------------------------------------- threads


def test_every_thread_enters_first(scene: Scene) -> None:
    for _ in range(4):
        scene.put(APART, scene.gate)
    scene.thread_pool.spawn(scene.gate)
    wait_until(lambda: scene.gate.inside == LIMIT + 1)
    assert set(scene.gate.threads) <= set(scene.entered)


def test_rest_is_seen_when_nothing_is_left_to_do(scene: Scene) -> None:
    scene.put(APART, scene.gate)
    wait_until(lambda: scene.gate.inside == 1)
    assert not scene.thread_pool.is_resting
    scene.gate.open()
    wait_until(lambda: scene.thread_pool.is_resting)


def test_close_ends_idle_and_reading_threads_and_names_those_that_still_run() -> None:
    scene = Scene()
    for _ in range(3):
        scene.put(APART, scene.gate)
    scene.put(CONTROL, scene.gate)
    wait_until(lambda: scene.gate.inside == LIMIT + 1)
    remaining = scene.thread_pool.close(0.05)
    assert sorted(remaining) == sorted(scene.gate.threads)
    scene.gate.open()
    assert scene.thread_pool.close(5) == []
    wait_until(lambda: scene.thread_pool.threads == 0)
    assert len(scene.gate.threads) == LIMIT + 1  # the backlog was dropped


def test_pool_can_be_closed_by_one_of_its_own_threads() -> None:
    scene = Scene()
    closed: list[list[str]] = []
    scene.put(APART, lambda: closed.append(scene.thread_pool.close(1)))
    wait_until(lambda: closed)
    wait_until(lambda: scene.thread_pool.threads == 0)


def test_threads_beyond_need_go_after_a_while(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstitch.runtime.threads._IDLE_SECONDS", 0.01)
    for _ in range(8):
        scene.thread_pool.spawn(scene.gate)
    wait_until(lambda: scene.gate.inside == 8)
    scene.gate.open()
    wait_until(lambda: scene.thread_pool.threads == 1)
    scene.runs()
