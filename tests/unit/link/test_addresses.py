"""Which of this host's addresses others can use."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from lockstitch.link import addresses
from lockstitch.link.addresses import (
    LOOPBACK,
    address_towards,
    host_and_port,
    interface_addresses,
    is_loopback,
    own_address,
    with_port,
)

CARDS = [
    ("lo", "127.0.0.1"),
    ("docker0", "172.17.0.1"),
    ("eth0", "10.0.0.7"),
    ("ib0", "10.1.0.7"),
    ("eth0", "fd00::7"),
]


@pytest.fixture
def cards(monkeypatch: Any) -> None:
    """A host with these interfaces, a hosts file as Debian writes it, and no default route."""
    known = {"me": "127.0.1.1", "other": "10.1.0.8", "localhost": "127.0.0.1"}

    def find(name: str, *_: Any, **__: Any) -> list[Any]:
        if name not in known:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", (known[name], 1))]

    def towards(place: str) -> str:
        ways = {"me": "127.0.0.1", "other": "10.1.0.7"}
        if place not in ways:
            raise OSError("network is unreachable")
        return ways[place]

    monkeypatch.setattr(addresses, "interface_addresses", lambda: CARDS)
    monkeypatch.setattr(addresses, "address_towards", towards)
    monkeypatch.setattr(socket, "getaddrinfo", find)


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(
    ("place", "given", "environment", "expected"),
    [
        ("other", None, {}, "10.1.0.7"),  # the way to where all meet
        ("me", None, {}, "10.0.0.7"),  # the own name, which is loopback here alone
        (None, None, {}, "10.0.0.7"),  # a file, say
        ("localhost", None, {}, LOOPBACK),
        ("127.0.0.1", None, {}, LOOPBACK),
        ("unknown", None, {}, "10.0.0.7"),
        ("other", "eth0", {}, "10.0.0.7"),
        ("other", "me", {}, "10.0.0.7"),
        ("other", "localhost", {}, LOOPBACK),
        ("other", "203.0.113.5", {}, "203.0.113.5"),
        ("other", "[fd00::7]", {}, "fd00::7"),
        ("other", None, {"LOCKSTITCH_ADDRESS": "eth0"}, "10.0.0.7"),
        ("other", "auto", {"LOCKSTITCH_ADDRESS": "eth0"}, "10.1.0.7"),
        ("other", None, {"LOCKSTITCH_ADDRESS": "auto"}, "10.1.0.7"),
        ("other", None, {"LOCKSTITCH_IFNAME": "eth"}, "10.0.0.7"),
        ("other", None, {"LOCKSTITCH_IFNAME": "=ib,ib0"}, "10.1.0.7"),
        ("other", None, {"LOCKSTITCH_IFNAME": "^docker,eth"}, "10.1.0.7"),
        ("other", None, {"GLOO_SOCKET_IFNAME": "lo"}, LOOPBACK),
        ("other", None, {"LOCKSTITCH_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "lo"}, "10.0.0.7"),
        ("other", None, {"NCCL_SOCKET_IFNAME": "docker0"}, "172.17.0.1"),
        ("other", None, {"GLOO_SOCKET_IFNAME": "eth9"}, "10.1.0.7"),
    ],
)
def test_own_address(
    place: str | None, given: str | None, environment: dict[str, str], expected: str
) -> None:
    assert own_address(place, given, environment) == expected


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(
    ("given", "environment", "words"),
    [
        ("nowhere", {}, r"'nowhere' is neither a name, .*, which has lo \(127.0.0.1\), docker0"),
        (
            None,
            {"LOCKSTITCH_IFNAME": "=eth"},
            r"LOCKSTITCH_IFNAME='=eth' fits no interface .*ib0",
        ),
        (None, {"LOCKSTITCH_IFNAME": "^l,d,e,i"}, "fits no interface"),
    ],
)
def test_what_is_not_here_is_refused_with_what_is(
    given: str | None, environment: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        own_address("other", given, environment)


def test_a_host_that_has_nothing_but_loopback_uses_it(monkeypatch: Any) -> None:
    monkeypatch.setattr(addresses, "interface_addresses", lambda: CARDS[:2])
    monkeypatch.setattr(addresses, "_FAR_AWAY", ())
    assert own_address(None, environment={}) == LOOPBACK


def test_this_host_tells_its_interfaces() -> None:
    assert ("lo", "127.0.0.1") in interface_addresses()
    assert address_towards("127.0.0.1") == LOOPBACK
    with pytest.raises(OSError, match=r"known|resolution|address"):
        address_towards("no-such-host.invalid")


@pytest.mark.parametrize(
    ("host", "text"), [("10.0.0.1", "10.0.0.1:80"), ("fd00::1", "[fd00::1]:80"), ("h", "h:80")]
)
def test_hosts_and_ports_are_written_and_read(host: str, text: str) -> None:
    assert with_port(host, 80) == text
    assert host_and_port(text) == (host, 80)


@pytest.mark.parametrize("text", ["h", ":80", "h:", "h:http", "h:65536", "h:-1"])
def test_what_is_no_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        host_and_port(text)


def test_loopback_is_known_in_each_way_of_writing() -> None:
    assert all(map(is_loopback, ("127.0.1.1", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("10.0.0.1", "fd00::1", "node1")))
