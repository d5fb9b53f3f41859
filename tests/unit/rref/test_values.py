from __future__ import annotations

import gc
import threading
import weakref

import pytest

from lockstitch.errors import OwnerDiedError, PeerDiedError, RpcTimeoutError, copy_of
from lockstitch.ids import GlobalId
from lockstitch.rref.values import OwnedValue

REFERENCE = GlobalId(0, 0, 7)


def test_a_value_is_there_once_it_is_set():
    value = OwnedValue(REFERENCE)
    assert not value.is_done
    value.set([1])
    assert value.is_done
    assert value.get() is value.get()


def test_the_first_outcome_counts():
    value = OwnedValue(REFERENCE)
    value.set(1)
    value.set(2)
    value.fail(ValueError())
    assert value.get() == 1


def test_none_is_a_value():
    value = OwnedValue(REFERENCE)
    value.set(None)
    assert value.get() is None


def test_callbacks_run_when_the_value_comes_or_at_once():
    value = OwnedValue(REFERENCE)
    order = []
    value.when_done(lambda: order.append("early"))
    assert order == []
    value.set(1)
    value.when_done(lambda: order.append("late"))
    assert order == ["early", "late"]


def test_get_waits_for_the_value():
    value = OwnedValue(REFERENCE)
    setter = threading.Timer(0.01, value.set, (5,))
    setter.start()
    assert value.get(10) == 5
    setter.join()


def test_get_gives_up_in_time_with_the_usual_words():
    with pytest.raises(RpcTimeoutError, match="RPC ran for more than"):
        OwnedValue(REFERENCE).get(0.001)


def test_an_error_is_raised_each_time_with_the_traceback_of_its_origin_only():
    value = OwnedValue(REFERENCE)
    try:
        raise KeyError("here")
    except KeyError as error:
        value.fail(error)
    lengths = []
    for _ in range(3):
        with pytest.raises(KeyError, match="here") as caught:
            value.get()
        lengths.append(len(caught.traceback))
    assert len(set(lengths)) == 1


def test_a_raised_error_keeps_nothing_of_those_who_got_it():
    class Large:
        pass

    value = OwnedValue(REFERENCE)
    value.fail(KeyError())

    def use() -> weakref.ref[Large]:
        large = Large()
        with pytest.raises(KeyError):
            value.get()
        return weakref.ref(large)

    reference = use()
    gc.collect()
    assert reference() is None


def test_a_forbidden_value_must_not_be_shared_either():
    value = OwnedValue(REFERENCE)
    value.check_usable()
    value.forbid(KeyError("timed out"))
    value.set(1)
    with pytest.raises(KeyError, match="timed out"):
        value.check_usable()
    with pytest.raises(KeyError, match="timed out"):
        value.get()


class AwkwardError(Exception):
    def __init__(self, first: int, *, second: int) -> None:
        super().__init__("awkward")
        self.sum = first + second


@pytest.mark.parametrize(
    "error",
    [
        ValueError("one", 2),
        AwkwardError(1, second=2),
        PeerDiedError("worker1", "it left"),
        OwnerDiedError("of two bases"),
        FileNotFoundError(2, "No such file"),
        ImportError("no", name="module"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_copies_of_errors_are_alike(error):
    error.__cause__ = cause = KeyError("cause")
    copy = copy_of(error)
    assert copy is not error
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.args == error.args
    assert copy.__dict__ == error.__dict__
    assert copy.__cause__ is cause
