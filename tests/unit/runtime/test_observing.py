"""What calls note of themselves, on both sides, while somebody counts or records them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch import rpc
from lockstitch.attach.recorder import RECORDER
from lockstitch.attach.spans import spans_of
from lockstitch.attach.traffic import Traffic
from lockstitch.errors import RpcTimeoutError
from lockstitch.observe.flows import find_flows
from lockstitch.rpc.functions import async_execution
from lockstitch.runtime.functions import name_of
from lockstitch.testing import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstitch.attach.spans import Span
    from lockstitch.attach.values import CallTraffic


def fail() -> None:
    raise ValueError("on purpose")


async def pause() -> int:
    return 3


@async_execution
def never() -> torch.futures.Future[None]:
    return torch.futures.Future()


@async_execution
def later() -> torch.futures.Future[int]:
    return rpc.rpc_async("worker0", abs, (-4,))


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(2) as cluster, cluster["worker0"].active():
        yield cluster


def record(call) -> list[Span]:
    with RECORDER.recording() as recorded:
        call()
        # The callee may still be busy with what follows its answer.
        rpc.rpc_sync("worker1", abs, (-1,))
        rpc.rpc_sync("worker1", abs, (-1,))
        found = spans_of(recorded())
        return [each for each in found if not each.name.endswith(":abs")]


def test_a_call_is_noted_by_caller_and_callee_with_its_bytes(cluster) -> None:
    spans = record(lambda: rpc.rpc_sync("worker1", torch.add, (torch.ones(1000), 1)))
    call, serve = sorted(spans, key=lambda each: each.kind)
    assert (call.kind, call.worker, call.peer) == ("call", "worker0", "worker1")
    assert (serve.kind, serve.worker, serve.peer) == ("serve", "worker1", "worker0")
    assert call.number == serve.number > 0
    assert call.start < serve.start < serve.at < call.end
    assert 4000 <= call.sent == serve.received < 4200
    assert 4000 <= call.received == serve.sent < 4200


def wait_for_all() -> None:
    rpc.rpc_async("worker1", pause).wait()
    rpc.rpc_sync("worker1", later)
    with pytest.raises(ValueError, match="on purpose"):
        rpc.rpc_sync("worker1", fail)
    rpc.remote("worker1", later).to_here()


def test_calls_of_every_kind_have_flows_there_and_back(cluster) -> None:
    with RECORDER.recording() as recorded:
        wait_for_all()
        rpc.rpc_sync("worker1", pause)
        spans = list(spans_of(recorded()))
    kinds = Counter(each.kind for each in find_flows([spans]).flows)
    made = Counter(each.kind for each in spans)
    assert kinds["call"] == made["call"] + made["send"]
    assert kinds["reply"] >= kinds["call"] - 1  # the last may be noted after this look
    failed = [each.kind for each in spans if each.has_failed]
    assert sorted(failed) == ["call", "serve"]


def test_sums_of_spans_are_what_is_counted(cluster) -> None:
    before = {(e.role, e.function, e.peer): e for e in RECORDER.counted("worker0")}
    RECORDER.count()
    spans = record(wait_for_all)
    counted = {(e.role, e.function, e.peer): e for e in RECORDER.counted("worker0")}
    for (role, function, peer), each in counted.items():
        if role == "made" and not function.endswith(":abs"):
            ours = [
                span for span in spans
                if (span.name, span.peer) == (function, peer) and span.kind in ("call", "answer")
            ]  # fmt: skip
            earlier = before.get((role, function, peer))
            assert each.count - (earlier.count if earlier else 0) == len(ours)
            assert each.sent - (earlier.sent if earlier else 0) == sum(s.sent for s in ours)
            seconds = sum(s.end - (s.at or s.start) for s in ours) / 1e9
            assert each.seconds - (earlier.seconds if earlier else 0) == pytest.approx(seconds)
    assert ("made", "to_here", "worker1") in counted


def test_both_ends_count_a_call_with_its_bytes(cluster, monkeypatch) -> None:
    monkeypatch.setattr(RECORDER, "_traffic", Traffic())  # others may have filled it
    RECORDER.count()
    rpc.rpc_sync("worker1", torch.add, (torch.ones(1000), 1))
    rpc.rpc_async("worker1", torch.add, (torch.ones(1000), 1)).wait()
    with pytest.raises(RuntimeError):
        rpc.rpc_sync("worker1", torch.add, (torch.ones(1000), torch.ones(3)))
    for _ in range(100):  # the callee may still be busy with what follows its answer
        made, served = both_ends()
        if served.count == 3:
            break
        rpc.rpc_sync("worker1", abs, (-1,))
    assert (made.count, made.failed) == (served.count, served.failed) == (3, 1)
    assert 12_000 <= made.sent == served.received < 12_600
    assert 8_000 <= made.received == served.sent < 12_000


def both_ends() -> tuple[CallTraffic, CallTraffic]:
    """What is counted of the calls that worker0 makes of `torch.add` on worker1."""
    made, served = (
        next(
            each
            for each in RECORDER.counted(worker)
            if (each.role, each.function) == (role, name_of(torch.add))
        )
        for worker, role in [("worker0", "made"), ("worker1", "served")]
    )
    return made, served


def time_out() -> None:
    with pytest.raises(RuntimeError, match="timeout"):
        rpc.rpc_async("worker1", pause, timeout=1e-9).wait()


def test_a_call_that_fails_on_this_side_is_noted_as_failed(cluster) -> None:
    spans = [each for each in record(time_out) if each.worker == "worker0"]
    assert [each.kind for each in spans if each.has_failed] == ["answer"]


def test_a_call_that_cannot_be_sent_is_noted_as_failed(cluster, monkeypatch) -> None:
    def refuse(*_about: object) -> None:
        raise ConnectionResetError("on purpose")

    def call() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(cluster["worker0"].agent.core, "send_filter", refuse)
            future = rpc.rpc_async("worker1", pause)
        with pytest.raises(ConnectionResetError, match="on purpose"):
            future.wait()

    spans = record(call)
    assert [(each.kind, each.peer) for each in spans if each.has_failed] == [("answer", "worker1")]


def test_a_call_whose_time_is_over_has_failed_though_it_began_before_calls_were_counted(
    cluster, monkeypatch
) -> None:
    monkeypatch.setattr(RECORDER, "_traffic", Traffic())
    RECORDER.stop_counting()
    future = rpc.rpc_async("worker1", never, timeout=0.05)
    RECORDER.count()
    with pytest.raises(RpcTimeoutError):
        future.wait()
    (made,) = [e for e in RECORDER.counted("worker0") if e.function == name_of(never)]
    assert (made.peer, made.count, made.failed) == ("worker1", 1, 1)
