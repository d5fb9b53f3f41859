from __future__ import annotations

import threading
from queue import Queue

import pytest

from lockstitch.errors import BoardLostError
from lockstitch.launcher_link import LauncherClient, Over, RankAssignment, Ready, Update, Void
from lockstitch.launcher_link.client import ADDRESS, WORKER
from lockstitch.trust.secret import VARIABLE
from tests.unit.launcher_link import launchers

PLACE = RankAssignment(1, 0, 2, "file:///world-1")
SECONDS = 60


@pytest.fixture
def fake_launcher(tmp_path):
    with launchers.FakeLauncher(tmp_path) as fake_launcher:
        yield fake_launcher


@pytest.fixture
def client(fake_launcher):
    client = LauncherClient(fake_launcher.address, launchers.SECRET, 7)
    yield client
    client.close()


def place_of(fake_launcher, client, answer):
    """What the client is told when it asks for a place."""
    told = []
    thread = threading.Thread(target=lambda: told.append(client.next_place()))
    thread.start()
    assert fake_launcher.heard.get(timeout=SECONDS) == (7, Ready())
    fake_launcher.tell(7, answer)
    thread.join(SECONDS)
    return told[0]


def test_worker_asks_for_a_place_and_waits_until_it_is_told(fake_launcher, client):
    assert place_of(fake_launcher, client, PLACE) == PLACE
    later = RankAssignment(2, 0, 1, "file:///world-2")
    assert place_of(fake_launcher, client, later) == later


def test_worker_is_told_that_there_is_no_place_any_more(fake_launcher, client):
    assert place_of(fake_launcher, client, Over("the end")) == Over("the end")


def test_updates_are_passed_on_again_and_again(fake_launcher, client):
    heard = Queue()
    client.on_update = heard.put
    place_of(fake_launcher, client, PLACE)
    for number in (1, 2):
        fake_launcher.tell(7, Update(number, 2))
        assert heard.get(timeout=SECONDS) == Update(number, 2)
    assert client.last_update == Update(2, 2)


def test_an_update_is_settled_by_the_next_place(fake_launcher, client):
    heard = Queue()
    client.on_update = heard.put
    fake_launcher.wait_for_worker(7)
    fake_launcher.tell(7, Update(1, 2))
    heard.get(timeout=SECONDS)
    place_of(fake_launcher, client, PLACE)
    assert client.last_update is None


def test_a_world_is_void_only_for_who_is_in_it(fake_launcher, client):
    void, heard = Queue(), Queue()
    client.on_void, client.on_update = void.put, heard.put
    place_of(fake_launcher, client, PLACE)
    fake_launcher.tell(7, Void(0))
    fake_launcher.tell(7, Void(1))
    fake_launcher.tell(7, Update(1, 1))
    assert heard.get(timeout=SECONDS) == Update(1, 1)
    assert void.get(timeout=SECONDS) == PLACE
    assert void.empty()


def test_a_launcher_that_goes_away_ends_the_wait(fake_launcher, client):
    raised = []

    def ask():
        try:
            client.next_place()
        except BoardLostError as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    fake_launcher.heard.get(timeout=SECONDS)
    fake_launcher.do(fake_launcher.server.close)
    thread.join(SECONDS)
    assert "the launcher is gone" in str(raised[0])
    with pytest.raises(BoardLostError):
        client.next_place()


def test_where_the_launcher_is_stands_in_the_environment(fake_launcher):
    assert LauncherClient.from_environment({}) is None
    client = LauncherClient.from_environment(
        {ADDRESS: fake_launcher.address, VARIABLE: "5a" * 32, WORKER: "7"}
    )
    try:
        assert place_of(fake_launcher, client, PLACE) == PLACE
    finally:
        client.close()


def test_no_launcher_at_the_address_is_told_with_it(tmp_path):
    with pytest.raises(BoardLostError, match="cannot be reached at unix:"):
        LauncherClient(f"unix:{tmp_path}/nobody", launchers.SECRET, 0)


def test_a_launcher_that_falls_silent_is_gone(tmp_path):
    with launchers.FakeLauncher(tmp_path, "tcp:127.0.0.1:0") as fake_launcher:  # it never pings
        client = LauncherClient(fake_launcher.address, launchers.SECRET, 7, heartbeat=0.2)
        with pytest.raises(BoardLostError, match="is gone: it has been silent for 0.2 s"):
            client.next_place()
        client.close()


def test_a_launcher_that_is_not_there_is_told_at_once_with_what_to_look_at(tmp_path):
    with pytest.raises(BoardLostError, match=r"cannot be reached at unix:.* from .*ended\?"):
        LauncherClient(f"unix:{tmp_path}/none", launchers.SECRET, 7)
    with pytest.raises(BoardLostError, match=r"tcp:127\.0\.0\.1:1 .*a firewall"):
        LauncherClient("tcp:127.0.0.1:1", launchers.SECRET, 7)
