"""Who moves to which processor, on a host that is made up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch.collectives.shared_memory.spreading import Spreading
from lockstitch.memory.doorbell import ASLEEP

if TYPE_CHECKING:
    from collections.abc import Collection


class Host:
    """Some processors, and one thread for each rank."""

    def __init__(self, ranks: int, processors: int = 2, groups: int = 1) -> None:
        self.seconds = 0.0
        self.places = memoryview(bytearray(8 * ranks)).cast("Q")
        self.sleepers = memoryview(bytearray(8 * ranks)).cast("Q")
        self.idle = [0.0] * processors
        self.threads = [Thread(self) for _ in range(ranks)]
        self.spreadings = [
            Spreading(rank, self.places, self.sleepers, thread, lambda: self.seconds, rank % groups)
            for rank, thread in enumerate(self.threads)
        ]

    def wait(self, seconds: float = 0.1, idle: Collection[int] = ()) -> list[int]:
        """All wait many times, in which time passes; returns where they are at the end."""
        self.seconds += seconds
        for processor in idle:
            self.idle[processor] += seconds
        for _ in range(16):
            for spreading in self.spreadings:
                spreading.note_wait()
        return [thread.here for thread in self.threads]


class Thread:
    """What one rank may ask of the host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.here = 0
        self.may_move = True

    def allowed(self) -> Collection[int]:
        return range(len(self._host.idle))

    def current(self) -> int:
        return self.here

    def near(self, processor: int) -> Collection[int]:
        return (processor,)

    def idle_seconds(self) -> dict[int, float]:
        return dict(enumerate(self._host.idle))

    def move_to(self, processor: int) -> None:
        if not self.may_move:
            raise PermissionError
        self.here = processor


def test_ranks_of_one_processor_spread_over_idle_ones() -> None:
    host = Host(4)
    assert host.wait(idle=[1]) == [0, 0, 0, 0]
    assert host.wait(idle=[1]) == [0, 0, 0, 1]  # and now no processor is without ranks
    assert host.wait() == [0, 0, 1, 1]
    assert host.wait() == [0, 0, 1, 1]


def test_a_few_waits_between_works_of_its_own_are_enough() -> None:
    host = Host(4, processors=2)
    host.wait(idle=[1])
    host.threads[3].here = 1
    for _ in range(2):
        host.seconds += 20e-3
        for spreading in host.spreadings:
            spreading.note_wait()
    assert [thread.here for thread in host.threads] == [0, 0, 1, 1]


def test_two_ranks_part() -> None:
    host = Host(2, processors=8)
    host.wait(idle=range(1, 8))
    zero, one = host.wait(idle=range(1, 8))
    assert zero == 0
    assert one != 0


def test_nobody_moves_to_where_something_else_runs() -> None:
    host = Host(4)
    for _ in range(5):
        assert host.wait() == [0, 0, 0, 0]
    # It is over: this is seen, though not at once, since one looks more and more rarely.
    for _ in range(40):
        host.wait(idle=[1])
    assert host.wait() == [0, 0, 1, 1]


def test_ranks_that_sleep_or_have_left_do_not_count() -> None:
    host = Host(3)
    host.sleepers[0] = ASLEEP
    host.wait(idle=[1])
    host.spreadings[1].leave()
    host.spreadings.pop(1)
    for _ in range(3):
        assert host.wait(idle=[1]) == [0, 0, 0]


def test_one_more_is_no_reason_to_move() -> None:
    host = Host(3)
    host.threads[2].here = 1
    for _ in range(3):
        assert host.wait(idle=[1]) == [0, 0, 1]


def test_who_may_not_move_stays() -> None:
    host = Host(2)
    host.threads[1].may_move = False
    for _ in range(4):
        assert host.wait(idle=[1]) == [0, 0]


def test_yields_are_in_vain_where_ranks_of_several_groups_share_processors() -> None:
    for ranks, groups, is_in_vain in ((3, 1, False), (2, 2, False), (3, 2, True)):
        host = Host(ranks, groups=groups)
        for _ in range(2):
            host.wait()
        assert [each.yields_in_vain for each in host.spreadings] == [is_in_vain] * ranks
