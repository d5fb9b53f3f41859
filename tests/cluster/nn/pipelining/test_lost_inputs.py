"""What a stage has sent last is lost with its connection, when the stage itself is done already."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import nn

from lockstitch import rpc
from lockstitch.errors import ConnectionLostError
from lockstitch.nn import Pipeline
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
