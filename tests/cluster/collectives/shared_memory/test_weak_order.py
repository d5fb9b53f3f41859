"""Reductions where loads may be made before those in front of them, as on ARM: what comes after a
look at a word of another rank sees what was there before, unless a fence lies in between."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.collectives import SUM, Session
from lockstitch.collectives.requests import Kind, Request
from lockstitch.collectives.shared_memory import lanes, log, quick, shortcut
from lockstitch.collectives.shared_memory.lanes import Lane
from lockstitch.fences import Fence
from tests.cluster.collectives.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 3
COUNTS = (4, 4, 4, 4, 4, 40_000, 4, 4)


class Order(threading.local):
    """What one thread has done last."""

    may_be_stale = False


class Signs:
    """Words that say that something is there: to be looked at first."""

    def __init__(self, words: memoryview, order: Order) -> None:
        self._words = words
        self._order = order

    def __getitem__(self, at: int) -> int:
        self._order.may_be_stale = True
        return self._words[at]

    def __setitem__(self, at: int, value: int) -> None:
        self._words[at] = value


class Content:
    """What they speak of. Before that an older word was there, much like it."""

    def __init__(self, words: memoryview, order: Order) -> None:
        self._words = words
        self._before = memoryview(bytes(words.nbytes)).cast("Q")
        self._order = order

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, at: Any) -> Any:
        if not self._order.may_be_stale:
            return self._words[at]
        return self._before[at] if isinstance(at, slice) else self._words[at - 1]


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Order:
    for module in (lanes, log, quick, shortcut):
        monkeypatch.setattr(module, "STORES_ARE_ORDERED", False)
    order, pass_fence, result_of = Order(), Fence.__call__, Lane.result

    def passes(fence: Fence) -> None:
        pass_fence(fence)
        order.may_be_stale = False

    def result(lane: Lane, *args: Any) -> torch.Tensor:
        found = result_of(lane, *args)
        return torch.zeros_like(found) if order.may_be_stale else found

    monkeypatch.setattr(Fence, "__call__", passes)
    monkeypatch.setattr(Lane, "result", result)
    return order


def weaken(session: Any, order: Order) -> None:
    """Its looks into the memory of others are in any order from now on."""
    for negotiation in session._backend._sets._all:
        small = negotiation._shortcut
        negotiation._tails = small.tails = Signs(small.tails, order)
        small.results = Signs(small.results, order)
        for other in small.others:
            other.reader._tails = small.tails
            other.reader.ring = other.ring = Content(other.ring, order)


def in_turns(session: Session) -> list[float]:
    """A small operation again and again, and a larger one."""
    found = []
    for number, count in enumerate(COUNTS):
        mine = (torch.full((count,), session.rank + float(number)),)
        request = Request(Kind.ALLREDUCE, "", mine, mine, SUM, is_awaited=True)
        found.append(session.wait(session.submit(request)).mean().item())
    return found


def many(session: Session) -> list[float]:
    """Several at once, more than there are places."""
    handles = [
        session.allreduce(torch.full((4,), session.rank + each), reduction=SUM)
        for each in range(100)
    ]
    return [session.wait(handle)[0].item() for handle in handles]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (in_turns, [3.0 + 3 * each for each in range(len(COUNTS))]),
        (many, [3.0 + 3 * each for each in range(100)]),
    ],
)
def test_ranks_see_what_was_there_when_it_was_said(
    order: Order, program: Callable[[Session], list[float]], expected: list[float]
) -> None:
    with Ranks(SIZE, "shared_memory", stall_failure_seconds=5.0) as ranks:
        for session in ranks.sessions:
            weaken(session, order)
        for _ in range(5):
            assert ranks.run(program) == [expected] * SIZE
