"""A generator on its worker: one step for each request, in their order, and an end."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from lockstitch.rpc.worker_groups.sources import CLOSE, Production, Source, Steps, open_source
from lockstitch.runtime.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

MADE: list[int] = []


def count(n: int) -> Iterator[int]:
    try:
        for number in range(n):
            MADE.append(number)
            yield number
    finally:
        MADE.append(-1)


def result_of(answer: Outcome) -> Any:
    done = threading.Event()
    answer.add_done_callback(lambda _: done.set())
    assert done.wait(30)
    return answer.value()


def asked(source: Source, place: int) -> Outcome:
    answer = Outcome()
    source.ask(place, answer)
    return answer


def test_requests_are_answered_in_the_order_of_places(cluster) -> None:
    source = open_source(count, (2,), {})
    third, second, first = (asked(source, place) for place in (2, 1, 0))
    assert [result_of(each) for each in (first, second, third)] == [(0,), (1,), (None, None)]
    assert result_of(asked(source, 3)) == (None, None)


def test_nothing_is_made_before_it_is_asked_for_nor_after_the_end(cluster) -> None:
    MADE.clear()
    source = open_source(count, (9,), {})
    assert result_of(asked(source, 0)) == (0,)
    assert MADE == [0]
    late, closing = asked(source, 5), asked(source, CLOSE)
    assert result_of(closing) is None
    assert result_of(late) == (None, None)
    assert MADE == [0, -1]


def test_request_that_the_end_has_overtaken_is_answered(cluster) -> None:
    source = open_source(count, (9,), {})
    assert result_of(asked(source, CLOSE)) is None
    for place in (0, 1, CLOSE):
        assert result_of(asked(source, place)) == (None, None)


def test_error_of_a_generator_that_nobody_closes_is_reported() -> None:
    def fails() -> Iterator[int]:
        try:
            yield 1
        finally:
            raise OSError("dirty")

    reported: list[BaseException] = []
    production = Production(Steps(fails()), reported.append)
    first = Outcome()
    production.requests.put((0, first))
    production.requests.put(None)
    production.run()
    assert first.value() == (1,)
    assert [str(error) for error in reported] == ["dirty"]


def test_what_is_no_iterator_is_refused_and_left_clean(cluster) -> None:
    async def coroutine() -> None: ...

    for function, text in ((coroutine, "a coroutine"), (list, "a list"), (contextlib.suppress, "")):
        with pytest.raises(TypeError, match=f"on worker 'worker0' returned {text}"):
            open_source(function, (), {})
