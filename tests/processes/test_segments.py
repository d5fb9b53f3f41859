"""Large tensors between processes of one host: the same values, nobody else's memory, nothing left
behind."""

from __future__ import annotations

import contextlib
import errno
import gc
import multiprocessing
import os
import resource
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lockstitch import rpc
from lockstitch.errors import PeerDiedError, RemoteError
from lockstitch.memory import received_segments
from lockstitch.memory.pools import WarmBuffers
from lockstitch.memory.segments import SegmentPool
from lockstitch.rpc import TensorPipeRpcBackendOptions
from lockstitch.runtime.worker import current_worker
from lockstitch.testing import ProcessCluster
from tests.unit.transport.pairs import mapped_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZES = (100_000, 1_000_000)
kept: list[Any] = []
gate = threading.Event()


@pytest.fixture
def cluster() -> Iterator[ProcessCluster]:
    with ProcessCluster(3, start_method="fork", rpc_timeout=30) as running:
        yield running


def figures() -> Any:
    return current_worker().service(SegmentPool).statistics()


def echo(value: Any) -> Any:
    return value


def keep(value: Any) -> int:
    kept.append(value)
    return len(kept)


def forget() -> None:
    kept.clear()


def sums() -> list[float]:
    return [float(each.sum()) for each in kept]


# ---------------------------------------------------------------- values


def cross_all_kinds(to: str) -> None:
    for size in SIZES:
        tensor = torch.rand(size)
        assert torch.equal(rpc.rpc_sync(to, echo, args=(tensor,)), tensor)
        assert torch.equal(rpc.rpc_async(to, echo, args=(tensor,)).wait(), tensor)
        assert torch.equal(rpc.remote(to, echo, args=(tensor,)).to_here(), tensor)
        whole, part = rpc.rpc_sync(to, echo, args=([tensor, tensor[5:50]],))
        part.fill_(7)
        assert bool((whole[5:50] == 7).all())
        assert not bool((tensor[5:50] == 7).any())
        array = numpy.arange(size)
        assert (rpc.rpc_sync(to, echo, args=(array,)) == array).all()
        raw = os.urandom(size)
        assert rpc.rpc_sync(to, echo, args=(raw,)) == raw
        sparse = torch.arange(size).remainder(7).float().to_sparse()
        assert torch.equal(rpc.rpc_sync(to, echo, args=(sparse,)).to_dense(), sparse.to_dense())
        strided = tensor.view(100, -1).t()
        assert torch.equal(rpc.rpc_sync(to, echo, args=(strided,)), strided)
        parameter = rpc.rpc_sync(to, echo, args=(torch.nn.Parameter(tensor),))
        assert torch.equal(parameter, tensor)
    assert figures().made > 0


def test_values_arrive_whatever_they_are(cluster: ProcessCluster) -> None:
    cluster.run(0, cross_all_kinds, "worker1")
    cluster.run(0, gc.collect)
    assert cluster.run(1, figures).lent == 0


def test_memory_of_arguments_is_back_when_the_answer_comes(cluster: ProcessCluster) -> None:
    cluster.run(0, call_with_changes, "worker1", 20)
    assert cluster.run(0, figures).made == 1


def call_with_changes(to: str, count: int) -> None:
    """Sends the same tensor again and again, changed each time."""
    tensor = torch.zeros(SIZES[0])
    for n in range(count):
        assert rpc.rpc_sync(to, torch.sum, args=(tensor,)) == n * SIZES[0]
        tensor += 1


def test_memory_is_used_again(cluster: ProcessCluster) -> None:
    cluster.run(0, call_with_changes, "worker1", 40)
    now = cluster.run(0, figures)
    assert now.made <= 4
    assert now.reused >= 36


# ---------------------------------------------------------------- receivers without room

files: list[int] = []


def open_all_files() -> None:
    soft = max(int(name) for name in os.listdir("/proc/self/fd")) + 8
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    with contextlib.suppress(OSError):
        while True:
            files.append(os.open(os.devnull, os.O_RDONLY))


def close_files() -> None:
    while files:
        os.close(files.pop())


def map_nothing() -> None:
    def refused(_descriptor: int, _size: int) -> Any:
        raise OSError(errno.ENOMEM, "no room")

    received_segments.Mapping = refused  # type: ignore[assignment, misc]


