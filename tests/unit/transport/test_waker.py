"""A thread that waits for a connection can be woken for another reason."""

from __future__ import annotations

import os
import select

import pytest

from lockstitch.transport.waker import Waker
from tests.unit.runtime.stage import Background
from tests.unit.transport.streams import socket_pair


@pytest.fixture
def waker():
    waker = Waker()
    yield waker
    waker.close()


@pytest.fixture
def pair():
    with socket_pair() as ends:
        yield ends


def is_readable(waker: Waker) -> bool:
    return bool(select.select([waker.descriptor], [], [], 0)[0])


def test_released_until_it_is_drained(waker):
    assert not is_readable(waker)
    waker.release()
    waker.release()
    assert is_readable(waker)
    waker.drain()
    assert not is_readable(waker)
    waker.drain()


def test_a_receiver_is_woken_by_bytes_by_the_end_and_by_the_waker(pair, waker):
    near, far = pair
    waiting = Background(near.wait_readable, waker)
    waker.release()
    waiting.result()
    waker.drain()
    waiting = Background(near.wait_readable, waker)
    far.send([b"x"])
    waiting.result()
    near.receive_into(memoryview(bytearray(1)), [], 0)
    waiting = Background(near.wait_readable, waker)
    far.close()
    waiting.result()


def test_a_receiver_may_wait_for_several(waker):
    with socket_pair() as (near, _), socket_pair() as (other, far):
        waiting = Background(near.wait_readable, waker, [other])
        waker.release()
        waiting.result()
        waker.drain()
        waiting = Background(near.wait_readable, waker, [other])
        far.send([b"x"])
        waiting.result()
        other.receive_into(memoryview(bytearray(1)), [], 0)
        waiting = Background(near.wait_readable, waker, [other])
        other.close()
        waiting.result()


def test_a_receiver_is_woken_when_its_own_side_closes(pair, waker):
    near, _ = pair
    waiting = Background(near.wait_readable, waker)
    near.close()
    waiting.result()
    near.wait_readable(waker)  # nor does it begin to wait


def test_its_descriptor_is_given_back_once():
    waker = Waker()
    descriptor = waker.descriptor
    waker.close()
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)
    other = os.dup(0)  # perhaps the same number: nobody else's may be touched
    waker.release()
    waker.drain()
    waker.close()
    waker.abandon()
    os.fstat(other)
    os.close(other)


def test_a_forked_child_closes_its_copy():
    waker = Waker()
    waker.abandon()
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(waker.descriptor)
    waker.close()
