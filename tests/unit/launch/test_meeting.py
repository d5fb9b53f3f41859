"""The file and the port that a job's workers meet at."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from lockstitch.launch.meeting import MeetingPlace

# libuv makes a pipe with its first loop and keeps it for good; no single test left that behind.
TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_the_folder_is_the_users_own_and_goes_with_the_job() -> None:
    with MeetingPlace() as place:
        store = Path(place.store)
        assert store.name == str(place.port)
        assert store.parent.stat().st_mode & 0o077 == 0
    assert not store.parent.exists()


def test_the_port_is_kept_from_strangers_and_free_for_rank_0() -> None:
    with MeetingPlace() as place:
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", place.port))
        host = TCPStore("127.0.0.1", place.port, is_master=True, wait_for_workers=False)
        host.set("key", "value")
        guest = TCPStore("127.0.0.1", place.port, is_master=False)
        assert guest.get("key") == b"value"
