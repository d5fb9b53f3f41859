"""Finding and ending the connections of a group of Gloo."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import pytest

from lockstitch.collectives.c10d import gloo_connections
from lockstitch.collectives.c10d.gloo_connections import (
    GlooConnections,
    address_of_gloo,
    listening,
)

HOST = "127.0.0.1"


def test_connections_to_and_from_where_gloo_listens_are_ended() -> None:
    with socket.create_server((HOST, 0)) as ours, socket.create_server((HOST, 0)) as theirs:
        connections = GlooConnections(HOST, ours.getsockname()[1])
        connections.learn(HOST, theirs.getsockname()[1])
        called = [socket.create_connection(each.getsockname()) for each in (ours, theirs)]
        accepted = [each.accept()[0] for each in (ours, theirs)]
        connections.end()
        for each in (*called, *accepted):
            assert each.recv(1) == b""
            each.close()


def test_who_listens_later_where_gloo_did_is_left_alone() -> None:
    with socket.create_server((HOST, 0)) as server:
        connections = GlooConnections(HOST, server.getsockname()[1])
        connections.end()
        with socket.create_connection(server.getsockname()) as near, server.accept()[0] as far:
            connections.end()
            near.sendall(b"x")
            assert far.recv(1) == b"x"


def test_where_gloo_listens_by_itself_it_is_left_alone() -> None:
    options, connections = listening(None, timedelta(seconds=1), is_lazy=False)
    assert options == timedelta(seconds=1)
    assert not connections.port
    connections.end()


def test_what_listens_from_the_same_moment_on_is_not_taken_for_gloo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[socket.socket] = []

    def begun(address: str, _timeout: timedelta, *, is_lazy: bool) -> Any:
        opened.extend(socket.create_server((address, 0)) for _ in range(2 if is_lazy else 1))
        return "options"

    monkeypatch.setattr(gloo_connections, "gloo_options", begun)
    options, connections = listening(HOST, timedelta(seconds=1), is_lazy=False)
    assert options == "options"
    assert connections.port == opened[0].getsockname()[1]
    assert not listening(HOST, timedelta(seconds=1), is_lazy=True)[1].port
    for each in opened:
        each.close()


@pytest.mark.parametrize(
    ("named", "address", "found"),
    [
        (None, "10.0.0.7", "10.0.0.7"),
        ("", "10.0.0.7", "10.0.0.7"),
        ("lo", "10.0.0.7", HOST),
        ("lo", None, None),  # on one host
        ("lo,eth0", "10.0.0.7", None),
        ("none", "10.0.0.7", None),
    ],
)
def test_gloo_awaits_others_at_the_interface_that_is_named_for_it(
    monkeypatch: pytest.MonkeyPatch, named: str | None, address: str | None, found: str | None
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    if named is not None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", named)
    assert address_of_gloo(address) == found