def send_to_one_without_room(exhaust: Any) -> None:
    rpc.rpc_sync("worker1", exhaust)
    for size in SIZES:
        tensor = torch.rand(size)
        for _ in range(3):
            assert torch.equal(rpc.rpc_sync("worker1", echo, args=(tensor,)), tensor)
        assert rpc.rpc_sync("worker1", keep, args=(tensor,)) > 0
    rpc.rpc_sync("worker1", close_files)
    assert len(rpc.rpc_sync("worker1", sums)) == len(SIZES)


@pytest.mark.parametrize("exhaust", [open_all_files, map_nothing])
def test_receiver_without_room_gets_all_by_the_same_connection(
    cluster: ProcessCluster, exhaust: Any
) -> None:
    cluster.run(0, send_to_one_without_room, exhaust)


# ---------------------------------------------------------------- whose it is


def write_into(tensor: torch.Tensor) -> torch.Tensor:
    kept.append(tensor)
    tensor.fill_(-1)
    return tensor


def send_to_two() -> None:
    tensor = torch.ones(SIZES[0])
    answers = [rpc.rpc_async(to, write_into, args=(tensor,)) for to in ("worker1", "worker2")]
    for answer in answers:
        assert bool((answer.wait() == -1).all())
    assert bool((tensor == 1).all())
    answers[0].wait().fill_(5)  # mine now
    for n in range(10):
        rpc.rpc_sync("worker1", echo, args=(torch.full((SIZES[0],), float(n)),))
    assert bool((answers[0].wait() == 5).all())


def test_writing_in_place_is_the_receivers_own_business(cluster: ProcessCluster) -> None:
    cluster.run(0, send_to_two)
    for worker in (1, 2):
        assert cluster.run(worker, sums) == [-SIZES[0]]
        cluster.run(worker, forget)


def send_to_one_who_keeps(count: int) -> None:
    for n in range(count):
        rpc.rpc_sync("worker1", keep, args=(torch.full((SIZES[0],), float(n)),))


def test_receiver_may_keep_all_it_gets(cluster: ProcessCluster) -> None:
    cluster.run(0, send_to_one_who_keeps, 30)
    assert cluster.run(1, sums) == [n * SIZES[0] for n in range(30)]
    now = cluster.run(0, figures)
    assert now.made <= 8  # the rest went by the stream
    assert now.refused >= 20
    cluster.run(1, forget)
    assert cluster.run(0, figures).lent == 0


# ---------------------------------------------------------------- death


def call_the_dead() -> int:
    with pytest.raises(PeerDiedError):
        rpc.rpc_sync("worker1", keep, args=(torch.ones(SIZES[0]),))
    # The connection may stand a moment longer: the dead could have answered just before.
    for _ in range(200):
        if not figures().bytes:
            break
        gate.wait(0.05)  # nobody sets it
    return int(figures().bytes)


def test_death_of_the_receiver_frees_what_it_had(cluster: ProcessCluster) -> None:
    cluster.run(0, send_to_one_who_keeps, 3)
    assert cluster.run(0, figures).lent >= 3
    cluster.kill(1)
    assert cluster.run(0, call_the_dead) == 0
    assert cluster.run(0, mapped_bytes) == 0


def test_what_the_dead_have_sent_stays_until_it_is_dropped(cluster: ProcessCluster) -> None:
    before = set(os.listdir("/dev/shm"))
    cluster.run(0, send_to_one_who_keeps, 2)
    cluster.kill(0)
    assert cluster.run(1, sums) == [0, SIZES[0]]
    assert cluster.run(1, mapped_bytes) > 0
    cluster.run(1, forget)
    cluster.run(1, gc.collect)
    assert set(os.listdir("/dev/shm")) == before


def test_shutdown_leaves_no_memory() -> None:
    with ProcessCluster(2, start_method="fork", rpc_timeout=30) as cluster:
        cluster.run(0, send_to_one_who_keeps, 3)
        cluster.run(1, forget)
        assert cluster.run(0, shut_down_and_count) == 0
        cluster.kill(0)


def shut_down_and_count() -> int:
    rpc.shutdown(graceful=False)
    return mapped_bytes()


# ---------------------------------------------------------------- interrupts and forks


