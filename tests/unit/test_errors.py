"""Whoever catches what torch.distributed.rpc raises also catches what Lockstitch raises."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re
import sys

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


def of(error: BaseException, *, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        errors.RankLostError("rank 0 is gone"),
        errors.PeerDiedError("worker1"),
        errors.PeerLeftError("worker1"),
        errors.ConnectionLostError("worker1"),
        errors.OwnerDiedError("gone"),
        ConnectionResetError("by peer"),
        RuntimeError("[gloo/transport/tcp/pair.cc:1] Connection closed by peer [127.0.0.1]:1"),
        of(KeyError("a handler's own"), cause=errors.RankLostError("rank 0 is gone")),
        of(ValueError(), cause=of(KeyError(), cause=errors.PeerDiedError("worker1"))),
    ],
    ids=repr,
)
def test_errors_that_are_there_because_a_peer_is_gone_are_known(error: BaseException) -> None:
    assert errors.tells_of_lost_peer(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("Connection closed by peer"),
        errors.SlotDiedError("slot 1"),
        errors.StalledError("w"),
        errors.RpcTimeoutError("late"),
        KeyboardInterrupt(),
        of(ValueError("own"), cause=KeyError("also own")),
    ],
    ids=repr,
)
def test_errors_of_its_own_are_none_of_them(error: BaseException) -> None:
    assert not errors.tells_of_lost_peer(error)


def test_an_error_in_a_circle_of_causes_is_looked_at_once() -> None:
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    assert not errors.tells_of_lost_peer(first)


def test_notes_are_kept_and_shown_where_python_has_no_place_for_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Old(Exception):  # noqa: N818 - one of Python 3.10
        def __getattribute__(self, name: str) -> object:
            if name == "add_note":
                raise AttributeError(name)
            return super().__getattribute__(name)

    error = Old("text")
    error.__cause__ = Old("its cause")
    for each, notes in ((error, ["first", "second"]), (error.__cause__, ["of the cause"])):
        for note in notes:
            errors.add_note(each, note)
        assert getattr(each, "__notes__") == notes  # noqa: B009
    # As it is on 3.10, where no backport of groups of exceptions has been imported.
    monkeypatch.setattr(errors.traceback, "format_exception", lambda *_: ["Old: text\n"])
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    errors.print_error(error, None)
    for shown in (errors.format_error(error, None), capsys.readouterr().err):
        lines = shown.splitlines()
        assert all(lines.count(note) == 1 for note in ("first", "second", "of the cause")), shown


def test_a_copy_says_all_that_the_error_says() -> None:
    missing = errors.copy_of(FileNotFoundError(2, "No such file", "/here"))
    assert (missing.filename, str(missing)) == ("/here", "[Errno 2] No such file: '/here'")
    module = errors.copy_of(ModuleNotFoundError("No module named 'a'", name="a", path="b"))
    assert (module.name, module.path, str(module)) == ("a", "b", "No module named 'a'")


class SlottedError(Exception):
    __slots__ = ("code", "unset")


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    what: str


def test_a_copy_has_what_is_in_slots_and_what_may_not_be_set() -> None:
    slotted, frozen = SlottedError("words"), FrozenError("words")
    slotted.code = 7
    cause = ValueError("cause")
    for error in (slotted, frozen):
        errors.set_attribute(error, "__cause__", cause)
        errors.add_note(error, "note")
        copy = errors.copy_of(error)
        assert copy is not error
        assert (copy.args, copy.__cause__, copy.__notes__) == (error.args, cause, ["note"])
    assert errors.copy_of(slotted).code == 7  # type: ignore[attr-defined]
    assert errors.copy_of(frozen).what == "words"  # type: ignore[attr-defined]


class SaysNothingError(Exception):
    """As one whose `__str__` needs what a failed constructor has not set."""

    def __str__(self) -> str:
        return self.what  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return self.what  # type: ignore[attr-defined]


def test_what_cannot_be_shown_is_named_and_raises_nothing() -> None:
    assert errors.text_of(SaysNothingError()) == "(its text cannot be shown)"
    assert errors.repr_of(SaysNothingError()) == "SaysNothingError (its text cannot be shown)"
    assert errors.text_of(KeyError("a")) == "'a'"
    assert errors.repr_of(KeyError("a")) == "KeyError('a')"
