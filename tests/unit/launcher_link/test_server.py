from __future__ import annotations

import errno
import re
import resource
import selectors
import socket
import threading
from queue import Queue
from unittest.mock import Mock

import pytest

from lockstitch import __version__
from lockstitch.errors import BoardLostError
from lockstitch.launcher_link import LauncherClient, LauncherServer, Ready, Update
from lockstitch.launcher_link.messages import CODEC, LAUNCHER, worker_info
from lockstitch.link import greetings
from lockstitch.link.greetings import GreetingReader
from lockstitch.link.handshake import CallerHandshake
from lockstitch.link.sockets import connect
from lockstitch.testing import ManualClock
from lockstitch.trust import Secret
from tests.unit.launcher_link import launchers

SECONDS = 60


@pytest.fixture
def fake_launcher(tmp_path):
    with launchers.FakeLauncher(tmp_path) as fake_launcher:
        yield fake_launcher


def stranger(fake_launcher):
    return connect(fake_launcher.address, SECONDS)


def is_hung_up_on(stream):
    counts = []
    try:
        stream.receive_into(memoryview(bytearray(1 << 10)), counts, SECONDS)
    except ConnectionError:
        return True
    return counts == [0]


def test_what_is_told_reaches_the_worker_that_it_is_for(fake_launcher):
    clients = [
        LauncherClient(fake_launcher.address, launchers.SECRET, number) for number in range(3)
    ]
    try:
        heard = Queue()
        for number, client in enumerate(clients):
            client.on_update = heard.put
            fake_launcher.wait_for_worker(number)
            fake_launcher.tell(number, Update(number + 1, 2))
            assert heard.get(timeout=SECONDS) == Update(number + 1, 2)
        assert [client.last_update.number for client in clients] == [1, 2, 3]
    finally:
        for client in clients:
            client.close()


def test_telling_a_worker_that_is_gone_does_nothing(fake_launcher):
    fake_launcher.tell(5, Update(1, 1))
    LauncherClient(fake_launcher.address, launchers.SECRET, 5).close()
    fake_launcher.tell(5, Update(1, 1))
    LauncherClient(fake_launcher.address, launchers.SECRET, 6).close()


def test_a_worker_may_be_found_gone_before_its_end_is_read_in_the_same_turn(fake_launcher):
    client = LauncherClient(fake_launcher.address, launchers.SECRET, 5)
    fake_launcher.wait_for_worker(5)
    turns = Queue()

    def turn():
        client.close()
        read = [key.data for key, _ in fake_launcher.selector.select(SECONDS)]
        fake_launcher.server.tell(5, Update(1, 1))
        turns.put([each() for each in read])

    fake_launcher.do(turn)
    assert turns.get(timeout=SECONDS) == [None]
    LauncherClient(fake_launcher.address, launchers.SECRET, 6).close()


def test_who_has_no_proof_is_hung_up_on_and_disturbs_nobody(fake_launcher):
    with pytest.raises(BoardLostError, match=r"at unix:.* does not let worker 0 in: .* proof"):
        LauncherClient(fake_launcher.address, Secret(bytes(32)), 0)
    for words in (b"GET / HTTP/1.1\r\n" * 10, b"\xff" * 8):
        line = stranger(fake_launcher)
        line.send([words])
        assert is_hung_up_on(line)
        line.close()
    client = LauncherClient(fake_launcher.address, launchers.SECRET, 4)
    client._line.send(CODEC.encode(Ready()))
    assert fake_launcher.heard.get(timeout=SECONDS) == (4, Ready())
    assert fake_launcher.heard.empty()
    client.close()


def test_a_worker_of_another_version_is_told_both(fake_launcher, monkeypatch):
    monkeypatch.setattr(greetings.Hello.__init__, "__defaults__", ("9.1.0",))
    ours = re.escape(__version__)
    words = rf"worker 3 in: it runs lockstitch {ours} \(on host .+\), its caller 9\.1\.0"
    with pytest.raises(BoardLostError, match=words):
        LauncherClient(fake_launcher.address, launchers.SECRET, 3)


def test_a_worker_that_says_no_message_is_hung_up_on(fake_launcher):
    client = LauncherClient(fake_launcher.address, launchers.SECRET, 4)
    client._line.send(b"[]")
    with pytest.raises(BoardLostError):
        client.next_place()
    client.close()


def test_of_many_who_say_nothing_the_first_are_hung_up_on(tmp_path):
    with launchers.FakeLauncher(tmp_path, most_guests=4) as fake_launcher:
        lines = [stranger(fake_launcher) for _ in range(6)]
        try:
            assert is_hung_up_on(lines[0])
            LauncherClient(fake_launcher.address, launchers.SECRET, 1).close()
        finally:
            for line in lines:
                line.close()


