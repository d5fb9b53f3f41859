"""Descriptors are kept back while somebody may need them, and free for the moment of need."""

from __future__ import annotations

import errno
import os

import pytest

from lockstitch.memory.reserve import Reserve


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_there_is_one_while_somebody_holds_it():
    before = open_files()
    reserve = Reserve()
    assert open_files() == before
    reserve.hold()
    reserve.hold()
    assert open_files() == before + len(reserve) == before + 2
    reserve.let_go()
    assert len(reserve) == 2
    reserve.let_go()
    assert open_files() == before


def test_it_is_free_while_it_is_spent_and_kept_back_again():
    reserve = Reserve()
    reserve.hold()
    before = open_files()
    with reserve.spent():
        assert open_files() == before - 2
    assert open_files() == before
    reserve.let_go()


def test_what_others_took_meanwhile_is_taken_back_when_there_is_room(monkeypatch):
    reserve = Reserve()
    reserve.hold()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", none_left)
        with reserve.spent():
            pass
        assert len(reserve) == 0
    with reserve.spent():
        pass
    assert len(reserve) == 2
    reserve.let_go()


def test_it_is_put_back_when_its_use_fails():
    reserve = Reserve()
    reserve.hold()
    with pytest.raises(ValueError, match="in vain"), reserve.spent():
        raise ValueError("in vain")
    assert len(reserve) == 2
    reserve.let_go()


def test_child_lets_go_of_its_copies():
    reserve = Reserve()
    reserve.hold()
    kept = open_files()
    reserve.abandon()  # what a child does first
    assert open_files() == kept - 2
    reserve.let_go()


def none_left(*_arguments):
    raise OSError(errno.EMFILE, "too many open files")
