"""Who gives way where both ends of a connection wait on one processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstitch.transport.placement import _TIMES_IN_A_ROW, Placement
from lockstitch.transport.spin import Spinner
from tests.unit.transport.rings import RingPair
from tests.unit.transport.streams import socket_pair

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


class Processors:
    """Three, of which this thread uses one; the second is idle when a test says so, and the third
    always is."""

    def __init__(self) -> None:
        self.here = 0
        self.may_use: Collection[int] = (0, 1)
        self.at_one_cache: Collection[int] = (0, 1)
        self.idle = self.seconds = 0.0
        self.is_forbidden = False

    def allowed(self) -> Collection[int]:
        return self.may_use

    def current(self) -> int:
        if self.is_forbidden:
            raise PermissionError
        return self.here

    def near(self, processor: int) -> Collection[int]:
        return self.at_one_cache if processor in self.at_one_cache else (processor,)

    def idle_seconds(self) -> dict[int, float]:
        return {0: 0.0, 1: self.idle, 2: self.seconds}

    def move_to(self, processor: int) -> None:
        self.here = processor


class Ends:
    """The end that calls, `near`, and the one that is called."""

    def __init__(self, pair: RingPair) -> None:
        self.pair = pair
        self.near, self.far = Processors(), Processors()
        self._calls = Placement(moves=True, processors=self.near)
        self._serves = Placement(moves=False, processors=self.far)
        self._seconds = 0.0

    def meet(self) -> None:
        """Both wait on one processor, as often as it takes to be taken for that."""
        for _ in range(_TIMES_IN_A_ROW):
            self.wait()

    def wait(self, idle: float = 0.0) -> tuple[bool, bool]:
        """Both wait, a tenth of a second later: whether each is not to spin."""
        self._seconds += 0.1
        for each in (self.near, self.far):
            each.idle += 0.1 * idle
            each.seconds += 0.1
        served = self._serves.is_bound_beside(self.pair.far, self._seconds)
        return self._calls.is_bound_beside(self.pair.near, self._seconds), served


@pytest.fixture
def ends() -> Iterator[Ends]:
    pair = RingPair()
    yield Ends(pair)
    pair.close()


def test_the_end_that_calls_moves_to_an_idle_processor(ends: Ends) -> None:
    ends.meet()  # the one that is called has been the first to say where it is
    assert ends.wait(idle=1) == (False, False)
    assert (ends.near.here, ends.far.here) == (1, 0)


def test_to_meet_now_and_then_is_no_reason_to_part(ends: Ends) -> None:
    for number in range(12):
        ends.far.here = number % _TIMES_IN_A_ROW // (_TIMES_IN_A_ROW - 1)
        assert ends.wait(idle=1) == (False, False)
    assert ends.near.here == 0


def test_both_stay_where_the_other_processor_is_busy(ends: Ends) -> None:
    ends.meet()
    for _ in range(5):
        ends.wait(idle=0.3)
    assert (ends.near.here, ends.far.here) == (0, 0)


def test_nobody_leaves_its_cache_while_there_are_others_at_it(ends: Ends) -> None:
    ends.near.may_use = (0, 1, 2)
    ends.meet()
    for _ in range(5):
        ends.wait()
    assert ends.near.here == 0
    ends.near.at_one_cache = (0,)
    while ends.near.here == 0:
        ends.wait()
    assert ends.near.here == 2


def test_who_is_bound_to_a_processor_stays_there_and_does_not_spin(ends: Ends) -> None:
    ends.near.may_use = (0,)
    ends.meet()
    for _ in range(5):
        assert ends.wait(idle=1) == (True, False)
    assert ends.near.here == 0


def test_where_the_system_does_not_tell_nothing_is_done(ends: Ends) -> None:
    ends.far.is_forbidden = True
    for _ in range(3):
        assert ends.wait(idle=1) == (False, False)


def test_without_rings_nothing_is_known_of_the_other_end() -> None:
    with socket_pair() as (near, far):
        for end in (near, far):
            assert not Placement(moves=True, processors=Processors()).is_bound_beside(end, 0.0)


def test_nobody_spins_who_is_bound_to_the_processor_of_the_other_end(ends: Ends) -> None:
    ends.far.may_use = (0,)
    for _ in range(_TIMES_IN_A_ROW):
        ends.wait()
    ends.pair.far.is_own_process = False
    looks: list[None] = []
    spinner = Spinner(yield_cpu=lambda: looks.append(None), placement=ends._serves)
    view, counts = memoryview(bytearray(10)), []
    assert not spinner.receive(ends.pair.far, view, counts)
    assert not looks
    ends.far.here = 1
    assert not spinner.receive(ends.pair.far, view, counts)
    assert looks
