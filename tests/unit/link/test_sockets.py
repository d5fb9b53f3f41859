"""Sockets as streams of lines, held ports, and who is at the other end."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, cast

import pytest

from lockstitch.link import sockets
from lockstitch.link.sockets import (
    _TCP_INFO,
    HeldPort,
    SocketListener,
    SocketStream,
    connect,
    end_connections,
    listeners,
    peer_credentials,
    peer_process,
    probe_silence,
    seconds_unacknowledged,
    silence_bounded,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 60.0


@pytest.fixture(params=["unix", "tcp"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SocketListener]:
    address = f"unix:{tmp_path}/s" if request.param == "unix" else "tcp:127.0.0.1:0"
    listener = SocketListener(address)
    yield listener
    listener.close()


def meet(listener: SocketListener) -> tuple[SocketStream, SocketStream]:
    near = connect(listener.address, SECONDS)
    while True:
        try:
            return near, listener.accept()
        except BlockingIOError:
            continue


def received(stream: SocketStream, timeout_seconds: float | None = SECONDS) -> bytes:
    view, counts = memoryview(bytearray(64)), list[int]()
    stream.receive_into(view, counts, timeout_seconds)
    return bytes(view[: counts[0]])


def test_who_reads_slowly_is_waited_for_where_the_stream_is_patient(
    listener: SocketListener,
) -> None:
    near, far = meet(listener)
    content = bytes(range(256)) * (1 << 15)
    far.patience_seconds = SECONDS
    sender = threading.Thread(target=far.send, args=([content],))
    sender.start()
    came = bytearray()
    while len(came) < len(content):
        view, counts = memoryview(bytearray(1 << 20)), list[int]()
        near.receive_into(view, counts, SECONDS)
        came += view[: counts[0]]
    sender.join()
    assert came == content
    for far.patience_seconds in (0.05, 0.0):
        with pytest.raises(BlockingIOError):
            far.send([content] * 8)  # more than the system may hold, by what it usually allows
    near.close()
    far.close()


def test_a_stream_that_is_closed_fails_whoever_uses_it(listener: SocketListener) -> None:
    near, far = meet(listener)
    near.close()
    far.close()
    for timeout_seconds in (None, 0, 1.0):
        with pytest.raises(OSError, match="closed|Bad file"):
            received(near, timeout_seconds)


def test_bytes_go_both_ways_and_the_end_is_seen(listener: SocketListener) -> None:
    near, far = meet(listener)
    near.send([b"for", b"th"])
    far.send([b"back"])
    assert received(far) == b"forth"
    assert received(near, None) == b"back"
    for timeout_seconds in (0, 0.001):
        with pytest.raises(BlockingIOError):
            received(far, timeout_seconds)
    near.close()
    near.close()
    assert received(far) == b""
    far.close()
    assert (near.fileno(), far.fileno()) == (-1, -1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        far.send([b"x"])


def test_the_launcher_waits_for_nobody_who_does_not_read(listener: SocketListener) -> None:
    near, far = meet(listener)
    with pytest.raises(BlockingIOError):
        far.send([bytes(1 << 24)])
    near.close()
    far.close()


def test_where_nobody_listens_nobody_connects(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        connect(f"unix:{tmp_path}/nobody", SECONDS)
    listener = SocketListener("tcp:127.0.0.1:0")
    assert int(listener.address.rpartition(":")[2]) > 0
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        connect(listener.address, SECONDS)


def test_where_somebody_listens_nobody_else_does(listener: SocketListener) -> None:
    with pytest.raises(OSError, match="in use"):
        SocketListener(listener.address)


def test_a_child_lets_go_of_a_stream_without_ending_it(listener: SocketListener) -> None:
    near, far = meet(listener)
    copy = SocketStream(near._socket.dup())
    copy.abandon()
    near.send([b"still here"])
    assert received(far) == b"still here"
    near.close()
    far.close()


def test_a_held_port_is_free_for_a_server_and_for_nobody_else() -> None:
    with HeldPort("127.0.0.1") as port:
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port.number))
        SocketListener(f"tcp:127.0.0.1:{port.number}").close()
    assert "closed" in repr(port)
    port.close()
    with socket.socket() as another:
        another.bind(("127.0.0.1", port.number))


def test_the_kernel_tells_who_is_at_the_other_end() -> None:
    near, far = socket.socketpair()
    with near, far:
        assert peer_credentials(near) == (os.getpid(), os.getuid())
        assert peer_process(far.fileno()) == os.getpid()
        near.sendall(b"x")
        assert far.recv(1) == b"x"  # it stays open


def test_what_is_no_socket_has_no_other_end_and_stays_as_it_was(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        before = os.listdir("/proc/self/fd")
        with pytest.raises(OSError, match="socket"):
            peer_process(file.fileno())
        assert os.listdir("/proc/self/fd") == before


def test_connections_of_a_listener_end_at_both_ends_and_no_others_do(tmp_path: Path) -> None:
    addresses = ["tcp:127.0.0.1:0", "tcp:127.0.0.1:0", f"unix:{tmp_path}/s"]
    wanted, other, local = map(SocketListener, addresses)
    port = int(wanted.address.rpartition(":")[2])
    ends = [meet(each) for each in (wanted, other, local)]
    assert ("127.0.0.1", port) in listeners("127.0.0.1")
    assert not listeners("127.0.0.2")
    end_connections({("127.0.0.1", port)})
    assert [received(end) for end in ends[0]] == [b"", b""]
    for near, far in (*ends[1:], meet(wanted)):
        near.send([b"hello"])
        assert received(far) == b"hello"
        near.close()
        far.close()
    for each in (*ends[0], wanted, other, local):
        each.close()


def test_who_looks_at_the_sockets_of_others_leaves_them_as_they_are() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
        server.accept()[0],
    ):
        assert os.get_blocking(near.fileno())
        socket.setdefaulttimeout(SECONDS)
        try:
            with silence_bounded(2.5):
                listeners("127.0.0.1")
                end_connections(set())
            assert os.get_blocking(near.fileno())
            assert os.get_blocking(server.fileno())
        finally:
            socket.setdefaulttimeout(None)


def test_silence_is_bounded_on_connections_that_others_have_opened():
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = socket.create_connection(server.getsockname())
        with silence_bounded(2.5):
            opened = socket.create_connection(server.getsockname())
            accepted = [server.accept()[0] for _ in range(2)]
        with silence_bounded(0.0):
            unwatched = socket.create_connection(server.getsockname())
        bounds = [
            sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            for sock in (before, opened, *accepted, unwatched)
        ]
        for sock in (before, opened, *accepted, unwatched):
            sock.close()
    assert bounds == [0, 2500, 2500, 2500, 0]


def test_silence_is_bounded_before_all_are_opened_where_somebody_asks_for_it():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        silence_bounded(2.5) as bound_now,
        socket.create_connection(server.getsockname()) as opened,
        server.accept()[0],
    ):
        bound_now()
        bound = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert bound == 2500


def test_a_descriptor_that_has_become_a_files_meanwhile_is_left_alone(tmp_path, monkeypatch):
    with (tmp_path / "file").open("w") as file:
        seen = iter([set(), {(file.fileno(), "socket:[1]")}])
        monkeypatch.setattr(sockets, "_open_sockets", lambda: next(seen))
        before = sorted(os.listdir("/proc/self/fd"))
        with silence_bounded(2.5):
            pass
        assert sorted(os.listdir("/proc/self/fd")) == before


def test_connection_that_is_still_being_made_is_given_up_within_the_bound():
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as server,
        silence_bounded(1.2) as bound_now,
        socket.socket() as waits,
        socket.create_connection(server.getsockname()),  # there is no room for a second one
    ):
        waits.setblocking(False)
        began_at = time.monotonic()
        with pytest.raises(BlockingIOError):
            waits.connect(server.getsockname())
        bound_now()
        poll = select.poll()
        poll.register(waits, select.POLLOUT)
        assert poll.poll(30_000)
        assert waits.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ETIMEDOUT
        assert time.monotonic() - began_at < 10.0
        assert not server.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def test_system_tells_how_long_the_other_host_has_said_nothing():
    near, far = socket.socketpair()
    with near, far, socket.create_server(("127.0.0.1", 0)) as server:
        assert seconds_unacknowledged(near) == 0.0
        with socket.create_connection(server.getsockname()) as sock:
            probe_silence(sock, 10.0)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 2
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
            assert seconds_unacknowledged(sock) == 0.0


@pytest.mark.parametrize(
    ("probes", "unacknowledged", "silent"), [(0, 1, 7.5), (2, 0, 7.5), (1, 0, 0.0), (0, 0, 0.0)]
)
def test_host_that_owes_no_sign_of_life_is_not_silent(
    probes: int, unacknowledged: int, silent: float
) -> None:
    class Told:
        def getsockopt(self, *_arguments: int) -> bytes:
            return _TCP_INFO.pack(1, probes, unacknowledged, 7500)

    assert seconds_unacknowledged(cast("socket.socket", Told())) == silent


def test_program_that_takes_in_nothing_does_not_make_its_host_silent():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sock,
        server.accept()[0],
    ):
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.send(bytes(1 << 20))
        # The system asks after 0.2 s, then after 0.4 more, and so on.
        deadline = time.monotonic() + 1.3
        while time.monotonic() < deadline:
            assert seconds_unacknowledged(sock) < 0.3
            select.select([], [], [], 0.05)
