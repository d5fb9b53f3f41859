from __future__ import annotations

import socket
from queue import Queue

import pytest

from lockstitch.board import BoardClient, Ready, Update
from lockstitch.board.line import CHALLENGE_SIZE, Line
from lockstitch.board.messages import Hello
from tests.unit.board import desks

SECONDS = 60


@pytest.fixture
def desk(tmp_path):
    with desks.Desk(tmp_path) as desk:
        yield desk


def stranger(desk):
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(SECONDS)
    line.connect(desk.address.removeprefix("unix:"))
    return line


def hears_nothing_more(line):
    while line.recv(1 << 10):
        pass
    return True


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
    with stranger(desk) as line:
        assert len(line.recv(CHALLENGE_SIZE)) == CHALLENGE_SIZE


def test_who_has_no_proof_is_hung_up_on_and_disturbs_nobody(desk):
    with stranger(desk) as line:
        challenge = line.recv(CHALLENGE_SIZE)
        line.sendall(Line(b"guess", challenge, is_launcher=False).send(Hello(0)))
        assert hears_nothing_more(line)
    with stranger(desk) as line:
        line.recv(CHALLENGE_SIZE)
        line.sendall(b"GET / HTTP/1.1\r\n" * 10)
        assert hears_nothing_more(line)
    with stranger(desk) as line:
        mine = Line(desks.SECRET, line.recv(CHALLENGE_SIZE), is_launcher=False)
        line.sendall(mine.send(Hello(4)) + mine.send(Ready()))
        assert desk.heard.get(timeout=SECONDS) == (4, Ready())
    assert desk.heard.empty()


def test_what_comes_before_a_hello_is_not_heard(desk):
    with stranger(desk) as line:
        mine = Line(desks.SECRET, line.recv(CHALLENGE_SIZE), is_launcher=False)
        line.sendall(mine.send(Ready()) + mine.send(Hello(1)) + mine.send(Ready()))
        assert desk.heard.get(timeout=SECONDS) == (1, Ready())
    assert desk.heard.empty()


def test_of_many_who_say_nothing_the_first_are_hung_up_on(desk):
    lines = [stranger(desk) for _ in range(66)]
    try:
        assert hears_nothing_more(lines[0])
        assert len(lines[-1].recv(CHALLENGE_SIZE)) == CHALLENGE_SIZE
    finally:
        for line in lines:
            line.close()


def test_over_tcp_the_port_is_one_that_is_free(tmp_path):
    with desks.Desk(tmp_path, "tcp:127.0.0.1:0") as desk:
        assert int(desk.address.rpartition(":")[2]) > 0
        client = BoardClient(desk.address, desks.SECRET, 0)
        client.close()
