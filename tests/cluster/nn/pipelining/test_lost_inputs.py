"""What a stage has sent last is lost with its connection, when the stage itself is done already."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import nn

from lockstitch import rpc
from lockstitch.errors import ConnectionLostError
from lockstitch.nn import Pipeline
from lockstitch.nn.pipelining.inbox import Inboxes
from lockstitch.testing.cluster import LocalCluster
from lockstitch.transport.memory import Action, Break, Deliver
from lockstitch.wire.messages import KINDS

_SECONDS = 0.3


class Script:
    """The first value between stages is lost, and its connection ends; its receiver hears of the
    step so late that it has heard of the break before."""

    def __init__(self) -> None:
        self.is_on = False

    def apply(self, _sender: str, receiver: str, kind: int) -> list[Action]:
        """See `transport.memory.FrameScript`."""
        name = KINDS[kind].__name__ if kind in KINDS else ""
        if self.is_on and name == "HandOver":
            self.is_on = False
            return [Break(own=True, others=False)]
        is_late = self.is_on and name == "Call" and receiver == "b"
        return [Deliver(after_seconds=_SECONDS if is_late else 0.0)]


@pytest.mark.timeout(30)
def test_an_evaluation_ends_where_its_last_input_is_lost():
    script = Script()
    faults = cast("Any", script)
    with LocalCluster(["driver", "a", "b"], faults=faults) as cluster, cluster[0].active():
        pipeline = Pipeline([rpc.remote("a", nn.Tanh), rpc.remote("b", nn.Tanh)])
        x = torch.ones(1, 3)
        torch.testing.assert_close(pipeline(x), x.tanh().tanh())
        script.is_on = True
        with pytest.raises(ConnectionLostError, match="'a'"):
            pipeline(x)
        torch.testing.assert_close(pipeline(x), x.tanh().tanh())


class BreakOnce:
    """The connection between two workers ends with the next message, when it is told to."""

    def __init__(self, *workers: str) -> None:
        self.workers = {*workers}
        self.is_on = False

    def apply(self, sender: str, receiver: str, _kind: int) -> list[Action]:
        """See `transport.memory.FrameScript`."""
        if self.is_on and {sender, receiver} == self.workers:
            self.is_on = False
            return [Break(own=True, others=False)]
        return [Deliver()]


def test_of_steps_that_are_over_a_driver_without_stages_hears_nothing():
    """Nobody would end them there."""
    script = BreakOnce("driver", "a")
    faults = cast("Any", script)
    with LocalCluster(["driver", "a", "b"], faults=faults) as cluster, cluster[0].active():
        pipeline = Pipeline([rpc.remote("a", nn.Tanh), rpc.remote("b", nn.Tanh)])
        x = torch.ones(4, 3)
        pipeline(x)
        script.is_on = True
        with pytest.raises(ConnectionLostError):
            rpc.rpc_sync("a", torch.ones, (1,))
        pipeline(x)  # after whatever the break had "a" say
        assert [len(Inboxes.of(cluster[name])) for name in cluster.names] == [0, 0, 0]
