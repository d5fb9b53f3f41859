"""The caller gets the callee's own exception if it can be rebuilt, and always all that it says."""

from __future__ import annotations

import builtins
import pickle
import sys
from typing import Any

import pytest
import torch

from lockstitch.errors import (
    PeerDiedError,
    RemoteError,
    RemoteProtocolError,
    RpcTimeoutError,
    format_error,
)
from lockstitch.runtime.remote_errors import RemoteTraceback, describe, from_payload, rebuild
from lockstitch.wire.encodings import PICKLE
from lockstitch.wire.messages import Payload


def raised(error: BaseException) -> BaseException:
    """With a traceback, as one that was raised by a function of the user."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


def cross(error: BaseException) -> BaseException:
    described = pickle.loads(pickle.dumps(describe(raised(error), "w1")))
    return rebuild(described)


class OwnError(Exception):
    def __init__(self, text: str, number: int = 0) -> None:
        super().__init__(text)
        self.number = number


class NeedsTwoError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class HoldsALockError(Exception):
    def __init__(self) -> None:
        super().__init__(torch.futures.Future())

    def __str__(self) -> str:
        return "holds what cannot cross"


class MuteError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError

    def __reduce__(self) -> Any:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "error",
    [
        ValueError("text"),
        KeyError("key"),
        OwnError("own"),
        StopIteration(3),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
        RpcTimeoutError("late"),
        PeerDiedError("w2", "killed"),
        OSError(2, "no such file"),
        torch.cuda.OutOfMemoryError("full"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_exception_keeps_type_arguments_and_text(error: Exception) -> None:
    arrived = cross(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert repr(arrived.args) == repr(error.args)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="came with Python 3.11")
def test_group_of_exceptions_arrives() -> None:
    group = vars(builtins)["ExceptionGroup"]("two", [ValueError("a"), TypeError("b")])
    arrived = cross(group)
    assert [type(each) for each in arrived.exceptions] == [ValueError, TypeError]  # type: ignore[attr-defined]


def test_attributes_arrive() -> None:
    arrived = cross(OwnError("own", 7))
    assert isinstance(arrived, OwnError)
    assert arrived.number == 7


def test_remote_traceback_is_the_cause_and_a_note_names_the_worker() -> None:
    arrived = cross(ValueError("line one\nline two"))
    assert isinstance(arrived.__cause__, RemoteTraceback)
    assert "in raised" in str(arrived.__cause__)
    assert "line one\nline two" in str(arrived.__cause__)
    assert arrived.__notes__ == ["raised on worker 'w1'"]  # type: ignore[attr-defined]
    assert "worker 'w1'" in format_error(arrived, None)


def test_causes_on_the_callee_are_in_the_remote_traceback() -> None:
    error = ValueError("outer")
    error.__cause__ = raised(KeyError("inner"))
    assert "inner" in str(cross(error).__cause__)


def test_local_class_of_exceptions_goes_by_value() -> None:
    class LocalError(Exception):
        pass

    arrived = cross(LocalError("here"))
    assert type(arrived).__name__ == "LocalError"
    assert str(arrived) == "here"


@pytest.mark.parametrize(
    "error", [NeedsTwoError(1, 2), HoldsALockError()], ids=lambda error: type(error).__name__
)
def test_what_cannot_be_rebuilt_arrives_as_text(error: Exception) -> None:
    arrived = cross(error)
    assert type(arrived) is RemoteError
    assert f"Original exception on remote side was {type(error).__name__}: {error}" in str(arrived)
    assert "On worker 'w1'" in str(arrived)
    assert "in raised" in str(arrived)


def test_reason_why_it_was_not_rebuilt_is_given() -> None:
    assert "two" in str(cross(NeedsTwoError(1, 2))).partition("Original exception")[0]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_what_would_end_the_caller_arrives_as_remote_error(error: BaseException) -> None:
    arrived = cross(error)
    assert type(arrived) is RemoteError
    assert type(error).__name__ in str(arrived)


def test_exception_that_cannot_even_be_shown() -> None:
    arrived = cross(MuteError())
    assert type(arrived) is RemoteError
    assert "MuteError" in str(arrived)


def test_body_of_a_failure_that_is_not_readable() -> None:
    for payload in (Payload(PICKLE, b"", ()), Payload(PICKLE, b"x", (torch.ones(1),))):
        with pytest.raises(RemoteProtocolError, match="not readable"):
            from_payload(payload)


def test_an_error_that_passed_no_frame_there_is_shown_once() -> None:
    error = rebuild(pickle.loads(pickle.dumps(describe(ValueError("made, not raised"), "w1"))))
    assert error.__cause__ is None
    assert "raised on worker 'w1'" in error.__notes__
