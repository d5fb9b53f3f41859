"""The protocol of falling asleep: in every order of steps that two processors may take, a waiter
that sleeps is woken.

The doorbell itself runs here, in threads that take one step at a time: whatever reads or writes the
words, passes the fence, or sleeps. Which thread goes on is chosen from outside, and so is when the
others see what a processor has stored: until a fence, or such a moment, only itself sees it.
"""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstitch.memory.doorbell import ASLEEP, AWAKE, Doorbell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DATA, WAITER, OTHER = 0, 1, 2


class LostWakeupError(Exception):
    """Nobody can go on, and somebody sleeps."""


class Machine:
    """Shared words, as several processors see them. `choose(count)` says which of so many possible
    steps comes next."""

    def __init__(self, choose: Callable[[int], int], *, has_fences: bool = True) -> None:
        self._choose = choose
        self._has_fences = has_fences
        self._words = [0] * 3
        self._stored: dict[int, deque[tuple[int, int]]] = {}
        self._may_go_on: dict[int, Callable[[], bool]] = {}
        self._turns: dict[int, threading.Semaphore] = {}
        self._has_paused = threading.Semaphore(0)
        self._errors: list[BaseException] = []
        self._is_given_up = False
        self.wakeups = 0

    # ------------------------------------------------------------ what programs see

    def __getitem__(self, index: int) -> int:
        me = self._pause()
        for place, value in reversed(self._stored[me]):
            if place == index:
                return value
        return self._words[index]

    def __setitem__(self, index: int, value: int) -> None:
        self._stored[self._pause()].append((index, value))

    def __enter__(self) -> None:
        """The fence, as a lock."""
        me = self._pause()
        while self._has_fences and self._stored[me]:
            self._show(me)

    def __exit__(self, *_: object) -> None:
        pass

    def sleep(self) -> str:
        self._pause(lambda: self.wakeups > 0)
        self.wakeups -= 1
        return "woken"

    def wake(self) -> None:
        self._pause()
        self.wakeups += 1

    def doorbell(self) -> Doorbell:
        doorbell = Doorbell(self)  # type: ignore[arg-type]
        doorbell._fence = self  # type: ignore[assignment]
        return doorbell

    # ------------------------------------------------------------ how they are run

    def run(self, *programs: Callable[[], object]) -> None:
        """Runs them until all have ended. Raises `LostWakeupError` where that never comes."""
        threads = [threading.Thread(target=self._run_one, args=(each,)) for each in programs]
        for thread in threads:
            thread.start()
            self._has_paused.acquire()
        try:
            while self._may_go_on:
                self._step()
        finally:
            self._is_given_up = True
            for turn in self._turns.values():
                turn.release()
            for thread in threads:
                thread.join()
        if self._errors:
            raise self._errors[0]

    def _step(self) -> None:
        ready = [me for me, may_go_on in self._may_go_on.items() if may_go_on()]
        unseen = [me for me, stored in self._stored.items() if stored]
        if not ready and not unseen:
            raise LostWakeupError
        number = self._choose(len(ready) + len(unseen))
        if number < len(ready):
            self._turns[ready[number]].release()
            self._has_paused.acquire()
        else:
            self._show(unseen[number - len(ready)])

    def _show(self, me: int) -> None:
        index, value = self._stored[me].popleft()
        self._words[index] = value

    def _run_one(self, program: Callable[[], object]) -> None:
        me = threading.get_ident()
        self._stored[me] = deque()
        self._turns[me] = threading.Semaphore(0)
        try:
            program()
        except _GivenUpError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._errors.append(error)
        self._may_go_on.pop(me, None)
        self._has_paused.release()

    def _pause(self, may_go_on: Callable[[], bool] = lambda: True) -> int:
        """Before a step of this thread."""
        me = threading.get_ident()
        if not self._is_given_up:
            self._may_go_on[me] = may_go_on
            self._has_paused.release()
            self._turns[me].acquire()
        if self._is_given_up:
            raise _GivenUpError
        return me


class _GivenUpError(BaseException):
    pass


def all_orders(run: Callable[[Callable[[int], int]], None]) -> Iterator[list[int]]:
    """Runs it in all orders of steps, one after the other, and says which one it was."""
    chosen: list[int] = []
    while True:
        counts: list[int] = []

        def choose(count: int, counts: list[int] = counts) -> int:
            if len(counts) == len(chosen):
                chosen.append(0)
            counts.append(count)
            return chosen[len(counts) - 1]

        run(choose)
        yield list(chosen)
        while chosen and chosen[-1] + 1 == counts[len(chosen) - 1]:
            chosen.pop()
        if not chosen:
            return
        chosen[-1] += 1


