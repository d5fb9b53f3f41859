"""Vectors that ranks reduce chunk by chunk, over a network that is a queue."""

from __future__ import annotations

import threading
from datetime import timedelta
from queue import Queue
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from lockstitch.collectives.arithmetic import can_reduce, reduce, result_scale
from lockstitch.collectives.c10d import exchange
from lockstitch.collectives.requests import ReduceOp, Reduction

MINUTE = timedelta(minutes=1)


class Work:
    """What is sent has left at once; what comes is there when it is waited for."""

    def __init__(self, queue: Queue[torch.Tensor] | None, space: torch.Tensor) -> None:
        self._queue = queue
        self._space = space

    def wait(self, timeout: timedelta) -> None:
        if self._queue is not None:
            self._space.copy_(self._queue.get(timeout=timeout.total_seconds()))
            self._queue = None


class Network:
    """Messages between ranks, by sender, receiver and tag."""

    def __init__(self) -> None:
        self.queues: dict[tuple[int, int, int], Queue[torch.Tensor]] = {}
        self.sent: dict[int, int] = {}

    def queue(self, source: int, target: int, tag: int) -> Queue[torch.Tensor]:
        return self.queues.setdefault((source, target, tag), Queue())


class Group:
    """One rank's end of it."""

    def __init__(self, network: Network, rank: int) -> None:
        self._network = network
        self._rank = rank

    def send(self, tensors: list[torch.Tensor], target: int, tag: int) -> Work:
        (tensor,) = tensors
        assert tensor.numel()
        assert tensor.is_contiguous()
        self._network.queue(self._rank, target, tag).put(tensor.clone())
        self._network.sent[self._rank] = self._network.sent.get(self._rank, 0) + tensor.numel()
        return Work(None, tensor)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Work:
        return Work(self._network.queue(source, self._rank, tag), tensors[0])


def reduce_by_all(parts: list[torch.Tensor], reduction: Reduction) -> Network:
    """All ranks do so in place, each in a thread of its own."""
    network, size = Network(), len(parts)
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            scale = result_scale(reduction, size)
            group: Any = Group(network, rank)
            chunks = exchange.chunks_of(parts[rank])
            ours = exchange.Exchange(group, rank, size, reduction.op, scale, MINUTE)
            assert sum(map(len, ours.run(chunks))) == len(parts[rank])
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert all(queue.empty() for queue in network.queues.values())
    return network


@given(
    st.integers(1, 5),
    st.integers(0, 300),
    st.sampled_from([op for op in ReduceOp if op is not ReduceOp.ADASUM]),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.uint8]),
    st.sampled_from([1.0, 3.0]),
    st.sampled_from([1, 2, 64, 1024]),
)
def test_all_ranks_get_the_bits_that_one_process_would(
    size: int, count: int, op: ReduceOp, dtype: torch.dtype, postscale: float, chunk_bytes: int
) -> None:
    assume(can_reduce(dtype, op))
    generator = torch.Generator().manual_seed(count)
    parts = [(9 * torch.randn(count, generator=generator)).to(dtype) for _ in range(size)]
    reduction = Reduction(op, postscale=postscale)
    wanted = reduce(reduction, [part.clone() for part in parts], size, torch.empty_like(parts[0]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "_CHUNK_BYTES", chunk_bytes)
        reduce_by_all(parts, reduction)
    assert all(torch.equal(part, wanted) for part in parts)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_each_rank_sends_the_least_there_can_be(size: int) -> None:
    count = 120 * 1024
    network = reduce_by_all([torch.ones(count) for _ in range(size)], Reduction(ReduceOp.SUM))
    wanted = 2 * (size - 1) * count / size
    assert all(sent == pytest.approx(wanted, rel=0.01) for sent in network.sent.values())


def test_rank_to_which_the_way_is_broken_is_named_by_its_position() -> None:
    class Broken(Group):
        def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Work:
            work = super().recv(tensors, source, tag)
            if source == 2:

                def wait(_timeout: timedelta) -> None:
                    raise RuntimeError("Connection timed out")

                work.wait = wait  # type: ignore[method-assign]
            return work

    network = Network()
    for other in (1, 2):
        for tag in (1, 2):
            network.queue(other, 0, tag).put(torch.ones(2))
    scale = result_scale(Reduction(ReduceOp.SUM), 3)
    reduction = exchange.Exchange(Broken(network, 0), 0, 3, ReduceOp.SUM, scale, MINUTE)
    with pytest.raises(exchange.PeerFailedError, match="timed out") as error:
        list(reduction.run([torch.ones(6)]))
    assert error.value.position == 2
