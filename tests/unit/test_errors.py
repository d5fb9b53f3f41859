"""Whoever catches what torch.distributed.rpc raises also catches what Lockstitch raises."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from lockstitch import errors

ALL = [
    each
    for _, each in inspect.getmembers(errors, inspect.isclass)
    if each.__module__ == errors.__name__
]


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_is_a_runtime_error_and_explains_itself(cls: type[Exception]) -> None:
    assert issubclass(cls, errors.LockstitchError)
    assert issubclass(cls, RuntimeError)
    assert cls.__doc__


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_can_be_pickled(cls: type[Exception]) -> None:
    error = cls("what happened")
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is cls
    assert str(copied) == str(error)


def test_tree_in_the_module_is_the_tree_of_the_classes() -> None:
    drawn = re.findall(r"^[ │├└─]*(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    assert sorted(drawn) == sorted(cls.__name__ for cls in ALL)


def test_builtin_relatives() -> None:
    assert issubclass(errors.RpcTimeoutError, TimeoutError)
    assert issubclass(errors.PeerDiedError, ConnectionError)
    assert issubclass(errors.OwnerDiedError, ConnectionError)


def test_death_names_the_worker_and_keeps_its_cause() -> None:
    error = pickle.loads(pickle.dumps(errors.PeerDiedError("w1", "killed")))
    assert (error.worker, error.cause) == ("w1", "killed")
    assert str(error) == "worker 'w1' died: killed"
