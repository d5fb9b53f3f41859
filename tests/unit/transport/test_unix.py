"""Who may talk to a unix listener, and what it leaves on disk."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from lockstitch.transport import unix
from lockstitch.transport.unix import UnixTransport
from tests.unit.transport.streams import wait_for_connection


@pytest.fixture
def transport():
    transport = UnixTransport()
    yield transport
    transport.close()


@pytest.fixture
def listener(transport):
    listener = transport.listen()
    yield listener
    listener.close()


def path_of(address: str) -> Path:
    return Path(address.removeprefix("unix:"))


def test_only_the_user_may_enter_directory_and_socket(listener):
    path = path_of(listener.address)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_each_listener_has_a_directory_of_its_own(transport, listener):
    other = transport.listen()
    other.close()
    assert path_of(other.address).parent != path_of(listener.address).parent


def test_closing_the_transport_leaves_nothing_on_disk(transport, listener):
    transport.close()
    assert not path_of(listener.address).parent.exists()
    transport.close()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_leaves_the_socket_on_disk(transport, listener):
    child = os.fork()
    if child == 0:
        transport.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert path_of(listener.address).exists()


def test_a_given_address_is_listened_at(transport, tmp_path):
    address = f"unix:{tmp_path}/socket"
    listener = transport.listen(address)
    assert listener.address == address
    with pytest.raises(OSError, match="in use"):
        transport.listen(address)
    listener.close()


def test_a_temporary_directory_with_a_long_name_is_not_used(transport, tmp_path, monkeypatch):
    deep = tmp_path / ("long" * 25)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    listener = transport.listen()
    assert not list(deep.iterdir())
    listener.close()


def test_a_stranger_is_turned_away_by_the_listener(transport, listener, monkeypatch):
    monkeypatch.setattr(unix, "peer_credentials", lambda _: (1, os.geteuid() + 1))
    stranger = socket.socket(socket.AF_UNIX)
    stranger.connect(str(path_of(listener.address)))
    assert listener.accept() is None
    assert stranger.recv(1) == b""
    stranger.close()


def test_a_strangers_listener_is_not_talked_to(transport, listener, monkeypatch):
    monkeypatch.setattr(unix, "peer_credentials", lambda _: (1, os.geteuid() + 1))
    with pytest.raises(ConnectionError, match="belongs to user"):
        transport.connect(listener.address, 1.0)


def test_both_ends_in_one_process_are_recognised(transport, listener):
    near = transport.connect(listener.address, 1.0)
    far = wait_for_connection(listener)
    assert near.is_own_process
    assert far.is_own_process
    assert far.peer == f"unix:process {os.getpid()}"
    near.close()
    far.close()


def test_a_full_backlog_is_waited_for_until_the_time_is_over(transport, tmp_path):
    busy = socket.socket(socket.AF_UNIX)
    busy.bind(str(tmp_path / "busy"))
    busy.listen(0)
    first = transport.connect(f"unix:{tmp_path}/busy", 1.0)
    with pytest.raises(TimeoutError, match="did not answer in 0.01 s"):
        transport.connect(f"unix:{tmp_path}/busy", 0.01)
    first.close()
    busy.close()


def test_another_kind_of_address_is_refused(transport):
    with pytest.raises(ValueError, match="not a unix address"):
        transport.connect("tcp:localhost:1", 1.0)
