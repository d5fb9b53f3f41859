"""Sessions between real processes: results, death, forks, Ctrl-C, and many sessions in a row."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.distributed import FileStore

from lockstitch.collectives import (
    AVERAGE,
    SUM,
    ReduceOp,
    Reduction,
    Session,
    SessionOptions,
    open_session,
    opening,
)
from lockstitch.collectives.c10d import tree_links
from lockstitch.errors import CollectiveError, RankLostError
from lockstitch.testing.leaks import Inventory
from tests.cluster.collectives.mixtures import Mixture
from tests.processes.ranks import RankProcesses

REAL = ["shared_memory", "c10d", "hierarchical"]


def open_rank(rank: int, size: int, file: str, backend: str) -> Session:
    host = f"host {rank * 2 // size}" if backend == "hierarchical" else None
    options = SessionOptions(backend=backend, host=host)  # type: ignore[arg-type]
    return open_session(rank, size, FileStore(file), options)


def tensors_of(size: int, shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    made = []
    for rank in range(size):
        generator = torch.Generator().manual_seed(rank)
        made.append(torch.randint(0, 5, shape, generator=generator).to(dtype))
    return made


# ---------------------------------------------------------------- results


def compare_with_torch(rank: int, size: int, file: str, backend: str) -> int:
    compared = 0
    with open_rank(rank, size, file, backend) as session:
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
            for shape in ((3,), (40, 50), (1100, 300)):
                all_ranks = tensors_of(size, shape, dtype)
                total = all_ranks[0].clone()
                for tensor in all_ranks[1:]:
                    total += tensor
                for own in (all_ranks[rank].clone(), all_ranks[rank].t().contiguous().t()):
                    result = session.wait(session.allreduce(own, SUM))
                    torch.testing.assert_close(result, total, rtol=0, atol=0)
                gathered = session.wait(session.allgather(all_ranks[rank]))
                assert torch.equal(gathered, torch.cat(all_ranks))
                received = session.wait(session.broadcast(all_ranks[rank], size - 1))
                assert torch.equal(received, all_ranks[-1])
                compared += 1
        numbers = tensors_of(size, (600_000,), torch.float32)
        for op, expected in (
            (ReduceOp.MAX, torch.stack(numbers).amax(0)),
            (ReduceOp.MIN, torch.stack(numbers).amin(0)),
            (ReduceOp.AVERAGE, torch.stack(numbers).sum(0) / size),
        ):
            resident = session.resident((600_000,), torch.float32).copy_(numbers[rank])
            for tensor in (numbers[rank].clone(), resident):
                session.wait(session.allreduce(tensor, Reduction(op), name="x", output=tensor))
                torch.testing.assert_close(tensor, expected)
        rows = session.wait(session.reducescatter(torch.arange(10.0).view(10, 1), AVERAGE))
        assert torch.equal(session.wait(session.allgather(rows)), torch.arange(10.0).view(10, 1))
        swapped, _ = session.wait(session.alltoall(torch.full((size,), rank)))
        assert swapped.tolist() == list(range(size))
    return compared


@pytest.mark.parametrize(
    ("backend", "size"),
    [
        ("shared_memory", 2),
        ("shared_memory", 4),
        ("c10d", 2),
        ("hierarchical", 4),
        pytest.param("c10d", 4, marks=pytest.mark.slow),
        pytest.param("hierarchical", 2, marks=pytest.mark.slow),
    ],
)
def test_results_are_those_of_torch(backend: str, size: int) -> None:
    with RankProcesses(size) as ranks:
        assert ranks.run(compare_with_torch, backend) == [15] * size


def train(rank: int, size: int, file: str, backend: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.Tanh(), torch.nn.Linear(50, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(8 * size, 20).chunk(size)[rank]
    with open_rank(rank, size, file, backend) as session:
        for _ in range(5):
            optimizer.zero_grad()
            model(data).square().mean().backward()
            handles = [
                session.allreduce(p.grad, AVERAGE, name=name, output=p.grad)
                for name, p in model.named_parameters()
                if p.grad is not None
            ]
            for handle in handles:
                session.wait(handle)
            optimizer.step()
    return [p.detach().clone().numpy() for p in model.parameters()]


@pytest.mark.parametrize("backend", REAL)
def test_training_is_that_of_one_process_with_all_data(backend: str) -> None:
    with RankProcesses(2) as ranks:
        first, second = ranks.run(train, backend)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.Tanh(), torch.nn.Linear(50, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(16, 20)
    for _ in range(5):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    for one, other, expected in zip(first, second, model.parameters(), strict=True):
        assert (one == other).all()
        torch.testing.assert_close(torch.from_numpy(one), expected.detach())


# ---------------------------------------------------------------- death


def wait_for_the_dead(rank: int, size: int, file: str, backend: str) -> str:
    with open_rank(rank, size, file, backend) as session:
        session.barrier()
        if rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        # The death may be known here before the reduction begins.
        with pytest.raises(RankLostError, match=f"rank {size - 1} died") as caught:
            session.wait(session.allreduce(torch.ones(400_000), SUM, name="never"))
        with pytest.raises(CollectiveError):
            session.barrier()
        return str(caught.value)


@pytest.mark.parametrize("backend", REAL)
def test_killed_rank_ends_the_session_of_every_survivor(backend: str) -> None:
    with RankProcesses(4) as ranks:
        ranks.start(wait_for_the_dead, backend)
        assert all("died" in ranks.next(rank) for rank in range(3))


def reduce_until_death(
    rank: int, size: int, file: str, backend: str, victim: int, seconds: float
) -> tuple[int, str]:
    """Sizes that ride on messages, that are one chunk, and that are many, under way together."""
    counts = (3, 4096, 5000, 1_500_003)
    with open_rank(rank, size, file, backend) as session:
        session.barrier()
        if rank == victim:
            timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
            timer.start()
        for turn in itertools.count():
            tensors = [torch.full((count,), float(rank + turn)) for count in counts]
            try:
                handles = [
                    session.allreduce(tensor, SUM, name=f"{turn % 3}.{len(tensor)}")
                    for tensor in tensors
                ]
                for handle in handles:
                    total = size * turn + size * (size - 1) / 2
                    assert session.wait(handle).eq(total).all()
            except RankLostError as error:
                return turn, str(error)
    raise AssertionError("nobody has died")


@pytest.mark.parametrize(
    ("backend", "size", "victim"),
    [
        ("hierarchical", 4, 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("hierarchical", 4, 3),
                ("hierarchical", 4, 1),
                ("c10d", 3, 1),
                ("c10d", 3, 2),
                ("c10d", 2, 1),
            )
        ),
    ],
)
def test_rank_killed_in_the_midst_of_reductions_is_told_to_all(
    backend: str, size: int, victim: int
) -> None:
    seconds = random.Random().uniform(0.05, 0.8)
    with RankProcesses(size) as ranks:
        ranks.start(reduce_until_death, backend, victim, seconds)
        ends = [ranks.next(rank) for rank in range(size) if rank != victim]
    assert all(f"rank {victim} died" in told for _, told in ends), (ends, seconds)
    turns = [turn for turn, _ in ends]
    assert max(turns) - min(turns) <= 1, (turns, seconds)


def reduce_small_until_death(rank: int, size: int, file: str) -> float:
    """One after the other, so that they pass the table."""
    with open_rank(rank, size, file, "shared_memory") as session:
        tensor = torch.ones(10)
        for turn in itertools.count():
            try:
                session.wait(session.awaited.allreduce(tensor, name="x"))
            except RankLostError as error:
                assert "rank 1 died" in str(error)  # noqa: PT017 - in one turn or another
                return time.monotonic()
            if turn == 20:
                Path(file).with_name(f"begun {rank}").touch()
    raise AssertionError("nobody has died")


def test_rank_killed_in_the_midst_of_small_reductions_is_told_within_a_second() -> None:
    with RankProcesses(3) as ranks:
        ranks.start(reduce_small_until_death)
        while len(list(Path(ranks.folder).glob("begun *"))) < 3:
            threading.Event().wait(0.01)
        ranks.kill(1)
        killed = time.monotonic()
        assert max(ranks.next(rank) for rank in (0, 2)) - killed < 1


def leave_behind_a_reduction(rank: int, size: int, file: str) -> str:
    with open_rank(rank, size, file, "shared_memory") as session:
        some = session.add_process_set([0, 1]).id
        for _ in range(3):
            session.wait(session.allreduce(torch.ones(10), name="all"))
        if rank == 2:
            session.allreduce(torch.ones(10), name="all")
            return "gone"
        if rank == 1:
            threading.Event().wait(0.7)  # meanwhile rank 0 sleeps, and sees the end of rank 2
        result = session.wait(session.allreduce(torch.ones(10), SUM, name="x", process_set=some))
        assert result.tolist() == [2.0] * 10
        session.wait(session.allreduce(torch.ones(10), name="all"))
        with pytest.raises(RankLostError, match="shut down without it") as caught:
            session.wait(session.allreduce(torch.ones(10), name="all"))
        return str(caught.value)


def test_rank_that_has_left_after_it_submitted_has_not_died() -> None:
    with RankProcesses(3) as ranks:
        ranks.start(leave_behind_a_reduction)
        assert ranks.next(2) == "gone"
        assert all("2 shut down" in ranks.next(rank) for rank in (0, 1))


def mix(rank: int, size: int, file: str, seed: int) -> bool:
    torch.set_num_threads(1)
    with open_rank(rank, size, file, "shared_memory") as session:
        some = session.add_process_set([0, 1]).id
        Mixture(seed, size, 40).run(session, some)
        session.barrier()
    return True


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 12))]
)
@pytest.mark.parametrize("size", [3, 4])
def test_any_mixture_of_reductions_gives_what_torch_gives(size: int, seed: int) -> None:
    with RankProcesses(size) as ranks:
        assert all(ranks.run(mix, seed))


def digest_of_sums(rank: int, size: int, file: str, backend: str) -> str:
    generator = torch.Generator().manual_seed(rank)
    digest = hashlib.sha256()
    with open_rank(rank, size, file, backend) as session:
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.complex64):
            for count in (7, 3000, 700_001):
                tensor = torch.randn(count, generator=generator).to(dtype)
                reduction = Reduction(ReduceOp.AVERAGE, prescale=0.7, postscale=1.1)
                result = session.wait(session.allreduce(tensor, reduction, name="x"))
                digest.update(result.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize(("backend", "size"), [("c10d", 3), ("hierarchical", 4)])
def test_all_ranks_get_the_same_bits(backend: str, size: int) -> None:
    with RankProcesses(size) as ranks:
        assert len(set(ranks.run(digest_of_sums, backend))) == 1


def die_on_the_way(rank: int, size: int, file: str, backend: str) -> str:
    if rank == 1:
        for module, name in ((tree_links, "connect_to_coordinator"), (opening, "join_host")):
            assert hasattr(module, name)
            setattr(module, name, lambda *_: os._exit(1))
    options = SessionOptions(backend=backend, timeout_seconds=1)  # type: ignore[arg-type]
    with pytest.raises(CollectiveError) as caught:
        open_session(rank, size, FileStore(file), options)
    return str(caught.value)


@pytest.mark.parametrize("backend", ["shared_memory", "c10d"])
def test_rank_that_dies_before_it_has_greeted_ends_the_start_of_all_others(backend: str) -> None:
    with RankProcesses(3) as ranks:
        ranks.start(die_on_the_way, backend)
        for rank in (0, 2):
            told = ranks.next(rank)
            assert "rank 1" in told, told


# ---------------------------------------------------------------- forks and signals


def fork_in_between(rank: int, size: int, file: str, backend: str) -> str:
    with open_rank(rank, size, file, backend) as session:
        session.barrier()
        pid = os.fork()
        if pid == 0:
            try:
                session.barrier()
            except CollectiveError as error:
                os._exit(7 if "forked" in str(error) else 8)
            os._exit(9)
        _, status = os.waitpid(pid, 0)
        total = session.wait(session.allreduce(torch.ones(1), SUM)).item()
        return f"{os.waitstatus_to_exitcode(status)} {total}"


@pytest.mark.parametrize("backend", ["shared_memory", "c10d"])
def test_forked_child_may_not_use_the_session_and_does_not_harm_it(backend: str) -> None:
    with RankProcesses(2) as ranks:
        assert ranks.run(fork_in_between, backend) == ["7 2.0"] * 2


def interrupted(rank: int, size: int, file: str, backend: str) -> float:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open_rank(rank, size, file, backend) as session:
        if rank == 0:
            handle = session.allreduce(torch.ones(1), SUM, name="late")
            main = threading.main_thread().ident
            assert main is not None
            timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                session.wait(handle)
            timer.join()
            session.wait(session.allreduce(torch.ones(1), name="go on"))
            return session.wait(handle).item()
        session.wait(session.allreduce(torch.ones(1), name="go on"))
        return session.wait(session.allreduce(torch.ones(1), SUM, name="late")).item()


@pytest.mark.parametrize("backend", ["shared_memory", "c10d"])
def test_wait_ends_at_ctrl_c_and_can_be_resumed(backend: str) -> None:
    with RankProcesses(2) as ranks:
        assert ranks.run(interrupted, backend) == [2, 2]


# ---------------------------------------------------------------- many sessions


def open_often(rank: int, size: int, file: str, backend: str, times: int) -> list[str]:
    store = FileStore(file)
    before = None
    inherited = _mapped_segments()
    for turn in range(times):
        options = SessionOptions(backend=backend)  # type: ignore[arg-type]
        with open_session(rank, size, store, options) as session:
            tensor = session.resident((100_000,), torch.float32).fill_(turn)
            session.wait(session.allreduce(tensor, SUM, output=tensor))
            assert tensor[0].item() == turn * size
            session.barrier()
        del tensor, session
        before = before or Inventory.take()  # the first use may leave what belongs to the process
    assert before is not None
    left = before.wait_until_nothing_new(10)
    return left + ["a mapped segment"] * (_mapped_segments() - inherited)


def _mapped_segments() -> int:
    return Path("/proc/self/maps").read_text().count("lockstitch-reductions")


@pytest.mark.parametrize(("backend", "times"), [("shared_memory", 30), ("c10d", 6)])
def test_sessions_come_and_go_and_leave_nothing(backend: str, times: int) -> None:
    with RankProcesses(2) as ranks:
        assert ranks.run(open_often, backend, times) == [[], []]
    assert not list(Path("/dev/shm").glob("lockstitch*"))


def open_by_environment(rank: int, size: int, _file: str, port: int) -> list[float]:
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size)
    )
    totals = []
    for _ in range(5):
        with open_session(rank, size) as session:
            totals.append(session.wait(session.allreduce(torch.ones(1), SUM)).item())
    os.environ.clear()
    return totals


def test_sessions_follow_each_other_on_the_store_of_the_environment() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with RankProcesses(3) as ranks:
        assert ranks.run(open_by_environment, port) == [[3] * 5] * 3
