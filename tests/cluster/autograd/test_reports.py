"""What the workers of a context tell of it to who looks on."""

from __future__ import annotations

import torch

from lockstitch import autograd, rpc
from lockstitch.attach.values import Question, SentTensors
from lockstitch.runtime.reports import report_worker
from lockstitch.runtime.worker import current_worker
from lockstitch.testing import LocalCluster


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def double_there(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return rpc.rpc_sync("worker2", double, args=(x,)) + y


def sent() -> list[SentTensors]:
    """By the worker that runs this; it is asked in a context, which is its only one."""
    report = report_worker(current_worker(), Question(contexts=True), {})
    (context,) = report.contexts
    return list(context.sent)


def ask_all(when: list[list[SentTensors]]) -> None:
    when.append(sent())
    when += [rpc.rpc_sync(f"worker{rank}", sent) for rank in (1, 2)]


def train() -> tuple[list[list[SentTensors]], list[list[SentTensors]]]:
    x, y = torch.ones(3, 4, requires_grad=True), torch.ones(4, requires_grad=True)
    before: list[list[SentTensors]] = []
    after: list[list[SentTensors]] = []
    with autograd.context() as context_id:
        result = rpc.rpc_sync("worker1", double_there, args=(x, y))
        rpc.rpc_sync("worker2", double, args=(x.double(),))  # no part of the loss
        ask_all(before)
        autograd.backward(context_id, [result.sum()], retain_graph=True)
        ask_all(after)
    return before, after


def test_each_worker_tells_what_it_has_sent_and_of_what_it_was_made() -> None:
    with LocalCluster(3) as cluster:
        before, after = cluster.run(0, train)
    first, second = before[0]
    assert (first.to, first.tensors, first.made_of) == (1, ("float32 3 × 4", "float32 4"), ())
    assert (second.to, second.tensors) == (2, ("float64 3 × 4",))
    asked, answered = before[1]
    assert (asked.to, asked.tensors, asked.made_of) == (2, ("float32 3 × 4",), (first.stitch,))
    doubled = before[2][0]
    assert doubled.made_of == (asked.stitch,)
    assert (answered.to, set(answered.made_of)) == (0, {first.stitch, doubled.stitch})
    assert {each.state for part in before for each in part} == {""}
    states = {each.stitch: each.state for part in after for each in part}
    assert {states[each.stitch] for each in (first, asked, answered, doubled)} == {"arrived"}
    assert states[second.stitch] == ""
