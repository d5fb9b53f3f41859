from __future__ import annotations

import re
import selectors
from queue import Queue

import pytest

from lockstitch import __version__
from lockstitch.board import BoardClient, BoardServer, Ready, Update
from lockstitch.board.messages import CODEC
from lockstitch.errors import BoardLostError
from lockstitch.link import greetings
from lockstitch.link.sockets import connect
from lockstitch.testing import ManualClock
from lockstitch.trust import Secret
from tests.unit.board import desks

SECONDS = 60


@pytest.fixture
def desk(tmp_path):
    with desks.Desk(tmp_path) as desk:
        yield desk


def stranger(desk):
    return connect(desk.address, SECONDS)


def is_hung_up_on(stream):
    counts = []
    try:
        stream.receive_into(memoryview(bytearray(1 << 10)), counts, SECONDS)
    except ConnectionError:
        return True
    return counts == [0]


def test_what_is_told_reaches_the_worker_that_it_is_for(desk):
    clients = [BoardClient(desk.address, desks.SECRET, number) for number in range(3)]
    try:
        heard = Queue()
        for number, client in enumerate(clients):
            client.on_update = heard.put
            desk.wait_for_worker(number)
            desk.tell(number, Update(number + 1, 2))
            assert heard.get(timeout=SECONDS) == Update(number + 1, 2)
        assert [client.last_update.number for client in clients] == [1, 2, 3]
    finally:
        for client in clients:
            client.close()


def test_telling_a_worker_that_is_gone_does_nothing(desk):
    desk.tell(5, Update(1, 1))
    BoardClient(desk.address, desks.SECRET, 5).close()
    desk.tell(5, Update(1, 1))
    BoardClient(desk.address, desks.SECRET, 6).close()


def test_who_has_no_proof_is_hung_up_on_and_disturbs_nobody(desk):
    with pytest.raises(BoardLostError, match=r"at unix:.* does not let worker 0 in: .* proof"):
        BoardClient(desk.address, Secret(bytes(32)), 0)
    for words in (b"GET / HTTP/1.1\r\n" * 10, b"\xff" * 8):
        line = stranger(desk)
        line.send([words])
        assert is_hung_up_on(line)
        line.close()
    client = BoardClient(desk.address, desks.SECRET, 4)
    client._line.send(CODEC.encode(Ready()))
    assert desk.heard.get(timeout=SECONDS) == (4, Ready())
    assert desk.heard.empty()
    client.close()


def test_a_worker_of_another_version_is_told_both(desk, monkeypatch):
    monkeypatch.setattr(greetings.Hello.__init__, "__defaults__", ("9.1.0",))
    words = rf"worker 3 in: .* runs lockstitch 9\.1\.0, this worker {re.escape(__version__)}"
    with pytest.raises(BoardLostError, match=words):
        BoardClient(desk.address, desks.SECRET, 3)


def test_a_worker_that_says_no_message_is_hung_up_on(desk):
    client = BoardClient(desk.address, desks.SECRET, 4)
    client._line.send(b"[]")
    with pytest.raises(BoardLostError):
        client.next_place()
    client.close()


def test_of_many_who_say_nothing_the_first_are_hung_up_on(desk):
    lines = [stranger(desk) for _ in range(66)]
    try:
        assert is_hung_up_on(lines[0])
        BoardClient(desk.address, desks.SECRET, 1).close()
    finally:
        for line in lines:
            line.close()


def test_who_says_nothing_for_long_is_hung_up_on(tmp_path):
    clock = ManualClock()
    with selectors.DefaultSelector() as selector:
        secret = desks.SECRET
        server = BoardServer(selector, secret, lambda *_said: None, f"unix:{tmp_path}/b", clock)
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
    with desks.Desk(tmp_path, "tcp:127.0.0.1:0") as desk:
        assert int(desk.address.rpartition(":")[2]) > 0
        client = BoardClient(desk.address, desks.SECRET, 0)
        client.close()
