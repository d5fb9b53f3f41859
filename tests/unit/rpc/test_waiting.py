"""Waiting for several futures: ours, torch's, and both through torch's own name."""

from __future__ import annotations

import threading

import pytest
import torch

from lockstitch import rpc
from lockstitch.rpc.waiting import keep_word_of_torch
from lockstitch.runtime.pending import Future


@pytest.fixture
def word_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.futures, "wait_all", torch.futures.wait_all)
    keep_word_of_torch()


def _done(value: int) -> Future[int]:
    future: Future[int] = Future()
    future.set_result(value)
    return future


def _failed(error: Exception) -> Future[int]:
    future: Future[int] = Future()
    future.set_exception(error)
    return future


def test_values_come_in_the_order_of_the_futures() -> None:
    late: Future[int] = Future()
    threading.Timer(0.01, late.set_result, (1,)).start()
    assert rpc.wait_all([late, _done(2)]) == [1, 2]


def test_the_first_failure_is_raised_while_others_are_open() -> None:
    with pytest.raises(KeyError, match="lost"):
        rpc.wait_all([Future(), _failed(KeyError("lost"))])


def test_no_futures_have_no_values() -> None:
    assert rpc.wait_all([]) == []


@pytest.mark.usefixtures("word_kept")
def test_torchs_own_wait_all_does_not_wait_for_open_futures_of_ours_when_one_fails() -> None:
    with pytest.raises(KeyError, match="lost"):
        torch.futures.wait_all([Future(), _failed(KeyError("lost"))])


@pytest.mark.usefixtures("word_kept")
def test_torchs_own_wait_all_is_as_it_was_for_torchs_own_futures() -> None:
    future: torch.futures.Future[int] = torch.futures.Future()
    future.set_result(3)
    assert torch.futures.wait_all([future]) == [3]
    assert torch.futures.wait_all.__name__ == "wait_all"
