"""Ctrl-C at every point of a reduction over shared memory: when it is waited for once more it is
right, or the session has ended on all ranks. Nothing is added twice, nobody waits for ever."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.collectives import AVERAGE, Kind
from lockstitch.collectives.requests import Request
from lockstitch.errors import CollectiveError, RankLostError
from tests.cluster.collectives.ranks import Ranks, in_threads
from tests.unit.wire.interrupts import Interrupter, Strike

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from lockstitch.collectives import Session
    from lockstitch.collectives.handles import Handle

PACKAGE = "lockstitch.collectives"
MODULES = tuple(
    f"{PACKAGE}.{name}"
    for name in (
        "arithmetic",
        "copying",
        "handles",
        "mappings",
        "negotiation",
        "outcomes",
        "pending_operations",
        "request_cache",
        "session",
        "shared_memory.backend",
        "shared_memory.driving",
        "shared_memory.open_sets",
        "shared_memory.wakeups",
        "shared_memory.log_negotiation",
        "shared_memory.performing",
        "shared_memory.in_chunks",
        "shared_memory.in_place",
        "shared_memory.lanes",
        "shared_memory.log",
        "shared_memory.operations",
        "shared_memory.publishing",
        "shared_memory.quick",
        "shared_memory.shortcut",
        "shared_memory.token",
        "shared_memory.whole",
    )
)


class Attempt(Interrupter):
    """Strikes one rank only; knows whether an operation's step was struck."""

    is_in_step = False

    def __init__(self, number: int, modules: tuple[str, ...] = MODULES) -> None:
        super().__init__(number, modules)

    @property
    def is_struck(self) -> bool:
        return self.remaining <= 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        try:
            super().__call__(frame, event, argument)
        except Strike:
            above: FrameType | None = frame.f_back
            while above is not None:
                self.is_in_step |= above.f_code.co_name == "step"
                above = above.f_back
            raise

    def call(self, function: Callable[[], object]) -> None:
        """Calls it under threat; a strike ends it."""
        if self.is_struck:
            function()
            return
        sys.setprofile(self)
        try:
            function()
        except Strike:
            pass
        finally:
            sys.setprofile(None)


@functools.cache
def values_of(rank: int, count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(rank))


def made(session: Session, count: int, is_resident: bool) -> torch.Tensor:
    values = values_of(session.rank, count)
    memory = session.resident((count,), torch.float32) if is_resident else torch.empty(count)
    return memory.copy_(values)


def submitted(session: Session, tensors: tuple[torch.Tensor, ...]) -> Handle[Any]:
    # "Awaited": so that no background thread does what is to be interrupted.
    request = Request(
        Kind.ALLREDUCE, "sum", tensors, tensors, AVERAGE, is_group=len(tensors) > 1, is_awaited=True
    )
    return session.submit(request)


def outcome(session: Session, handle: Handle[Any]) -> list[torch.Tensor] | CollectiveError:
    try:
        value = session.wait(handle)
    except CollectiveError as error:
        return error
    return value if isinstance(value, list) else [value]


def has_ended(session: Session) -> bool:
    try:
        session.resident((), torch.float32)
    except CollectiveError:
        return True
    return False


