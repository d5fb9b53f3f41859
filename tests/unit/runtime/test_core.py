"""What the parts of an agent share."""

from __future__ import annotations

import pytest
import torch

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.devices.kinds import HOST
from lockstitch.ids import WorkerInfo
from lockstitch.runtime.core import AgentOptions, Core
from lockstitch.transport.memory import MemoryNetwork

GPU = torch.device("cuda:0")


@pytest.fixture
def core():
    poller = MemoryNetwork().transport("w").poller()
    options = AgentOptions(device_maps={"peer": {HOST: GPU}})
    info = WorkerInfo("w", 0)
    core = Core(info, SYSTEM_CLOCK, options, poller, lambda: None, lambda _now: None)
    yield core
    assert core.close(0, 0) == []


def test_a_device_map_is_made_once_for_the_peer_that_it_names(core):
    peer = WorkerInfo("peer", 1)
    made = core.device_map(peer)
    assert made.destination(HOST) == GPU
    assert core.device_map(peer) is core.device_maps[peer.worker] is made
    assert core.device_map(WorkerInfo("other", 2)) is None


def test_what_went_wrong_is_kept_as_long_as_it_is_of_interest(core):
    for number in range(200):
        core.note("event", str(number))
    assert core.failures == [f"event: {number}" for number in range(100, 200)]


def test_an_error_that_nobody_waits_for_is_printed_until_the_end(core, capsys):
    core.report(ValueError("seen"))
    core.is_closed = True
    core.report(ValueError("late"))
    assert "seen" in capsys.readouterr().err
    assert [line.rpartition("(")[2] for line in core.failures] == ["'seen')", "'late')"]


def test_a_step_of_the_end_waits_for_half_of_what_is_left_at_most(core):
    assert core.remaining_seconds(7.0) == 7.0
    core.end_within(10.0)
    assert core.remaining_seconds(1.0) == 1.0
    assert 0 < core.remaining_seconds(700.0) <= 5.0
