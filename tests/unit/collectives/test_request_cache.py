"""The cache of requests: quickly compared, made once, numbered, forgotten where there are many."""

from __future__ import annotations

import pytest
import torch

from lockstitch.collectives import request_cache
from lockstitch.collectives.process_sets import ProcessSet
from lockstitch.collectives.request_cache import RequestCache
from lockstitch.collectives.requests import AVERAGE, SUM, Kind, Request

EVERYBODY = ProcessSet(0, (0, 1))


def request(name: str = "a", tensor: torch.Tensor | None = None, **more: object) -> Request:
    tensors = (torch.ones(2) if tensor is None else tensor,)
    return Request(Kind.ALLREDUCE, name, tensors, **{"reduction": SUM, **more})  # type: ignore[arg-type]


def cached(known: RequestCache, asked: Request) -> request_cache.CachedRequest:
    return known.of(asked, EVERYBODY, lambda _key: False)


def test_same_again_is_the_same_entry() -> None:
    known = RequestCache(0)
    assert cached(known, request()) is cached(known, request(tensor=torch.zeros(2)))
    assert len(known) == 1


@pytest.mark.parametrize(
    "other",
    [
        request(tensor=torch.ones(3)),
        request(tensor=torch.ones(2).int()),
        request(reduction=AVERAGE),
        Request(Kind.ALLREDUCE, "a", (torch.ones(2), torch.ones(2)), reduction=SUM),
    ],
)
def test_something_else_under_the_name_is_another_entry_with_its_number(other: Request) -> None:
    known = RequestCache(0)
    first = cached(known, request())
    first.note = "known to others"
    second = cached(known, other)
    assert second is not first
    assert second.number == first.number
    assert second.note is None


def test_names_have_numbers_of_their_own() -> None:
    known = RequestCache(0)
    assert [cached(known, request(name)).number for name in "abc"] == [0, 1, 2]


def test_sparse_tensor_is_not_taken_for_a_dense_one() -> None:
    known = RequestCache(0)
    cached(known, request())
    with pytest.raises(ValueError, match="sparse"):
        cached(known, request(tensor=torch.ones(2).to_sparse()))


def test_idle_names_are_forgotten_and_their_numbers_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_cache, "MOST_CACHED", 3)
    known = RequestCache(0)
    busy = cached(known, request("busy"))
    for name in "ab":
        cached(known, request(name))
    fresh = known.of(request("c"), EVERYBODY, lambda key: key == (0, "busy"))
    assert len(known) == 2
    assert fresh.number in (1, 2)
    assert cached(known, request("busy")) is busy


def queued(known: RequestCache, in_flight: set[tuple[int, str]], size: int = 2) -> str:
    """Submits one more to a queue; returns the name under which it is in flight."""
    asked = Request(Kind.ALLREDUCE, tensors=(torch.ones(size),), reduction=SUM, queue="q")
    found = known.of(asked, EVERYBODY, in_flight.__contains__)
    assert found.description.name == "q"
    assert asked.name == found.name
    in_flight.add((0, asked.name))
    return asked.name


def test_requests_of_one_queue_that_are_alike_share_what_is_not_in_flight() -> None:
    known, in_flight = RequestCache(0), set[tuple[int, str]]()
    first, second = queued(known, in_flight), queued(known, in_flight)
    other = queued(known, in_flight, size=3)
    assert len({first, second, other}) == 3
    in_flight.remove((0, first))
    assert queued(known, in_flight) == first
    assert len(known) == 3


def test_queue_is_forgotten_with_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_cache, "MOST_CACHED", 2)
    known, in_flight = RequestCache(0), set[tuple[int, str]]()
    kept = queued(known, in_flight)
    for size in range(3, 9):
        in_flight.discard((0, queued(known, in_flight, size)))
    assert (0, kept) in in_flight
    assert queued(known, in_flight) != kept
    assert len(known) <= 3


def test_what_comes_one_after_the_other_in_a_queue_is_told_once() -> None:
    known = RequestCache(0)
    assert len({queued(known, set()) for _ in range(3)}) == 1
    assert queued(known, set(), size=3) != queued(known, set())


def test_many_at_a_time_in_a_queue_are_found_free_without_a_search() -> None:
    known, in_flight, asked = RequestCache(0), set[tuple[int, str]](), []

    def is_in_flight(key: tuple[int, str]) -> bool:
        asked.append(key)
        return key in in_flight

    for _ in range(3):
        in_flight.clear()
        asked.clear()
        for _ in range(64):
            each = Request(Kind.ALLREDUCE, tensors=(torch.ones(2),), reduction=SUM, queue="q")
            known.of(each, EVERYBODY, is_in_flight)
            in_flight.add((0, each.name))
        assert len(in_flight) == len(known) == 64
    assert len(asked) <= 2 * 64
