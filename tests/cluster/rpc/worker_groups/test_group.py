"""Who is in a group, and what its calls give: results by rank, and every failure by its name."""

from __future__ import annotations

import asyncio
import pickle
import threading

import pytest
import torch

from lockstitch import autograd, rpc
from lockstitch.errors import GroupError, PeerDiedError, RpcTimeoutError
from lockstitch.testing.cluster import LocalCluster
from lockstitch.testing.faults import Faults
from lockstitch.wire.messages import Call

HELD = threading.Event()


def name() -> str:
    return rpc.get_worker_info().name


def scale(x: torch.Tensor) -> torch.Tensor:
    return x * (rpc.get_worker_info().id + 1)


async def scale_later(x: torch.Tensor) -> torch.Tensor:
    await asyncio.sleep(0)
    return scale(x)


def fail_on(*names: str) -> str:
    if name() in names:
        raise KeyError(name())
    return name()


def hold_on(held: str) -> str:
    if name() == held:
        HELD.wait(30)
    return name()


def ask_others(names: list[str]) -> list[str]:
    return rpc.group(names).call(name)


async def ask_others_later(names: list[str]) -> list[str]:
    return await rpc.group(names).call_async(name)


def write_into(x: torch.Tensor) -> float:
    x += rpc.get_worker_info().id
    return float(x.sum())


def test_group_is_a_sequence_of_infos(cluster) -> None:
    group = rpc.group()
    assert group.names == ["worker0", "worker1", "worker2", "worker3"]
    assert (len(group), group[1].name, group[-1].id) == (4, "worker1", 3)
    assert group[1:3].names == ["worker1", "worker2"]
    assert group[2:99].names == ["worker2", "worker3"]
    assert [info.id for info in group] == [0, 1, 2, 3]
    assert "worker2" in group
    assert group[2] in group
    assert group[0] not in group[1:]
    assert repr(group[:2]) == "<Group of 2 workers: worker0, worker1>"
    assert rpc.group(group) is group
    assert pickle.loads(pickle.dumps(group[:2])) == group[:2]


def test_groups_are_joined_and_left(cluster) -> None:
    group = rpc.group()
    assert group[:2] | group[1:3] == group[:3]
    assert group[:1] | group[3] == rpc.group([0, 3])
    assert group - rpc.group("worker0") == group[1:]
    assert group - group[3] == group[:3]
    assert len({group[:2], rpc.group(["worker0", "worker1"])}) == 1
    with pytest.raises(ValueError, match="nobody is left"):
        group - group
    with pytest.raises(TypeError, match="joined with groups"):
        group | "worker0"  # type: ignore[operator]


@pytest.mark.parametrize(
    ("index", "text"),
    [(4, "no member 4"), (slice(4, 9), r"part \[4:9\] of"), (slice(2, 2), "nobody")],
)
def test_place_outside_of_a_group_is_refused(cluster, index, text) -> None:
    with pytest.raises(IndexError, match=text):
        rpc.group()[index]


def test_results_come_by_rank_however_they_are_asked_for(cluster) -> None:
    group, names = rpc.group(), ["worker0", "worker1", "worker2", "worker3"]
    assert group.call(name) == names
    assert group.call_async(name).wait() == names
    assert asyncio.run(ask_others_later(names)) == names
    assert {w.name: f.wait() for w, f in group.as_completed(name)} == {each: each for each in names}


def test_as_completed_does_not_wait_for_the_slow(cluster) -> None:
    HELD.clear()
    coming = rpc.group().as_completed(hold_on, ("worker0",))
    assert {next(coming)[0].name for _ in range(3)} == {"worker1", "worker2", "worker3"}
    HELD.set()
    assert next(coming)[1].wait() == "worker0"
    with pytest.raises(StopIteration):
        next(coming)


def test_failures_are_named_and_the_results_of_others_kept(cluster, capsys) -> None:
    with pytest.raises(GroupError, match="2 of 4 workers failed .worker1: KeyError") as raised:
        rpc.group().call(fail_on, ("worker1", "worker3"))
    error = raised.value
    assert error.results == {"worker0": "worker0", "worker2": "worker2"}
    assert {key: type(each) for key, each in error.errors.items()} == {
        "worker1": KeyError,
        "worker3": KeyError,
    }
    assert error.__cause__ is error.errors["worker1"]
    assert "in fail_on" in str(error.errors["worker3"].__cause__)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), list(again.errors)) == (str(error), ["worker1", "worker3"])


def test_dead_member_is_one_failure_among_results(cluster) -> None:
    group = rpc.group()
    group.call(name)
    cluster.kill("worker2")
    with pytest.raises(GroupError) as raised:
        group.call(name)
    assert isinstance(raised.value.errors["worker2"], PeerDiedError)
    assert list(raised.value.results) == ["worker0", "worker1", "worker3"]


def test_timeout_of_one_leaves_the_others_alone(cluster) -> None:
    HELD.clear()
    with pytest.raises(GroupError) as raised:
        rpc.group().call(hold_on, ("worker1",), timeout=0.3)
    HELD.set()
    assert isinstance(raised.value.errors["worker1"], RpcTimeoutError)
    assert len(raised.value.results) == 3


def test_any_lost_message_fails_one_member_only() -> None:
    for nth in (1, 2, 3):
        faults = Faults().drop(Call, nth=nth)
        with LocalCluster(4, faults=faults) as cluster, cluster[0].active():
            with pytest.raises(GroupError) as raised:
                (rpc.group() - rpc.group("worker0")).call(name, timeout=0.3)
            assert list(raised.value.errors) == [f"worker{nth}"]
            assert len(raised.value.results) == 2


def test_argument_that_cannot_be_sent_raises_at_once(cluster) -> None:
    with pytest.raises(RuntimeError, match="cannot send a call of name"):
        rpc.group().call(name, (threading.Lock(),))
    with pytest.raises(TypeError, match="should be callable"):
        rpc.group().call("name")  # type: ignore[arg-type]


def test_members_may_call_the_group_they_are_in(cluster) -> None:
    names = rpc.group().names
    assert rpc.group().call(ask_others, (names,)) == [names] * 4
    assert rpc.group().call(ask_others_later, (names,)) == [names] * 4


@pytest.mark.parametrize("function", [scale, scale_later])
def test_gradient_of_an_argument_is_the_sum_over_all_members(cluster, function) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with autograd.context() as context_id:
        y = rpc.group().reduce(function, (x,))
        autograd.backward(context_id, [(y * y).sum()])
        gradient = autograd.get_gradients(context_id)[x]
    assert y.tolist() == [10.0, 20.0]
    assert gradient.tolist() == [200.0, 400.0]


def test_each_member_writes_into_a_copy_of_its_own(cluster) -> None:
    x = torch.zeros(2)
    assert rpc.group().call(write_into, (x,)) == [0.0, 2.0, 4.0, 6.0]
    assert x.tolist() == [0.0, 0.0]


def test_reduce_joins_and_refuses_what_it_does_not_know(cluster) -> None:
    assert rpc.group().reduce(scale, (torch.ones(1),), op="max").item() == 4
    assert rpc.group().reduce(name, op=lambda one, other: f"{one} {other}").count("worker") == 4
    with pytest.raises(ValueError, match="op is one of"):
        rpc.group().reduce(name, op="median")
