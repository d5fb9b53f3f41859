"""What a callback raises is shown with the program's own lines, and with no others."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch.errors import CallbackError, RpcTimeoutError
from lockstitch.runtime.pending import Future

if TYPE_CHECKING:
    from collections.abc import Callable


def fail(_done: object) -> None:
    raise ValueError("on purpose")


def caught(future: torch.futures.Future[object]) -> Exception:
    with pytest.raises(RuntimeError) as raised:
        future.wait()
    return raised.value


def both_ways(callback: Callable[[object], object]) -> list[torch.futures.Future[object]]:
    """Given before the result is there, and after."""
    future: Future[int] = Future()
    before = future.then(callback)
    future.complete(1, None)
    return [before, future.then(callback)]


def test_what_then_raises_is_the_cause_of_an_error_with_the_words_of_torch() -> None:
    for chained in both_ways(fail):
        error = caught(chained)
        assert type(error) is CallbackError
        assert "error when running the callback: ValueError: on purpose" in str(error)
        assert type(error.__cause__) is ValueError
        assert error.__cause__.__context__ is None
        (note,) = error.__cause__.__notes__
        assert note.startswith("raised in fail, a callback of a future:")
        assert f'File "{__file__}"' in note
        assert note.count("File ") == 1


def test_errors_of_the_library_and_of_runtime_stay_what_they_are_through_a_chain() -> None:
    future: Future[int] = Future()
    chained = future.then(lambda done: done.wait() + 1).then(lambda done: done.wait() + 1)
    future.complete(None, RpcTimeoutError("too late"))
    for _ in range(2):
        error = caught(chained)
        assert type(error) is RpcTimeoutError
        assert str(error) == "too late"
    # What one copy is told of itself the others do not hear.
    assert len(error.__notes__) == 2
    assert not hasattr(caught(future), "__notes__")


def test_what_then_returns_is_a_future_like_the_first() -> None:
    chained = both_ways(lambda done: done.wait() + 1)  # type: ignore[attr-defined]
    assert [type(each) for each in chained] == [Future, Future]
    assert torch.futures.wait_all(chained) == [2, 2]


@pytest.mark.parametrize("is_done_before", [False, True])
def test_what_a_done_callback_raises_is_printed_from_its_own_first_line(
    is_done_before: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    future: Future[int] = Future()
    seen: list[int] = []
    if is_done_before:
        future.complete(1, None)
    future.add_done_callback(fail)
    future.add_done_callback(lambda done: seen.append(done.value()))
    future.complete(1, None)
    assert seen == [1]
    printed = capfd.readouterr().err
    assert "ValueError: on purpose" in printed
    assert printed.count("File ") == 1
    assert f'File "{__file__}"' in printed
    assert "pybind" not in printed
    assert printed.count("raised in fail, a callback of a future, and only printed") == 1


@pytest.mark.parametrize("give", [Future.then, Future.add_done_callback])
def test_what_cannot_be_called_is_refused_in_the_words_of_torch(
    give: Callable[..., object],
) -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        give(Future(), None)
