from __future__ import annotations

import threading
from queue import Queue

import pytest

from lockstitch.board import BoardClient, Over, Place, Ready, Update, Void
from lockstitch.board.client import ADDRESS, WORKER
from lockstitch.errors import BoardLostError
from lockstitch.trust.secret import VARIABLE
from tests.unit.board import desks

PLACE = Place(1, 0, 2, "file:///world-1")
SECONDS = 60


@pytest.fixture
def desk(tmp_path):
    with desks.Desk(tmp_path) as desk:
        yield desk


@pytest.fixture
def client(desk):
    client = BoardClient(desk.address, desks.SECRET, 7)
    yield client
    client.close()


def place_of(desk, client, answer):
    """What the client is told when it asks for a place."""
    told = []
    thread = threading.Thread(target=lambda: told.append(client.next_place()))
    thread.start()
    assert desk.heard.get(timeout=SECONDS) == (7, Ready())
    desk.tell(7, answer)
    thread.join(SECONDS)
    return told[0]


def test_worker_asks_for_a_place_and_waits_until_it_is_told(desk, client):
    assert place_of(desk, client, PLACE) == PLACE
    later = Place(2, 0, 1, "file:///world-2")
    assert place_of(desk, client, later) == later


def test_worker_is_told_that_there_is_no_place_any_more(desk, client):
    assert place_of(desk, client, Over("the end")) == Over("the end")


def test_updates_are_passed_on_again_and_again(desk, client):
    heard = Queue()
    client.on_update = heard.put
    place_of(desk, client, PLACE)
    for number in (1, 2):
        desk.tell(7, Update(number, 2))
        assert heard.get(timeout=SECONDS) == Update(number, 2)
    assert client.last_update == Update(2, 2)


def test_an_update_is_settled_by_the_next_place(desk, client):
    heard = Queue()
    client.on_update = heard.put
    desk.wait_for_worker(7)
    desk.tell(7, Update(1, 2))
    heard.get(timeout=SECONDS)
    place_of(desk, client, PLACE)
    assert client.last_update is None


def test_a_world_is_void_only_for_who_is_in_it(desk, client):
    void, heard = Queue(), Queue()
    client.on_void, client.on_update = void.put, heard.put
    place_of(desk, client, PLACE)
    desk.tell(7, Void(0))
    desk.tell(7, Void(1))
    desk.tell(7, Update(1, 1))
    assert heard.get(timeout=SECONDS) == Update(1, 1)
    assert void.get(timeout=SECONDS) == PLACE
    assert void.empty()


def test_a_launcher_that_goes_away_ends_the_wait(desk, client):
    raised = []

    def ask():
        try:
            client.next_place()
        except BoardLostError as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    desk.heard.get(timeout=SECONDS)
    desk.do(desk.server.close)
    thread.join(SECONDS)
    assert "the launcher is gone" in str(raised[0])
    with pytest.raises(BoardLostError):
        client.next_place()


def test_where_the_board_is_stands_in_the_environment(desk):
    assert BoardClient.from_environment({}) is None
    client = BoardClient.from_environment({ADDRESS: desk.address, VARIABLE: "5a" * 32, WORKER: "7"})
    try:
        assert place_of(desk, client, PLACE) == PLACE
    finally:
        client.close()


def test_no_launcher_at_the_address_is_told_with_it(tmp_path):
    with pytest.raises(BoardLostError, match="cannot be reached at unix:"):
        BoardClient(f"unix:{tmp_path}/nobody", desks.SECRET, 0)
