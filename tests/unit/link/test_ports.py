"""Listening at the ports that may be used, and nowhere else."""

from __future__ import annotations

import contextlib
import socket

import pytest

from lockstitch.link.addresses import LOOPBACK
from lockstitch.link.ports import find_ports, listen
from lockstitch.link.sockets import HeldPort


@pytest.fixture
def ports() -> range:
    """Three ports that are free, for a moment."""
    for first in range(21_000, 31_000, 3):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + 3):
                    stack.enter_context(socket.create_server((LOOPBACK, port)))
            except OSError:
                continue
        return range(first, first + 3)
    raise AssertionError("no three free ports in a row")


def test_each_listener_takes_a_port_of_its_own_until_none_is_left(ports: range) -> None:
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(listen(LOOPBACK, ports, 1)) for _ in ports]
        assert {each.getsockname()[1] for each in taken} == set(ports)
        words = (
            f"no port from {ports[0]} to {ports[-1]} .LOCKSTITCH_PORT_RANGE. is free at 127.0.0.1"
        )
        with pytest.raises(OSError, match=words):
            listen(LOOPBACK, ports, 1)


def test_an_address_of_another_host_is_refused_in_words() -> None:
    with pytest.raises(OSError, match=r"192\.0\.2\.77 is no address of .*\(NAT\)"):
        listen("192.0.2.77", None, 1)


@pytest.mark.parametrize(
    ("given", "text", "expected"),
    [
        (None, None, None),
        (None, "", None),
        (None, "20000-20009", range(20000, 20010)),
        (None, " 20000:20009 ", range(20000, 20010)),
        (None, "20000", range(20000, 20001)),
        ((30000, 30001), "20000-20009", range(30000, 30002)),
    ],
)
def test_ports_are_read(
    given: tuple[int, int] | None, text: str | None, expected: range | None
) -> None:
    environment = {} if text is None else {"LOCKSTITCH_PORT_RANGE": text}
    assert find_ports(given, environment) == expected


@pytest.mark.parametrize("text", ["a-b", "20009-20000", "0-5", "1-70000", "20000,20001"])
def test_what_is_no_range_of_ports_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"LOCKSTITCH_PORT_RANGE.* not '{text}'"):
        find_ports(None, {"LOCKSTITCH_PORT_RANGE": text})
    with pytest.raises(ValueError, match="first and a last port"):
        find_ports((1, 2, 3), {})


def test_a_port_that_is_held_is_for_a_server_and_for_no_other_holder(ports: range) -> None:
    with HeldPort(ports=ports) as first, HeldPort(ports=ports) as second:
        assert [first.number, second.number] == [ports[2], ports[1]]
        with socket.create_server(("", first.number)):
            pass
        with HeldPort(ports=ports), pytest.raises(OSError, match="in use"):
            HeldPort(ports=ports)
