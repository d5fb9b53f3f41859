"""Descriptors cross beside a stream, whose first byte brings the way for them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import deque

import pytest

from lockstitch.memory import handover
from lockstitch.memory.handover import (
    Handover,
    Reserve,
    begin,
    descriptors_in,
    offer,
    receive_beginning,
)


@pytest.fixture
def stream():
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def beginning(far: socket.socket):
    notes = []
    receive_beginning(far, notes, 0)
    return begin(notes[0])[0]


def test_descriptor_arrives_with_its_note(stream, tmp_path):
    near, far = stream
    ours = offer(near, wanted=True)
    theirs = beginning(far)
    file = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    ours.send(b"number 3", file)
    os.write(file, b"text")
    os.close(file)
    notes, taken = [], []
    theirs.look(notes)
    theirs.take(taken)
    assert taken == [b"number 3"]
    ((note, ancillary, _, _),) = notes
    (received,) = descriptors_in(ancillary)
    assert note == b"number 3"
    assert not os.get_inheritable(received)
    assert os.pread(received, 10, 0) == b"text"
    os.close(received)
    with pytest.raises(BlockingIOError):
        theirs.look(notes)
    ours.close()
    ours.close()
    theirs.close()


def test_the_stream_goes_on_behind_the_first_byte(stream):
    near, far = stream
    offer(near, wanted=True).close()
    near.sendall(b"message")
    beginning(far).close()
    assert far.recv(100) == b"message"


def test_who_wants_none_says_so(stream):
    near, far = stream
    assert offer(near, wanted=False) is None
    assert beginning(far) is None


def test_without_descriptors_it_begins_without(stream, monkeypatch):
    near, far = stream

    def none_left():
        raise OSError(24, "too many open files")

    monkeypatch.setattr(handover, "_pair", none_left)
    assert offer(near, wanted=True) is None
    assert beginning(far) is None


def test_a_stranger_is_recognised(stream):
    near, far = stream
    near.sendall(b"GET / HTTP/1.1")
    with pytest.raises(ConnectionError, match="no worker: it began with b'G'"):
        beginning(far)


def test_a_full_way_blocks_nobody(stream):
    near, far = stream
    ours, theirs = offer(near, wanted=True), beginning(far)
    with pytest.raises(BlockingIOError):
        deque((ours.send(b"x" * 60, near.fileno()) for _ in range(100_000)), maxlen=0)
    ours.close()
    theirs.close()


def test_sending_to_one_who_is_gone_is_an_error(stream):
    near, far = stream
    ours = offer(near, wanted=True)
    beginning(far).close()
    with pytest.raises(OSError, match=r"."):
        ours.send(b"x", near.fileno())
    ours.close()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_does_not_hold_it_open():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end = Handover(ours)
    stay, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(stay, 1)
        os._exit(0)
    end.close()
    assert theirs.recv(1) == b""  # although the child lives
    for each in (go, stay):
        os.close(each)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    theirs.close()


# ---------------------------------------------------------------- what is kept back


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