def one_message(choose: Callable[[int], int], *, has_fences: bool = True) -> None:
    machine = Machine(choose, has_fences=has_fences)
    waiters, writers = machine.doorbell(), machine.doorbell()

    def wait() -> None:
        waiters.sleep_unless(WAITER, lambda: machine[DATA] == 1, machine.sleep)

    def write() -> None:
        machine[DATA] = 1
        if writers.reason(WAITER):
            machine.wake()

    machine.run(wait, write)


def test_in_no_order_of_steps_is_a_wakeup_lost() -> None:
    orders = list(all_orders(one_message))
    assert len(orders) > 200
    assert len(set(map(tuple, orders))) == len(orders)


def test_without_fences_one_would_be_lost() -> None:
    with pytest.raises(LostWakeupError):
        list(all_orders(lambda choose: one_message(choose, has_fences=False)))


def test_a_wakeup_would_be_lost_without_the_last_look() -> None:
    def run(choose: Callable[[int], int]) -> None:
        machine = Machine(choose)
        waiters, writers = machine.doorbell(), machine.doorbell()

        def wait() -> None:
            if machine[DATA] != 1:
                waiters.sleep_unless(WAITER, lambda: False, machine.sleep)

        def write() -> None:
            machine[DATA] = 1
            if writers.sleepers([WAITER]):
                machine.wake()

        machine.run(wait, write)

    with pytest.raises(LostWakeupError):
        list(all_orders(run))


def _has_moved(machine: Machine, seen: int) -> bool:
    return machine[DATA] != seen


@settings(deadline=None)
@given(st.data(), st.integers(1, 4), st.booleans())
def test_a_reader_that_announces_its_sleep_misses_none_of_several_messages(
    data: st.DataObject, messages: int, announces: bool
) -> None:
    machine = Machine(lambda count: data.draw(st.integers(0, count - 1)))
    waiters, writers = machine.doorbell(), machine.doorbell()

    def wait() -> None:
        seen = 0
        while seen < messages:
            if announces:  # as a reader does that has a stream to sleep on, besides
                waiters.announce_sleep(WAITER)
                if machine[DATA] == seen:
                    machine.sleep()
                waiters._words[WAITER] = AWAKE
            else:
                has_come = partial(_has_moved, machine, seen)
                waiters.sleep_unless(WAITER, has_come, machine.sleep)
            seen = machine[DATA]

    def write() -> None:
        for number in range(messages):
            machine[DATA] = number + 1
            if writers.sleepers([OTHER, WAITER]):
                machine.wake()

    machine.run(wait, write)


def words(count: int = 3) -> memoryview:
    return memoryview(bytearray(8 * count)).cast("Q")


def test_who_sleeps_may_say_what_for() -> None:
    shared = words()
    doorbell, reasons = Doorbell(shared), []

    def sleep() -> str:
        reasons.append((doorbell.reason(WAITER), doorbell.sleepers(range(3))))
        return "woken"

    assert doorbell.sleep_unless(WAITER, lambda: False, sleep) == "woken"
    assert doorbell.sleep_unless(WAITER, lambda: False, sleep, 7) == "woken"
    assert reasons == [(ASLEEP, [WAITER]), (7, [WAITER])]
    assert shared.tolist() == [AWAKE] * 3


@pytest.mark.parametrize("place", ["look", "sleep"])
def test_whatever_ends_a_sleep_leaves_the_waiter_awake(place: str) -> None:
    doorbell = Doorbell(words())

    def fail(*_: Any) -> Any:
        assert doorbell.is_asleep(WAITER)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        doorbell.sleep_unless(WAITER, fail if place == "look" else lambda: False, fail)
    assert not doorbell.is_asleep(WAITER)


def test_nobody_sleeps_who_finds_something_at_the_last_look() -> None:
    doorbell = Doorbell(words())
    assert doorbell.sleep_unless(WAITER, lambda: True, pytest.fail) is None
    assert not doorbell.is_asleep(WAITER)


def test_a_sleep_that_was_announced_lasts() -> None:
    doorbell = Doorbell(words())
    doorbell.announce_sleep(WAITER)
    assert doorbell.is_asleep(WAITER)
    assert not doorbell.is_asleep(OTHER)
