"""Opening a store from each kind of URL, and waiting for keys."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading

import pytest
from torch.distributed import (
    DistNetworkError,
    FileStore,
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)

from lockstitch.link.pulse import VARIABLE
from lockstitch.link.sockets import _sockets_of_tcp
from lockstitch.rendezvous.arrivals import ARRIVALS
from lockstitch.rendezvous.store import another_client, missing_keys, open_store, read_all
from tests.unit.rendezvous.groups import each_kind_of_store, new_store
from tests.unit.runtime.stage import Background, wait_until

ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LAUNCHERS = "LOCKSTITCH_STORE"


@pytest.fixture
def environment(monkeypatch):
    for name in (*ENVIRONMENT, LAUNCHERS):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("world_size", [None, 0, 2])
def test_a_file_is_opened_with_or_without_a_number_of_ranks(tmp_path, world_size):
    url = f"file://{tmp_path}/store"
    one, other = open_store(url, 0, world_size), open_store(url, 1, world_size)
    one.set("key", "value")
    assert other.get("key") == b"value"


def test_the_file_outlives_its_users(tmp_path):
    url = f"file://{tmp_path}/store"
    stores = [open_store(url, rank, 2) for rank in range(2)]
    stores[0].set("key", "value")
    stores.clear()
    gc.collect()
    assert open_store(url, 0, 2).get("key") == b"value"


def test_a_process_group_may_use_the_same_file(tmp_path):
    ours = open_store(f"file://{tmp_path}/store", 0, 2)
    theirs = FileStore(str(tmp_path / "store"), 2)
    theirs.set("key", "theirs")
    assert not ours.check(["key"])
    ours.set("key", "ours")
    assert theirs.get("key") == b"theirs"


def test_an_address_where_nobody_listens_is_named():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(DistNetworkError, match=f"rank 1 did not meet the others at {url}"):
            open_store(url, 1, 2, timeout_seconds=1.0)


@pytest.mark.parametrize("world_size", [None, 1])
def test_tcp_is_opened_and_hosted_by_rank_0(world_size):
    probe = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = probe.port
    del probe
    store = open_store(f"tcp://127.0.0.1:{port}", 0, world_size)
    other = open_store(TCPStore("127.0.0.1", port, is_master=False), 1, world_size)
    store.set("key", "value")
    assert other.get("key") == b"value"


def test_env_takes_rank_and_size_from_the_environment(environment):
    probe = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = probe.port
    del probe
    for name, value in zip(ENVIRONMENT, ("0", "1", "127.0.0.1", str(port)), strict=True):
        environment.setenv(name, value)
    assert open_store("env://", -1, None).add("count", 1) == 1


def test_env_means_the_launchers_file_as_long_as_the_port_is_its_own(environment, tmp_path):
    environment.setenv("MASTER_PORT", "29500")
    environment.setenv(LAUNCHERS, str(tmp_path / "29500"))
    open_store("env://", 3, None).set("key", "value")
    assert open_store(f"file://{tmp_path}/29500", 0, None).get("key") == b"value"
    environment.setenv("MASTER_PORT", "29501")  # the program means another job
    with pytest.raises(ValueError, match="expected, but not set"):
        open_store("env://", 3, None)


def test_a_given_store_is_used_under_our_prefix():
    given = HashStore()
    store = open_store(given, -1, None)
    store.set("key", "value")
    assert isinstance(store, PrefixStore)
    assert not given.check(["key"])
    assert open_store(given, 1, 2).get("key") == b"value"


@pytest.mark.parametrize("world_size", [None, 2])
@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("file:///tmp/store", "rank parameter missing"),
        ("tcp://127.0.0.1:29500", "rank parameter missing"),
        ("tcp://127.0.0.1", "port number missing"),
        ("env://", "environment variable RANK expected, but not set"),
    ],
)
def test_what_is_missing_is_said_in_torchs_words(environment, url, complaint, world_size):
    with pytest.raises(ValueError, match=complaint):
        open_store(url, -1, world_size)


def test_an_unknown_scheme_is_refused():
    with pytest.raises(RuntimeError, match="No rendezvous handler for nope://"):
        open_store("nope://", 0, 1)


@pytest.mark.parametrize(
    ("url", "port", "error", "advice"),
    [
        ("/tmp/place", "29500", RuntimeError, r"file:///path or env://, not '/tmp/place'"),
        ("env://", None, ValueError, r"MASTER_PORT expected, .* lockstitch run -n N"),
        ("env://", "http", ValueError, r"'http'\. .*MASTER_PORT are numbers"),
    ],
)
def test_it_is_said_what_to_do(environment, url, port, error, advice):
    environment.setenv("MASTER_ADDR", "127.0.0.1")
    if port is not None:
        environment.setenv("MASTER_PORT", port)
    with pytest.raises(error, match=advice):
        open_store(url, 0, 1)


@each_kind_of_store
def test_waiting_ends_when_all_keys_are_there(kind, tmp_path):
    store = new_store(kind, tmp_path)
    outcomes = []
    store.set("a", "1")
    waiter = threading.Thread(target=lambda: outcomes.append(missing_keys(store, ["a", "b"], 30)))
    waiter.start()
    waiter.join(0.01)
    store.set("b", "2")  # the wait does not keep the store to itself
    waiter.join()
    assert outcomes == [[]]
    assert read_all(store, ["b", "a"]) == [b"2", b"1"]


def test_keys_that_do_not_come_are_named():
    store = HashStore()
    store.set("a", "1")
    assert missing_keys(store, ["a", "b", "c"], 0.01) == ["b", "c"]


def test_nothing_is_read_when_nothing_is_wanted():
    assert read_all(HashStore(), []) == []


def test_a_file_in_a_folder_that_does_not_exist_is_named_at_once(tmp_path):
    with pytest.raises(ValueError, match=f"no folder '{tmp_path}/none'"):
        open_store(f"file://{tmp_path}/none/store", 0, 2, timeout_seconds=300)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_torchruns_own_store_is_met_and_another_address_hosted(environment):
    agents = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    environment.setenv("MASTER_ADDR", "127.0.0.1")
    environment.setenv("MASTER_PORT", str(agents.port))
    for url in (f"tcp://127.0.0.1:{agents.port}", f"tcp://127.0.0.1:{free_port()}"):
        stores = [open_store(url, rank, 2, timeout_seconds=5.0) for rank in (0, 1)]
        stores[0].set("key", url)
        assert stores[1].get("key") == url.encode()


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_who_hosts_at_an_address_that_is_not_its_own_says_so(capfd, environment, host):
    environment.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    store = open_store(f"tcp://{host}:{free_port()}", 0, 2, timeout_seconds=5.0)
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert "hosts the meeting, but others may not find it" in capfd.readouterr().err


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(DistNetworkError, match="another program listens at that port"):
            open_store(url, 0, 2, timeout_seconds=5.0)


def test_who_waits_is_told_once_which_keys_are_missing():
    store = HashStore()
    store.set("a", "1")
    told = []

    def notice(missing):
        told.append(missing)
        store.set("b", "2")

    assert missing_keys(store, ["a", "b"], 30, notice, notice_seconds=0.01) == []
    assert told == [["b"]]


def silence_of(port):
    """Until when each connection to that port may be silent, in ms."""
    found = []
    for sock in _sockets_of_tcp():
        with contextlib.suppress(OSError):  # it is connected to nobody
            if sock.getpeername()[1] == port:
                name = socket.TCP_USER_TIMEOUT
                found.append(sock.getsockopt(socket.IPPROTO_TCP, name))
    return found


def test_connections_to_the_store_end_when_its_host_falls_silent(environment):
    environment.setenv(VARIABLE, "2.5")
    hosted = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ours = open_store(f"tcp://127.0.0.1:{hosted.port}", 1, 2)
    assert sorted(silence_of(hosted.port)) == [0, 2000]  # one is not ours
    waits = another_client(ours)
    assert sorted(silence_of(hosted.port)) == [0, 2000, 2000]
    environment.setenv(VARIABLE, "0")
    more = another_client(ours)
    assert sorted(silence_of(hosted.port)) == [0, 0, 2000, 2000]
    del waits, more


def test_what_a_program_opens_meanwhile_may_be_silent_as_long_as_before(environment):
    environment.setenv(VARIABLE, "2.5")
    with socket.create_server(("127.0.0.1", 0)) as other, socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        opened = Background(open_store, f"tcp://127.0.0.1:{port}", 1, 2)
        wait_until(lambda: ARRIVALS.waits(None))
        with socket.create_connection(other.getsockname()):
            reserved.close()
            hosted = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
            ours = opened.result()
            assert 2000 in silence_of(port)
            assert silence_of(other.getsockname()[1]) == [0]
        del ours, hosted


class LostStore(Store):
    """Its host is cut off."""

    def clone(self):
        return self

    def wait(self, keys, *_timeout):
        raise DistNetworkError("recvValueWithTimeout failed")

    check = wait


def test_who_waits_in_a_store_that_is_lost_is_told_so():
    with pytest.raises(DistNetworkError, match="can be reached no more from host"):
        missing_keys(LostStore(), ["a"], 30)
