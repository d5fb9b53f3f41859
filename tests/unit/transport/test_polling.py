"""Both pollers keep the promises of `Poller`: over sockets and in memory."""

from __future__ import annotations

import os
import threading

import pytest

from lockstitch.transport.memory import MemoryNetwork
from lockstitch.transport.polling import EpollPoller
from lockstitch.transport.tcp import TcpTransport
from lockstitch.transport.unix import UnixTransport
from tests.unit.transport.streams import connected, receive_some, wait_for_connection

TRANSPORTS = {
    "unix": UnixTransport,
    "tcp": TcpTransport,
    "memory": lambda: MemoryNetwork().transport("w0"),
}


@pytest.fixture(params=TRANSPORTS)
def transport(request):
    transport = TRANSPORTS[request.param]()
    yield transport
    transport.close()


@pytest.fixture
def pair(transport):
    with connected(transport) as ends:
        yield ends


@pytest.fixture
def poller(transport):
    poller = transport.poller()
    yield poller
    poller.close()


def test_an_armed_connection_is_told_of_once(pair, poller):
    near, far = pair
    poller.add(far)
    poller.arm(far)
    assert list(poller.wait(0)) == []
    near.send([b"x"])
    assert list(poller.wait(1)) == [far]
    assert list(poller.wait(0)) == []
    poller.arm(far)
    assert list(poller.wait(1)) == [far]


def test_a_look_from_outside_takes_nothing_away(pair, poller):
    near, far = pair
    poller.add(far)
    near.send([b"x"])
    assert not poller.has_ready()
    poller.arm(far)
    assert poller.has_ready()
    assert poller.has_ready()
    assert list(poller.wait(1)) == [far]
    assert not poller.has_ready()
    poller.wake()
    assert poller.has_ready()
    poller.close()
    poller.has_ready()  # whatever it says


def test_what_is_not_armed_is_not_told_of(pair, poller):
    near, far = pair
    poller.add(far)
    near.send([b"x"])
    near.close()
    assert list(poller.wait(0.01)) == []


def test_the_end_of_a_stream_is_something_to_read(pair, poller):
    near, far = pair
    poller.add(far)
    poller.arm(far)
    near.close()
    assert list(poller.wait(1)) == [far]
    assert receive_some(far) == b""


def test_a_connection_that_we_close_while_it_is_armed_is_told_of(pair, poller):
    _, far = pair
    poller.add(far)
    poller.arm(far)
    far.close()
    assert list(poller.wait(1)) == [far]
    assert receive_some(far) == b""


def test_a_connection_that_was_closed_before_is_told_of(pair, poller):
    _, far = pair
    far.close()
    poller.add(far)
    poller.arm(far)
    assert list(poller.wait(1)) == [far]


def test_a_listener_is_told_of_when_somebody_comes(transport, poller):
    listener = transport.listen()
    poller.add(listener)
    poller.arm(listener)
    assert list(poller.wait(0)) == []
    near = transport.connect(listener.address, 1.0)
    assert list(poller.wait(1)) == [listener]
    far = wait_for_connection(listener)
    for end in (near, far, listener):
        end.close()


def test_what_is_removed_is_forgotten(pair, poller):
    near, far = pair
    poller.add(far)
    poller.arm(far)
    poller.remove(far)
    poller.remove(far)
    near.send([b"x"])
    assert list(poller.wait(0.01)) == []
    poller.arm(far)  # too late, and harmless
    assert list(poller.wait(0.01)) == []


def test_several_at_once(transport, poller):
    with connected(transport) as (near, far), connected(transport) as (other_near, other_far):
        for end in (far, other_far):
            poller.add(end)
            poller.arm(end)
        near.send([b"x"])
        other_near.send([b"x"])
        told = set()
        while len(told) < 2:
            told.update(poller.wait(1))
        assert told == {far, other_far}


def test_arming_wakes_a_waiting_thread(pair, poller):
    near, far = pair
    near.send([b"x"])
    poller.add(far)
    told = []
    waiter = threading.Thread(target=lambda: told.extend(poller.wait(None)))
    waiter.start()
    waiter.join(0.01)
    poller.arm(far)
    waiter.join()
    assert told == [far]


def test_wake_ends_the_current_wait(poller):
    waiter = threading.Thread(target=poller.wait, args=(None,))
    waiter.start()
    waiter.join(0.01)
    assert waiter.is_alive()
    poller.wake()
    waiter.join()


def test_wake_ends_the_next_wait_and_only_that(poller):
    poller.wake()
    poller.wake()
    assert list(poller.wait(None)) == []
    assert list(poller.wait(0.001)) == []


def test_closing_ends_a_wait(poller):
    waiter = threading.Thread(target=poller.wait, args=(None,))
    waiter.start()
    waiter.join(0.01)
    poller.close()
    waiter.join()
    poller.close()
    assert list(poller.wait(None)) == []
    poller.wake()


def test_closing_lets_go_of_what_was_watched(pair, transport):
    near, far = pair
    poller = transport.poller()
    poller.add(far)
    poller.close()
    near.send([b"still open"])
    assert receive_some(far) == b"still open"


def test_a_descriptor_used_again_is_not_taken_for_the_old_one():
    transport, poller = UnixTransport(), EpollPoller()
    with connected(transport) as (_, far):
        poller.add(far)
        poller.arm(far)
    poller.remove(far)  # only now is the descriptor free
    with connected(transport) as (near, far):
        poller.add(far)
        near.send([b"x"])
        assert poller.wait(0.01) == []
        poller.arm(far)
        assert poller.wait(1) == [far]
    poller.close()
    transport.close()


def test_epoll_takes_sockets_only_and_memory_takes_memory_only():
    poller = EpollPoller()
    in_memory = MemoryNetwork().transport("w0")
    listener = in_memory.listen()
    with pytest.raises(TypeError, match="is not a socket"):
        poller.add(listener)
    unix = UnixTransport()
    socket_listener = unix.listen()
    with pytest.raises(TypeError, match="is not in memory"):
        in_memory.poller().add(socket_listener)
    for each in (poller, listener, socket_listener, unix):
        each.close()


def test_an_abandoned_poller_gives_its_descriptors_back():
    before = os.listdir("/proc/self/fd")
    poller = EpollPoller()
    poller.abandon()
    poller.abandon()
    poller.close()
    assert os.listdir("/proc/self/fd") == before
