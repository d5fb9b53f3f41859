"""Who may open sockets: what passes between two workers has one road, and proves itself there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src" / "lockstitch"

ROADS = ("link", "transport")

# Files that open sockets for something else, each with the reason.
EXCEPTIONS = {
    "collectives/shared_memory/introduction.py": "hands descriptors to ranks of the same host, "
    "which only a unix socket can; the kernel says that the other end is the same user's",
    "hvd/batch.py": "asks who is at the other end of a socket of MPI's",
    "hvd/worlds.py": "keeps a port from others, and says nothing over it",
    "launch/meeting.py": "keeps a port from others, and says nothing over it",
    "launch/stopping.py": "a pair within one process, on which Python tells signals",
    "memory/handover.py": "a pair that one worker hands to another over their own connection",
    "nn/slots/fork.py": "a pair between a process and its own child",
    "rendezvous/hosts.py": "asks the kernel for the way to a host, and sends nothing",
    "rendezvous/reaching.py": "asks whether the store of torch answers",
}

OPENING = {"socket", "create_connection", "create_server", "socketpair", "fromfd", "SocketType"}
SERVERS = {"socketserver", "http.server", "asyncio.streams"}
BY_NAME = {"Client", "Listener"}


def opens_sockets(text: str) -> bool:
    """Whether a module of that text calls what makes a socket, or imports what does."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            if node.module in ("socket", "_socket", *SERVERS):
                return True
            if node.module == "multiprocessing.connection" and BY_NAME & {
                each.name for each in node.names
            }:
                return True
        elif isinstance(node, ast.Import):
            names = {each.name: each.asname for each in node.names}
            if names.keys() & {"_socket", *SERVERS} or names.get("socket"):
                return True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            value = node.func.value
            if isinstance(value, ast.Name) and (value.id, node.func.attr) in {
                *(("socket", name) for name in OPENING),
                ("asyncio", "open_connection"),
                ("asyncio", "start_server"),
                ("asyncio", "open_unix_connection"),
                ("asyncio", "start_unix_server"),
            }:
                return True
    return False


def test_sockets_are_opened_by_link_and_transport_and_by_named_exceptions() -> None:
    opening = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if opens_sockets(path.read_text())
    }
    elsewhere = {name for name in opening if name.split("/")[0] not in ROADS}
    assert elsewhere == EXCEPTIONS.keys()


@pytest.mark.parametrize(
    ("text", "opens"),
    [
        ("import socket\nsocket.gethostname()", False),
        ("import socket\nx: socket.socket", False),
        ("import socket\nsocket.socket()", True),
        ("import socket\nwith socket.create_server(('', 0)) as s: ...", True),
        ("from socket import create_connection", True),
        ("import socket as s", True),
        ("import socketserver", True),
        ("from multiprocessing.connection import Client", True),
        ("from multiprocessing.connection import wait", False),
    ],
)
def test_what_opens_a_socket_is_seen(text: str, opens: bool) -> None:
    assert opens_sockets(text) == opens