def come_all_at_once(address, count):
    """Clients in threads of their own, connected at the same moment."""
    start, clients, failures = threading.Barrier(count), {}, []

    def come(number):
        start.wait(SECONDS)
        try:
            clients[number] = LauncherClient(address, launchers.SECRET, number)
        except BoardLostError as error:
            failures.append(error)

    threads = [threading.Thread(target=come, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients.values():
        client.close()
    return len(clients), failures


@pytest.mark.parametrize("address", [None, "tcp:127.0.0.1:0"], ids=["unix", "tcp"])
def test_128_workers_may_come_at_once(tmp_path, address):
    with launchers.FakeLauncher(tmp_path, address) as fake_launcher:
        assert come_all_at_once(fake_launcher.address, 128) == (128, [])


def test_who_is_hung_up_on_for_being_many_comes_again(tmp_path):
    with launchers.FakeLauncher(tmp_path, most_guests=2) as fake_launcher:
        assert come_all_at_once(fake_launcher.address, 24) == (24, [])


@pytest.mark.slow
def test_4096_workers_may_come_at_once(tmp_path):
    """Each is a handshake without a thread, and all connect before the launcher looks at any."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count, needed = 4096, 2 * 4096 + 100
    if hard < needed:
        pytest.skip(f"needs {needed} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    heard = []
    try:
        with selectors.DefaultSelector() as selector:
            server = LauncherServer(
                selector, launchers.SECRET, lambda *said: heard.append(said), f"unix:{tmp_path}/b"
            )
            callers = [Caller(server.address, number) for number in range(count)]
            for caller in callers:
                selector.register(caller.stream, selectors.EVENT_READ, caller.listen)
            while not all(caller.is_in for caller in callers):
                for key, _ in selector.select(SECONDS):
                    key.data()
            assert len(server._lines) == count
            for caller in callers:
                selector.unregister(caller.stream)
                caller.stream.close()
            server.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Caller:
    """A worker's first words."""

    def __init__(self, address, number):
        self.stream = connect(address, SECONDS)
        self.is_in = False
        self._reader = GreetingReader()
        self._handshake = CallerHandshake(
            worker_info(number), LAUNCHER.worker, ("", ""), launchers.SECRET
        )
        self.stream.send([self._handshake.opening])

    def listen(self):
        counts = []
        self.stream.receive_into(self._reader.space(), counts, 0)
        assert counts[0], "it was hung up on"
        greeting = self._reader.absorb(counts[0])
        if greeting is not None:
            answer = self._handshake.take(greeting)
            if answer:
                self.stream.send([answer])
            self.is_in = self._handshake.welcome is not None


def test_a_worker_that_falls_silent_is_told_of_within_the_bound(tmp_path):
    clock, silent = ManualClock(), []
    with selectors.DefaultSelector() as selector:
        server = LauncherServer(
            selector,
            launchers.SECRET,
            lambda *_said: None,
            "tcp:127.0.0.1:0",
            clock,
            heartbeat=10.0,
            note_silence=lambda *said: silent.append(said),
        )
        callers = [Caller(server.address, number) for number in range(2)]
        for caller in callers:
            selector.register(caller.stream, selectors.EVENT_READ, caller.listen)
        while len(server._lines) < 2 or not all(caller.is_in for caller in callers):
            for key, _ in selector.select(SECONDS):
                key.data()
        began = clock.now()
        while not silent:
            assert clock.now() - began < 10.0
            next(iter(server._lines.values())).heard += 1  # the first to come says something
            clock.advance(server.seconds_to_next())
            server.pass_time()
        (first,) = server._lines
        assert silent == [(1 - first, "it has been silent for 10 s")]
        for caller in callers:
            selector.unregister(caller.stream)
            caller.stream.close()
        server.close()


def test_who_says_nothing_for_long_is_hung_up_on(tmp_path):
    clock = ManualClock()
    with selectors.DefaultSelector() as selector:
        secret = launchers.SECRET
        server = LauncherServer(selector, secret, lambda *_said: None, f"unix:{tmp_path}/b", clock)
        assert server.seconds_to_next() is None
        line = connect(server.address, SECONDS)
        for key, _ in selector.select(SECONDS):
            key.data()
        assert server.seconds_to_next() == 30.0
        clock.advance(30.5)
        server.pass_time()
        assert is_hung_up_on(line)
        assert server.seconds_to_next() is None
        server.close()
        assert not selector.get_map()
        line.close()


def test_over_tcp_the_port_is_one_that_is_free(tmp_path):
    with launchers.FakeLauncher(tmp_path, "tcp:127.0.0.1:0") as fake_launcher:
        assert int(fake_launcher.address.rpartition(":")[2]) > 0
        client = LauncherClient(fake_launcher.address, launchers.SECRET, 0)
        client.close()


def test_where_no_more_files_can_be_opened_one_looks_again_after_a_while(tmp_path, monkeypatch):
    clock = ManualClock()
    with selectors.DefaultSelector() as selector:
        server = LauncherServer(
            selector, launchers.SECRET, lambda *_said: None, f"unix:{tmp_path}/a", clock
        )
        with monkeypatch.context() as full:
            full.setattr(socket.socket, "accept", Mock(side_effect=OSError(errno.EMFILE, "full")))
            line = connect(server.address, SECONDS)
            for key, _ in selector.select(SECONDS):
                key.data()
        server.listen(f"unix:{tmp_path}/b")
        assert selector.select(0) == []  # it would be told of for ever
        clock.advance(server.seconds_to_next())
        server.pass_time()
        for key, _ in selector.select(SECONDS):
            key.data()
        assert len(server._door) == 1
        line.close()
        server.close()
