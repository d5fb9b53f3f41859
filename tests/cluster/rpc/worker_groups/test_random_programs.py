"""Random programs of group operations give what plain Python and PyTorch give.

A program is a list of steps, each of which is an operation of a group on the current tensors; its
twin runs the same functions in this process, one member after the other. Axes: the kind of callee
(function, `async def`, generator, asynchronous generator), an autograd context or none, which
members there are (the caller too), callees that write into what they were given, and a message that
is lost at any place.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstitch import autograd, rpc
from lockstitch.testing.cluster import LocalCluster
from lockstitch.testing.faults import Faults
from lockstitch.wire.messages import Call, Reply

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 3
KINDS = ["plain", "coroutine"]


def weigh(x: torch.Tensor, rank: int, salt: int, *, writes: bool) -> torch.Tensor:
    """What each member does; a pure function of its arguments, but for what it may overwrite."""
    y = torch.sin(x * (rank + 1)) + salt * x
    if writes and not (x.requires_grad and x.is_leaf):
        with torch.no_grad():
            x.detach().zero_()
    return y


def plain(x: torch.Tensor, salt: int, writes: bool) -> torch.Tensor:
    return weigh(x, rpc.get_worker_info().id, salt, writes=writes and not x.requires_grad)


async def coroutine(x: torch.Tensor, salt: int, writes: bool) -> torch.Tensor:
    await asyncio.sleep(0)
    return plain(x, salt, writes)


def generator(x: torch.Tensor, salt: int, count: int) -> Iterator[torch.Tensor]:
    for number in range(count):
        x = plain(x, salt + number, False)
        yield x


async def asynchronous(x: torch.Tensor, salt: int, count: int):
    for item in generator(x, salt, count):
        await asyncio.sleep(0)
        yield item


def on_item(pair: tuple[torch.Tensor, int]) -> torch.Tensor:
    """An item of a map: the same wherever it runs."""
    x, salt = pair
    return weigh(x, 0, salt, writes=False)


FUNCTIONS = {"plain": plain, "coroutine": coroutine}
GENERATORS = {"plain": generator, "coroutine": asynchronous}

STEPS = st.one_of(
    st.tuples(st.just("map"), st.just("plain"), st.booleans()),
    st.tuples(
        st.sampled_from("call reduce completed broadcast remote stream merged".split()),
        st.sampled_from(KINDS),
        st.booleans(),
    ),
)


def joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(tensors).tanh().sum(0)


def distributed(  # noqa: PLR0911 - one for each kind of step
    step: tuple[str, str, bool], group: rpc.Group, x: torch.Tensor
) -> torch.Tensor:
    """One step, by the operations of a group."""
    name, kind, flag = step
    function, salt = FUNCTIONS[kind], len(name)
    if name == "call":
        return joined(group.call(function, (x, salt, flag)))
    if name == "reduce":
        return group.reduce(function, (x, salt, flag))
    if name == "completed":
        done = {w.id: f.wait() for w, f in group.as_completed(function, (x, salt, flag))}
        return joined([done[worker.id] for worker in group])
    if name == "broadcast":
        return joined(group.broadcast(x).call(function, (salt, flag)))
    if name == "remote":
        made = group.remote(function, (x, salt, flag))
        return joined(made.to_here() if flag else made.rpc_sync().clone())
    if name == "map":
        items = [(x * n, n) for n in range(5)]
        return joined(group.map(on_item, items, in_flight=1 + flag))
    streams = group.stream(GENERATORS[kind], (x, salt, 3), window=1 + 2 * flag)
    if name == "stream":
        return joined([item for each in streams.streams for item in each])
    found: dict[int, list[torch.Tensor]] = {worker.id: [] for worker in group}
    for worker, item in streams:
        found[worker.id].append(item)
    return joined([item for worker in group for item in found[worker.id]])


def local(step: tuple[str, str, bool], ranks: list[int], x: torch.Tensor) -> torch.Tensor:
    """The same in plain PyTorch."""
    name, _, _ = step
    salt = len(name)
    if name == "map":
        return joined([weigh(x * n, 0, n, writes=False) for n in range(5)])
    if name in ("stream", "merged"):
        items = []
        for rank in ranks:
            y = x
            for number in range(3):
                y = weigh(y, rank, salt + number, writes=False)
                items.append(y)
        return joined(items)
    results = [weigh(x, rank, salt, writes=False) for rank in ranks]
    if name != "reduce":
        return joined(results)
    total = results[0]
    for each in results[1:]:
        total = total + each
    return total


def run(program: list[Any], ranks: list[int], *, in_context: bool) -> tuple[torch.Tensor, ...]:
    group = rpc.group(ranks)
    x = torch.linspace(-1, 1, 4, dtype=torch.float64).requires_grad_(in_context)
    if not in_context:
        y = x
        for step in program:
            y = distributed(step, group, y)
        return (y,)
    with autograd.context() as context_id:
        y = x * 1.0
        for step in program:
            y = distributed(step, group, y)
        autograd.backward(context_id, [y.sum()])
        return y.detach(), autograd.get_gradients(context_id)[x]


def expected(program: list[Any], ranks: list[int], *, in_context: bool) -> tuple[torch.Tensor, ...]:
    x = torch.linspace(-1, 1, 4, dtype=torch.float64).requires_grad_(in_context)
    y = x * 1.0
    for step in program:
        y = local(step, ranks, y)
    if not in_context:
        return (y,)
    y.sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


RANKS = st.sets(st.integers(0, SIZE - 1), min_size=1).map(sorted)


@given(program=st.lists(STEPS, min_size=1, max_size=4), ranks=RANKS, in_context=st.booleans())
@settings(max_examples=40)
def test_random_programs_give_what_one_process_gives(program, ranks, in_context) -> None:
    with LocalCluster(SIZE) as cluster, cluster[0].active():
        got = run(program, ranks, in_context=in_context)
    want = expected(program, ranks, in_context=in_context)
    for each, other in zip(got, want, strict=True):
        torch.testing.assert_close(each, other, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@given(
    step=STEPS,
    ranks=RANKS,
    in_context=st.booleans(),
    message=st.sampled_from([Call, Reply]),
    nth=st.integers(1, 8),
)
@settings(max_examples=40)
def test_a_lost_message_is_an_error_and_never_a_wrong_number(
    step, ranks, in_context, message, nth
) -> None:
    faults = Faults().drop(message, nth=nth)
    with LocalCluster(SIZE, faults=faults) as cluster, cluster[0].active():
        for worker in cluster:
            worker.agent.default_timeout = 0.5
        try:
            got = run([step], ranks, in_context=in_context)
        except RuntimeError:
            return
    want = expected([step], ranks, in_context=in_context)
    for each, other in zip(got, want, strict=True):
        torch.testing.assert_close(each, other, rtol=1e-10, atol=1e-12)
