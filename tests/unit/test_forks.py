"""A forked child holds nothing of its parent's connections."""

from __future__ import annotations

import os

import pytest

from lockstitch.testing.leaks import Inventory
from lockstitch.transport.polling import EpollPoller
from lockstitch.transport.unix import UnixTransport
from tests.unit.transport.streams import connected, receive_all, receive_some

# From Python 3.12 on, forking beside threads (arithmetic libraries have some) warns.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def exit_status_of(child_code) -> int:
    child = os.fork()
    if child == 0:
        try:
            os._exit(child_code())
        except BaseException:  # noqa: BLE001 -- a child must not run on into pytest
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def open_sockets() -> int:
    held = Inventory.take().things.values()
    return sum("socket:" in name or "anon_inode:" in name for name in held)


def test_a_child_closes_its_copies_and_the_parent_keeps_its_own():
    transport, poller = UnixTransport(), EpollPoller()
    with connected(transport) as (near, far):
        poller.add(far)
        assert open_sockets() >= 5
        in_child = exit_status_of(open_sockets)
        near.send([b"still here"])
        assert receive_all(far, 10) == b"still here"
    poller.close()
    transport.close()
    assert in_child == open_sockets()


def test_what_a_child_says_on_its_parents_connection_is_refused():
    transport = UnixTransport()

    def say_something() -> int:
        try:
            near.send([b"from the child"])
        except ConnectionError:
            return 7
        return 0

    with connected(transport) as (near, far):
        assert exit_status_of(say_something) == 7
        near.send([b"from the parent"])
        assert receive_some(far) == b"from the parent"
    transport.close()


def test_a_peer_sees_the_end_while_a_child_lives_on():
    transport = UnixTransport()
    wait_here, let_go = os.pipe()
    with connected(transport) as (near, far):
        child = os.fork()
        if child == 0:
            os.close(let_go)
            os.read(wait_here, 1)
            os._exit(0)
        near._socket.close()  # without shutdown, as a death does it
        assert receive_some(far) == b""
    for descriptor in (let_go, wait_here):
        os.close(descriptor)
    os.waitpid(child, 0)
    transport.close()
