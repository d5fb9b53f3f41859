"""Several modules at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from lockstitch.nn.parallel.parallel_apply import get_a_var, parallel_apply

PATIENCE_SECONDS = 60
X = torch.ones(2)


class StrangeError(Exception):
    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} {other}")


def fails(error: BaseException) -> Any:
    def module(x: torch.Tensor) -> torch.Tensor:
        raise error

    return module


def test_they_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3)

    def module(x: torch.Tensor, plus: int = 0) -> torch.Tensor:
        barrier.wait(PATIENCE_SECONDS)
        return x + plus

    outputs = parallel_apply([module] * 3, [X, (X,), [X]], [{}, {"plus": 1}, {"plus": 2}])
    assert [output.tolist() for output in outputs] == [[1, 1], [2, 2], [3, 3]]


def test_a_single_one_runs_in_the_callers_thread() -> None:
    assert parallel_apply([lambda x: threading.current_thread()], [X]) == [
        threading.current_thread()
    ]


def test_no_module_no_output() -> None:
    assert parallel_apply([], []) == []


@pytest.mark.parametrize("count", [1, 2])
def test_the_first_error_is_raised_with_its_type_and_traceback(count: int) -> None:
    modules = [fails(KeyError("a")), fails(ValueError("b"))][:count]
    with pytest.raises(KeyError, match=r"(?s)Caught KeyError in replica 0 .*in module"):
        parallel_apply(modules, [X] * count)


def test_others_end_before_an_error_is_raised() -> None:
    is_done = threading.Event()
    failed = threading.Event()

    def slow(x: torch.Tensor) -> None:
        failed.wait(PATIENCE_SECONDS)
        is_done.set()

    def failing(x: torch.Tensor) -> None:
        failed.set()
        raise ValueError

    with pytest.raises(ValueError, match="in replica 0"):
        parallel_apply([failing, slow], [X, X])
    assert is_done.is_set()


def test_an_error_that_cannot_be_rebuilt_is_a_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="Caught StrangeError in replica 1"):
        parallel_apply([nn.Identity(), fails(StrangeError(1, 2))], [X, X])


def test_an_exit_in_a_replica_is_not_lost() -> None:
    with pytest.raises(SystemExit):
        parallel_apply([nn.Identity(), fails(SystemExit(3))], [X, X])


def test_modes_are_the_callers() -> None:
    def module(x: torch.Tensor) -> Any:
        return torch.is_grad_enabled(), (x @ x).dtype

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert parallel_apply([module] * 2, [X, X]) == [(False, torch.bfloat16)] * 2
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (([X],), "inputs"),
        (([X, X], [{}]), "kwargs_tup"),
        (([X, X], None, [0]), "devices"),
    ],
)
def test_lengths_must_agree(arguments: Any, name: str) -> None:
    with pytest.raises(AssertionError, match=f"number of {name} 1"):
        parallel_apply([nn.Identity()] * 2, *arguments)


def test_the_first_tensor_is_found_where_it_hides() -> None:
    assert get_a_var([1, {"a": (None, X)}]) is X
    assert get_a_var({X: 1}) is X
    assert get_a_var("text") is None
