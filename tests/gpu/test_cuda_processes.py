"""Two processes that share one CUDA device: by shared memory, which is pinned when it is used
again."""

from __future__ import annotations

import ctypes
import os
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
import torch

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.memory.segments import SegmentPool
from lockstitch.runtime.worker import current_worker
from lockstitch.testing.processes import ProcessCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MAPS: dict[str, Any] = {"worker0": {0: 0}, "worker1": {0: 0, "cpu": "cpu"}}
SIZES = (1, 1000, 30_000, 1_000_000)


@pytest.fixture(scope="module", name="cluster")
def _cluster() -> Iterator[ProcessCluster]:
    with ProcessCluster(2, device_maps=MAPS, timeout_seconds=100) as running:
        yield running


def double(value: Any) -> Any:
    return [each * 2 for each in value]


def is_cuda_in_use() -> bool:
    return torch.cuda.is_initialized()


def echo_again_and_again(rounds: int) -> int:
    """How many values were wrong."""
    wrong = 0
    for number in range(rounds):
        there = [torch.full((size,), float(number), device="cuda") for size in SIZES]
        there.append(torch.full((500, 70), float(number), device="cuda").t())
        there.append(torch.full((70_000,), float(number)))
        back = rpc.rpc_sync("worker1", double, (there,))
        for one, other in zip(there, back, strict=True):
            wrong += one.device != other.device or one.stride() != other.stride()
            wrong += not torch.equal(one * 2, other)
    return wrong


def gradient_by_two_processes() -> float:
    weight = torch.linspace(0, 1, 90_000, device="cuda").view(300, 300).requires_grad_()
    with dist_autograd.context() as context:
        hidden = rpc.rpc_sync("worker1", torch.matmul, (weight, weight))
        reference = rpc.remote("worker1", torch.tanh, (hidden,))
        dist_autograd.backward(context, [reference.to_here().sum()])
        gradient = dist_autograd.get_gradients(context)[weight]
    torch.tanh(weight @ weight).sum().backward()
    return (gradient - weight.grad).abs().max().item()


def has_pinned_segments() -> bool:
    pool = current_worker().service(SegmentPool)
    memories = [block.memory for block in pool._ledger.blocks() if block.memory is not None]
    windows = [(ctypes.c_char * memory.size).from_address(memory.address) for memory in memories]
    return any(torch.frombuffer(each, dtype=torch.uint8).is_pinned() for each in windows)


def use_side_streams(rounds: int) -> int:
    """How many values were wrong."""
    wrong, stream = 0, torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for number in range(rounds):
            there = torch.zeros(100_000, device="cuda")
            torch.cuda._sleep(20_000_000)
            there += number
            futures = [rpc.rpc_async("worker1", double, ([there],)) for _ in range(4)]
            wrong += sum(not torch.equal(future.wait()[0], there * 2) for future in futures)
    return wrong


def test_cuda_is_in_use_where_a_map_says_so(cluster: ProcessCluster) -> None:
    assert cluster.run_all(is_cuda_in_use) == [True, True]


def test_what_is_sent_again_and_again_is_always_right(cluster: ProcessCluster) -> None:
    assert cluster.run("worker0", echo_again_and_again, 20) == 0


def test_segments_that_are_used_again_are_pinned(cluster: ProcessCluster) -> None:
    cluster.run("worker0", echo_again_and_again, 5)
    assert cluster.run("worker0", has_pinned_segments)
    assert cluster.run("worker1", has_pinned_segments)


def test_streams_other_than_the_default_one(cluster: ProcessCluster) -> None:
    assert cluster.run("worker0", use_side_streams, 10) == 0


def test_gradients_of_two_processes_are_those_of_one(cluster: ProcessCluster) -> None:
    assert cluster.run("worker0", gradient_by_two_processes) < 1e-4


def test_a_map_beyond_the_devices_is_refused_by_all() -> None:
    beyond: dict[str, Any] = {"worker1": {0: torch.cuda.device_count()}}
    with (
        pytest.raises(ValueError, match="Node worker0 has target devices with invalid indices"),
        ProcessCluster(2, device_maps=beyond, timeout_seconds=100),
    ):
        pass


def test_without_a_map_nobody_initialises_cuda() -> None:
    with ProcessCluster(2, timeout_seconds=100) as cluster:
        assert cluster.run("worker0", rpc.rpc_sync, "worker1", torch.add, (1, 2)) == 3
        assert cluster.run_all(is_cuda_in_use) == [False, False]


def ask_in_a_forked_child() -> int:
    """What a child of this process gets, which has CUDA in use, from a world of its own."""
    torch.ones(1, device="cuda")
    child = os.fork()
    if not child:
        status = 1
        try:
            with tempfile.NamedTemporaryFile() as store:
                options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{store.name}")
                rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
                status = rpc.remote("alone", sum, ([1, 2],)).to_here() + 40
                rpc.shutdown()
        finally:
            os._exit(int(status))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_of_a_process_that_uses_cuda_still_has_calls_on_the_host(
    cluster: ProcessCluster,
) -> None:
    assert cluster.run("worker0", ask_in_a_forked_child) == 43
