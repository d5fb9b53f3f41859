"""Both sides of a stitch know it by the same key, and its gradients too."""

from __future__ import annotations

import torch

from lockstitch import autograd, rpc
from lockstitch.attach.recorder import RECORDER
from lockstitch.attach.spans import spans_of
from lockstitch.observe.flows import find_flows
from lockstitch.testing import LocalCluster


def test_each_gradient_leads_from_its_stitch_and_from_who_sent_it() -> None:
    weight = torch.ones(2, 3, requires_grad=True)
    with (
        LocalCluster(2) as cluster,
        cluster["worker0"].active(),
        RECORDER.recording() as recorded,
        autograd.context() as context_id,
    ):
        loss = rpc.rpc_sync("worker1", torch.mul, (weight, 2)).sum()
        autograd.backward(context_id, [loss])
        spans = list(spans_of(recorded()))
    stitches = [each for each in spans if each.kind == "stitch"]
    assert {each.name for each in stitches} == {"stitch of float32[2, 3]"}
    assert len({(each.peer, each.number) for each in stitches}) == 2  # there and back
    flows = find_flows([spans]).flows
    for kind in ("stitch", "gradient"):
        assert len([each for each in flows if each.kind == kind]) == 2
    come = [each for each in spans if each.kind == "gradient received"]
    assert {each.received for each in come} == {24}
    assert sum(each.name.startswith("backward of a component") for each in spans) >= 2


def test_nothing_is_noted_while_nobody_records() -> None:
    assert RECORDER.begin() == 0.0
    RECORDER.end(0.0, "stitch", "s")
