"""Exceptions of a slot are raised as what they were."""

from __future__ import annotations

import pickle

import pytest

from lockstitch.nn.slots.failures import describe


class OddError(Exception):
    """Can be pickled, but not rebuilt."""

    def __init__(self, left, right):
        super().__init__(f"{left} and {right}")


def raised(error):
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - that is what is tested
        return caught


def cross(error):
    return pickle.loads(pickle.dumps(describe(raised(error), "slot 1", crosses=True))).error()


@pytest.mark.parametrize("error", [KeyError("k"), ValueError("v", 2), RuntimeError("r")])
def test_type_and_arguments_cross(error):
    again = cross(error)
    assert type(again) is type(error)
    assert again.args == error.args
    assert str(again.__cause__).strip().strip('"').strip().startswith("Caught ")
    assert "in slot 1.\nOriginal Traceback" in str(again.__cause__)


def test_what_cannot_be_rebuilt_tells_all_as_text():
    again = cross(OddError("this", "that"))
    assert isinstance(again, RuntimeError)
    assert "Caught OddError in slot 1" in str(again)
    assert "this and that" in str(again)


def test_what_would_end_the_caller_does_not():
    assert type(cross(SystemExit(3))) is RuntimeError
    assert type(cross(KeyboardInterrupt())) is RuntimeError


def test_within_a_process_it_is_the_exception_itself():
    error = raised(OddError(1, 2))
    assert describe(error, "slot 1", crosses=False).error() is error