def call_for_ever() -> None:
    tensor = torch.ones(SIZES[1])
    while True:
        answer = rpc.rpc_sync("worker1", echo, args=(tensor,))
        assert bool((answer == 1).all())


def test_interrupts_spoil_nothing(cluster: ProcessCluster) -> None:
    for _ in range(8):
        task = cluster.start(0, call_for_ever)
        gate.wait(0.15)  # nobody sets it
        cluster.interrupt(0)
        with pytest.raises(RemoteError, match="KeyboardInterrupt"):
            task.result()
    cluster.run(0, call_with_changes, "worker1", 5)
    now = cluster.run(0, figures)
    assert now.lent <= 8  # at most one each time, until the connection ends
    assert cluster.run(1, figures).lent <= 8


class Received(Dataset):  # type: ignore[type-arg]
    """What was received, as a dataset: its loader's processes inherit it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> torch.Tensor:
        return self.tensor[place * 10 : place * 10 + 10].clone()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def load_what_was_received() -> None:
    tensor = rpc.rpc_sync("worker1", echo, args=(torch.arange(float(SIZES[0])),))
    loader = DataLoader(Received(tensor), batch_size=2, num_workers=2)
    for _ in range(2):
        iterator = iter(loader)
        # The parent drops nothing meanwhile, but receives a lot more.
        for n in range(5):
            rpc.rpc_sync("worker1", echo, args=(torch.full((SIZES[0],), float(n)),))
        loaded = torch.cat(list(iterator)).flatten()
        assert torch.equal(loaded, torch.arange(40.0))
    assert torch.equal(tensor, torch.arange(float(SIZES[0])))


def test_data_loaders_may_inherit_what_was_received(cluster: ProcessCluster) -> None:
    cluster.run(0, load_what_was_received)
    cluster.run(0, call_with_changes, "worker1", 5)


def drop_while_a_child_has_it() -> tuple[int, int]:
    """Exit status of a child that looks at its inheritance after its parent has dropped it."""
    tensor = rpc.rpc_sync("worker1", echo, args=(torch.ones(SIZES[0]),))
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(ready, 1)
        os._exit(0 if bool((tensor == 1).all()) else 1)
    del tensor
    gc.collect()
    for n in range(10):
        rpc.rpc_sync("worker1", echo, args=(torch.full((SIZES[0],), float(n + 5)),))
    os.write(go, b"x")
    _, status = os.waitpid(child, 0)
    os.close(ready)
    os.close(go)
    return os.waitstatus_to_exitcode(status), signal.SIGSEGV


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_what_a_child_has_inherited_is_never_overwritten(cluster: ProcessCluster) -> None:
    status, _ = cluster.run(0, drop_while_a_child_has_it)
    assert status == 0


# ---------------------------------------------------------------- options


def live_without(rank: int, place: str, options: dict[str, Any], answers: Any) -> None:
    torch.set_num_threads(1)
    rpc.init_rpc(
        f"worker{rank}",
        rank=rank,
        world_size=2,
        rpc_backend_options=TensorPipeRpcBackendOptions(init_method=place, **options),
    )
    if rank == 0:
        tensor = torch.rand(SIZES[1])
        for _ in range(3):
            assert torch.equal(rpc.rpc_sync("worker1", echo, args=(tensor,)), tensor)
        buffers = current_worker().service(WarmBuffers).statistics()
        answers.put((mapped_bytes(), buffers.made, buffers.reused))
    rpc.shutdown()


@pytest.mark.parametrize(
    "options",
    [
        {"transports": ("unix",)},
        {"segment_pool_bytes": 0},
        {"transports": ("tcp",), "address": "127.0.0.1", "insecure": True},
        {"transports": ("tcp",), "address": "::1", "insecure": True, "buffer_pool_bytes": 0},
    ],
    ids=["unix", "no bytes", "tcp", "tcp, no buffers"],
)
def test_options_leave_it_at_streams(tmp_path: Path, options: dict[str, Any]) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    arguments = (f"file://{tmp_path}/meeting", options, answers)
    processes = [context.Process(target=live_without, args=(n, *arguments)) for n in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    mapped, made, reused = answers.get()
    answers.close()
    assert mapped == 0
    assert (made > 0) == (reused > 0) == ("buffer_pool_bytes" not in options)