# By how many ranks, how many numbers, and which ranks' tensors live in the segment.
CASES = {
    "whole, of two": (2, (40_000,), ()),
    "whole, of three": (3, (100,), ()),
    "several tensors": (2, (100, 20_000), ()),
    "in place, of two": (2, (300_000,), (0, 1)),
    "in place, of three": (3, (420_000,), (0, 1, 2)),
    "in place, where the interrupted rank copies": (2, (300_000,), (1,)),
    "in chunks, of two": (2, (270_000,), ()),
    "in chunks, of three": (3, (270_000,), ()),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # then copies are made by Python code of ours, too
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", CASES)
def test_interrupted_rank_goes_on_where_it_was_or_all_end(case: str) -> None:
    size, counts, residents = CASES[case]
    number = resumed = 0
    attempt = Attempt(0)
    arena_bytes = 1 << 26 if residents else 1 << 22  # little of it means short chunks
    ranks = Ranks(size, "shared_memory", arena_bytes=arena_bytes).__enter__()
    try:
        while attempt.is_struck:
            number += 1
            attempt = Attempt(number)
            tensors = [
                tuple(made(each, count, each.rank in residents) for count in counts)
                for each in ranks.sessions
            ]
            expected = [sum(parts[1:], parts[0]) / size for parts in zip(*tensors, strict=True)]
            handles = [submitted(each, tensors[each.rank]) for each in ranks.sessions]
            results = reduced(ranks, handles, attempt)
            right = [each for each in results if not isinstance(each, CollectiveError)]
            for result in right:
                assert all(map(torch.equal, result, expected)), attempt.where
            if any(map(has_ended, ranks.sessions)):
                assert not attempt.is_in_step, attempt.where
                ranks.__exit__()
                ranks = Ranks(size, "shared_memory", arena_bytes=arena_bytes).__enter__()
            else:
                assert len(right) == size
                resumed += attempt.is_struck
    finally:
        ranks.__exit__()
    assert resumed > 3  # an operation's step is a part of what was struck


def reduced(
    ranks: Ranks, handles: list[Handle[Any]], attempt: Attempt
) -> list[list[torch.Tensor] | CollectiveError]:
    """All look in turns until all are done; rank 0 under threat."""
    for _ in range(100):
        attempt.call(lambda: ranks[0].poll(handles[0]))
        for each in ranks.sessions[1:]:
            with contextlib.suppress(RankLostError):
                each.poll(handles[each.rank])
        if all(handle.is_done for handle in handles):
            return [outcome(each, handles[each.rank]) for each in ranks.sessions]
    raise AssertionError(f"ranks hang: {attempt.where}")


@pytest.mark.parametrize("count", [30_000, 100])
def test_wait_that_was_interrupted_keeps_nobody_else_from_waiting(count: int) -> None:
    number, attempt = 0, Attempt(0)
    ranks = Ranks(2, "shared_memory").__enter__()
    try:
        while attempt.is_struck:
            number += 1
            attempt = Attempt(number)
            tensors = [(made(each, count, is_resident=False),) for each in ranks.sessions]
            expected = (tensors[0][0] + tensors[1][0]) / 2
            handles = [submitted(each, tensors[each.rank]) for each in ranks.sessions]
            attempt.call(lambda: ranks[0].wait(handles[0]))  # noqa: B023 - called at once
            results = in_threads(2, lambda rank: outcome(ranks[rank], handles[rank]))  # noqa: B023
            for result in results:
                assert isinstance(result, CollectiveError) or torch.equal(result[0], expected)
            if any(map(has_ended, ranks.sessions)):
                ranks.__exit__()
                ranks = Ranks(2, "shared_memory").__enter__()
            else:
                assert not any(isinstance(each, CollectiveError) for each in results)
    finally:
        ranks.__exit__()
    assert number > 20


@pytest.mark.parametrize("size", [2, 3])
def test_small_reduction_that_is_interrupted_anywhere_is_done_once_or_all_end(size: int) -> None:
    """From where it is submitted to its end; it passes the table."""
    number, attempt = 0, Attempt(0)
    ranks = Ranks(size, "shared_memory").__enter__()
    in_threads(size, lambda rank: ranks[rank].wait(submitted(ranks[rank], (torch.ones(100),))))
    try:
        while attempt.is_struck:
            number += 1
            attempt = Attempt(number)
            tensors = [(made(each, 100, is_resident=False),) for each in ranks.sessions]
            expected = sum((part for (part,) in tensors[1:]), tensors[0][0].clone()) / size
            late = [submitted(each, tensors[each.rank]) for each in ranks.sessions[1:]]
            attempt.call(lambda: ranks[0].wait(submitted(ranks[0], tensors[0])))  # noqa: B023
            if any(map(has_ended, ranks.sessions)):
                results = [outcome(each, late[each.rank - 1]) for each in ranks.sessions[1:]]
                ranks.__exit__()
                ranks = Ranks(size, "shared_memory").__enter__()
                again = [(torch.ones(100),)] * size
                in_threads(size, lambda rank: ranks[rank].wait(submitted(ranks[rank], again[rank])))  # noqa: B023
            else:
                is_told = ranks[1].poll(late[0])
                mine = ranks[0].in_flight((0, "sum"))
                if mine is None and not is_told:  # the others know nothing of it
                    mine = submitted(ranks[0], tensors[0])
                if mine is not None:
                    ranks[0].wait(mine)
                assert torch.equal(tensors[0][0], expected), attempt.where
                results = [outcome(each, late[each.rank - 1]) for each in ranks.sessions[1:]]
                assert not any(isinstance(each, CollectiveError) for each in results)
            for result in results:
                assert isinstance(result, CollectiveError) or torch.equal(result[0], expected)
    finally:
        ranks.__exit__()
    assert number > 20
