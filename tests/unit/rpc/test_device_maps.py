"""What is checked of device maps before anybody calls; no device is needed for that."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.distributed import HashStore, Store

from lockstitch.errors import RemoteProtocolError
from lockstitch.rendezvous import join, large_group, static_group
from lockstitch.rpc import device_maps
from lockstitch.rpc.device_maps import DeviceUse, agree, check, check_alone
from lockstitch.rpc.joining import kind_of
from lockstitch.rpc.options import TensorPipeRpcBackendOptions

FIRST, SECOND, HOST = torch.device("cuda:0"), torch.device("cuda:1"), torch.device("cpu")


def use(count: int | None = 2, devices=(), **maps) -> DeviceUse:
    return DeviceUse(maps, tuple(devices), count)


def test_what_is_published_is_read_again_and_nothing_where_there_is_no_map() -> None:
    options = TensorPipeRpcBackendOptions(device_maps={"w": {0: "cpu", "cpu": 1}}, devices=[1])
    published = DeviceUse.of(options).encode()
    assert DeviceUse.decode(published, 3) == use(3, [SECOND], w={FIRST: HOST, HOST: SECOND})
    assert DeviceUse.of(TensorPipeRpcBackendOptions()).encode() == ""
    assert DeviceUse.decode("", 3) == use(3)


@pytest.mark.parametrize("text", ["x", "1", "[1, 2]", "[[], []]", '[{"w": [["x", "y"]]}, []]'])
def test_what_is_no_map_is_the_peers_fault(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="no worker's device map"):
        DeviceUse.decode(text)


def test_maps_that_can_be_are_let_pass() -> None:
    check({"a": use(2, b={FIRST: SECOND, HOST: FIRST}, a={SECOND: HOST}), "b": use(2)})
    check({"a": use(2, [FIRST], b={FIRST: SECOND, HOST: HOST}), "b": use(2, [SECOND])})


@pytest.mark.parametrize(
    ("uses", "told"),
    [
        ({"a": use(2, [FIRST, FIRST])}, "Node a has duplicated devices"),
        ({"a": use(1, [SECOND])}, "Node a has devices with invalid indices"),
        ({"a": use(c={FIRST: FIRST})}, "Node a has invalid target node names in its device maps"),
        (
            {"a": use(b={FIRST: HOST, SECOND: HOST}), "b": use()},
            "Node a has duplicated target devices in its device map for b",
        ),
        (
            {"a": use(1, b={SECOND: FIRST}), "b": use()},
            "Node a has source devices with invalid indices in its device map for b",
        ),
        (
            {"a": use(b={FIRST: SECOND}), "b": use(1)},
            "Node a has target devices with invalid indices in its device map for b",
        ),
        (
            {"a": use(2, [SECOND], b={FIRST: FIRST}), "b": use()},
            "Node a has unexpected source devices in its device map for b",
        ),
        (
            {"a": use(b={FIRST: SECOND}), "b": use(2, [FIRST])},
            "Node a has unexpected target devices in its device map for b",
        ),
        (
            {"a": use(b={torch.device("xpu:0"): HOST}), "b": use()},
            "Node a has source devices with invalid indices in its device map for b",
        ),
    ],
)
def test_maps_that_cannot_be_are_refused_in_the_incumbents_words(uses, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check(uses)


def test_where_workers_come_and_go_targets_may_still_be_to_come(monkeypatch) -> None:
    monkeypatch.setattr(device_maps, "count_devices", lambda: 1)
    monkeypatch.setattr(device_maps, "initialise", lambda name, uses: None)
    check_alone("a", DeviceUse({"c": {FIRST: SECOND}}))
    with pytest.raises(ValueError, match="Node a has source devices with invalid indices"):
        check_alone("a", DeviceUse({"c": {SECOND: FIRST}}))


def test_nobody_asks_for_devices_where_no_map_is(monkeypatch) -> None:
    def ask():
        raise AssertionError("asked for devices")

    monkeypatch.setattr(device_maps, "count_devices", ask)
    check_alone("a", DeviceUse())
    agree(HashStore(), join(HashStore(), "a", 0, 1, ["x"]), 1)


def agree_all(
    maps: list[DeviceUse], monkeypatch, count: int = 1, store: Store | None = None
) -> list[Exception | None]:
    monkeypatch.setattr(device_maps, "count_devices", lambda: count)
    monkeypatch.setattr(device_maps, "initialise", lambda name, uses: None)
    outcomes: list[Exception | None] = [None] * len(maps)
    shared = HashStore()

    def come(rank: int) -> None:
        text = maps[rank].encode()
        kind = kind_of(["tcp:h:1"], text)
        roster = join(shared, f"w{rank}", rank, len(maps), ["x"], 20, devices=text, kind=kind)
        try:
            agree(store or shared, roster, 20)
        except ValueError as error:
            outcomes[rank] = error

    threads = [
        threading.Thread(target=come, args=(rank,), name=f"worker {rank}")
        for rank in range(len(maps))
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return outcomes


def test_all_workers_of_a_static_group_agree_or_none_does(monkeypatch) -> None:
    fine = DeviceUse({"w1": {FIRST: FIRST}})
    assert agree_all([fine, DeviceUse()], monkeypatch) == [None, None]
    beyond = DeviceUse({"w1": {FIRST: SECOND}})
    for error in agree_all([DeviceUse(), DeviceUse(), beyond], monkeypatch):
        assert "Node w2 has target devices with invalid indices" in str(error)


@pytest.fixture
def blocks_of_three(monkeypatch) -> None:
    for module in (static_group, device_maps):
        monkeypatch.setattr(module, "MOST_WHO_READ_ALL", 4)
    monkeypatch.setattr(static_group, "BLOCK", 3)


@pytest.mark.usefixtures("blocks_of_three")
def test_all_workers_of_a_large_group_agree_or_none_does(monkeypatch) -> None:
    fine = DeviceUse({"w7": {FIRST: FIRST}})
    assert agree_all([fine] + [DeviceUse()] * 9, monkeypatch) == [None] * 10
    beyond, nobody = DeviceUse({"w1": {FIRST: SECOND}}), DeviceUse({"w99": {FIRST: FIRST}})
    named = {
        "Node w5 has target devices with invalid indices": [*[DeviceUse()] * 5, beyond],
        "Node w0 has invalid target node names": [nobody, *[DeviceUse()] * 4, beyond],
    }
    for told, maps in named.items():
        for error in agree_all(maps, monkeypatch):
            assert told in str(error)


@pytest.mark.usefixtures("blocks_of_three")
def test_gpus_are_initialised_where_somebody_far_maps_to_them(monkeypatch) -> None:
    initialised = []
    monkeypatch.setattr(
        device_maps,
        "initialise_gpus",
        lambda: initialised.append(threading.current_thread().name),
    )
    agree_all(
        [DeviceUse({"w7": {HOST: FIRST}, "w3": {HOST: HOST}})] + [DeviceUse()] * 9, monkeypatch
    )
    assert initialised == ["worker 7"]


@pytest.mark.usefixtures("blocks_of_three")
def test_no_worker_of_a_large_group_reads_what_all_others_say(monkeypatch) -> None:
    read: list[int] = []

    def read_all(store: Store, keys: list[str]) -> list[bytes]:
        read.append(len(keys))
        return whole(store, keys)

    whole = large_group.read_all
    for module in (large_group, device_maps):
        monkeypatch.setattr(module, "read_all", read_all)
    monkeypatch.setattr(static_group, "read_all", None)
    mapped = DeviceUse({"w2": {FIRST: FIRST}})
    assert agree_all([mapped] * 20, monkeypatch) == [None] * 20
    assert max(read) <= 3
