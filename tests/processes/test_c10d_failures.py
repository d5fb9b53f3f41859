"""Process groups of the backend when something goes wrong: who it was, where, and in what."""

from __future__ import annotations

import itertools
import os
import pickle
import random
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import distributed, nn

import lockstitch.c10d  # noqa: F401 - makes the backend known
from lockstitch.collectives import SessionOptions
from lockstitch.errors import MismatchError, RankLostError, StalledError
from tests.processes.ranks import RankProcesses

if TYPE_CHECKING:
    from collections.abc import Callable

# torch 2.13 has other names for some functions, which older ones lack.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
HOST = os.uname().nodename


def begin(rank: int, size: int, file: str, options: object = None, seconds: float = 60.0) -> None:
    distributed.init_process_group(
        "lockstitch",
        init_method=f"file://{file}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=seconds),
        pg_options=options,
    )


def raised(kind: type[Exception], function: Callable[[], object]) -> tuple[str, float]:
    """What is raised, and after how long."""
    begun = time.monotonic()
    with pytest.raises(kind) as told:
        function()
    return str(told.value), time.monotonic() - begun


# ---------------------------------------------------------------- death


def outlive_in_a_subgroup(rank: int, size: int, file: str) -> tuple[str, float] | None:
    begin(rank, size, file)
    group = distributed.new_group([1, 3])
    if rank in (0, 2):
        distributed.barrier()  # it ends with the world
        return None
    distributed.all_reduce(torch.ones(2), group=group)
    if rank == 3:
        os._exit(3)
    return raised(RankLostError, lambda: distributed.all_reduce(torch.ones(2, 3), group=group))


def test_death_in_a_subgroup_is_told_by_global_rank_host_and_operation() -> None:
    with RankProcesses(4) as ranks:
        ranks.start(outlive_in_a_subgroup)
        text, seconds = ranks.next(1)
    assert f"rank 3 died (on host {HOST}, seen by rank 1)" in text
    assert "rank 1 was in all_reduce of float32 (2, 3), operation 2 of group '1'" in text
    assert "of ranks 1, 3" in text
    assert seconds < 30


def outlive_between_hosts(rank: int, size: int, file: str) -> tuple[str, float]:
    begin(rank, size, file, SessionOptions(host=f"host{rank}"))
    distributed.barrier()
    if rank == 1:
        os._exit(3)
    source = 1 if rank == 0 else 0  # nobody sends from there, and rank 0 lives for a while
    return raised(RankLostError, lambda: distributed.recv(torch.ones(2), source))


def test_who_receives_between_hosts_is_told_who_died() -> None:
    with RankProcesses(3) as ranks:
        ranks.start(outlive_between_hosts)
        told = {rank: ranks.next(rank) for rank in (0, 2)}
    for rank, source in ((0, 1), (2, 0)):
        text, seconds = told[rank]
        assert text.startswith("rank 1 died, or its connection broke"), text
        what = f"recv {rank}<-{source} of float32 (2,), message 1 of group '0'"
        assert f"(rank {rank} was in {what}" in text
        assert seconds < 30


def exchange_in_a_ring(rank: int, size: int, turn: int) -> None:
    found, given = torch.zeros(1 << turn % 18), torch.full((1 << turn % 18,), float(rank))
    receiving = distributed.irecv(found, (rank - 1) % size, tag=turn % 3)
    sending = distributed.isend(given, (rank + 1) % size, tag=turn % 3)
    for work in (sending, receiving):
        work.wait()  # type: ignore[union-attr]
    assert found.unique().tolist() == [float((rank - 1) % size)]


def pass_on_and_meet(rank: int, size: int, turn: int) -> None:
    given = torch.full((1 + turn % 50,), float(turn))
    if rank:
        found = torch.zeros(1 + turn % 50)
        distributed.recv(found, rank - 1)
        assert torch.equal(found, given)
    if rank + 1 < size:
        distributed.send(given, rank + 1)
    distributed.barrier()
    told = given if rank == turn % size else torch.zeros_like(given)
    distributed.broadcast(told, turn % size)
    assert torch.equal(told, given)


def reduce_and_gather(rank: int, size: int, turn: int) -> None:
    tensors = [torch.full((count,), float(rank + turn)) for count in (3, 5000, 300_001)]
    works = [distributed.all_reduce(tensor, async_op=True) for tensor in tensors]
    whole = torch.zeros(size * 7)
    distributed.all_gather_into_tensor(whole, torch.full((7,), float(rank)))
    for tensor, work in zip(tensors, works, strict=True):
        work.wait() if turn % 2 else work.get_future().wait()
        assert tensor.eq(size * turn + size * (size - 1) / 2).all()


def train_a_replica(rank: int, size: int, turn: int) -> None:
    if not turn:
        torch.manual_seed(0)
        wide = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
        REPLICA.append(nn.parallel.DistributedDataParallel(wide, bucket_cap_mb=0.05))
    REPLICA[0](torch.ones(4, 64)).sum().backward()


REPLICA: list[nn.Module] = []
PROGRAMS = {
    each.__name__: each
    for each in (exchange_in_a_ring, pass_on_and_meet, reduce_and_gather, train_a_replica)
}


def go_on_until_death(
    rank: int, size: int, file: str, hosts: int, program: str, death: tuple[int, float]
) -> str:
    victim, seconds = death
    begin(rank, size, file, SessionOptions(host=f"host{rank % hosts}"))
    distributed.barrier()
    if rank == victim:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        for turn in itertools.count():
            PROGRAMS[program](rank, size, turn)
    except RuntimeError as error:  # DistributedDataParallel makes one of any other
        return str(error)
    raise AssertionError("nobody has died")


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("victim", [1, 2])
def test_rank_killed_at_any_moment_is_named_by_every_survivor(
    program: str, hosts: int, victim: int
) -> None:
    seconds = random.Random().uniform(0.05, 0.8)
    with RankProcesses(4) as ranks:
        ranks.start(go_on_until_death, hosts, program, (victim, seconds))
        told = {rank: ranks.next(rank) for rank in range(4) if rank != victim}
    for rank, text in told.items():
        assert f"rank {victim} died" in text, (rank, seconds, text)


# ---------------------------------------------------------------- who does not come


def rest_in_the_program() -> None:
    threading.Event().wait(5.0)


def wait_for_others(rank: int, size: int, file: str) -> str:
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = f"{file}_trace_"
    begin(rank, size, file, seconds=4.0)
    pair = distributed.new_group([1, 2], timeout=timedelta(seconds=60))
    distributed.all_reduce(torch.ones(1))
    if rank == 2:
        rest_in_the_program()
        return ""
    if rank == 1:
        return raised(RankLostError, lambda: distributed.broadcast(torch.ones(2), 1, group=pair))[0]
    text, _ = raised(StalledError, lambda: distributed.all_reduce(torch.ones(3)))
    return text


@pytest.mark.slow
def test_stall_tells_who_has_not_come_and_what_they_do_instead() -> None:
    with RankProcesses(3) as ranks:
        first, second, _ = ranks.run(wait_for_others)
        folder = Path(ranks.folder)
        traces = [pickle.loads((folder / f"store_trace_{rank}").read_bytes()) for rank in range(2)]
    assert "waited 4 s for ranks 1, 2" in first
    assert "timeout of the group (rank 0 was in all_reduce of float32 (3,), operation 2" in first
    assert "rank 1: its last operation here is all_reduce" in first
    assert "group '1' of ranks 1, 2" in first  # where rank 1 waits instead
    assert "in rest_in_the_program" in first  # where rank 2 is instead
    assert second.startswith("rank 2 died")
    states = [[entry["state"] for entry in trace["entries"]] for trace in traces]
    assert states[0] == ["completed", "scheduled"]


# ---------------------------------------------------------------- who differs


def disagree_in_a_subgroup(rank: int, size: int, file: str) -> str:
    begin(rank, size, file)
    group = distributed.new_group([0, 2])
    told = ""
    if rank != 1:
        mine = torch.ones(2 + rank)
        told, _ = raised(MismatchError, lambda: distributed.all_reduce(mine, group=group))
        distributed.all_reduce(torch.ones(2), group=group)  # the group goes on
    distributed.barrier()
    distributed.destroy_process_group()
    return told


def test_ranks_that_differ_are_told_by_their_global_numbers() -> None:
    with RankProcesses(3) as ranks:
        one, _, other = ranks.run(disagree_in_a_subgroup)
    for text in (one, other):
        assert "shape: (2,) on rank 0; (4,) on rank 2" in text
        assert "in all_reduce" in text


def take_a_step_less(rank: int, size: int, file: str) -> str:
    begin(rank, size, file)
    module = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))

    def step() -> None:
        module(torch.ones(2, 3)).sum().backward()

    for _ in range(2):  # after the first one it makes its buckets anew
        step()
    return raised(RuntimeError, step if rank else distributed.barrier)[0]


def test_backward_pass_raises_what_its_reduction_has_failed_with() -> None:
    with RankProcesses(2) as ranks:
        for text in ranks.run(take_a_step_less):
            assert "barrier on rank 0; allreduce on rank 1" in text


def fail_in_a_hook(rank: int, size: int, file: str) -> tuple[str, float]:
    begin(rank, size, file)
    module = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))

    def hook(_state, bucket):  # type: ignore[no-untyped-def] # torch reads annotations
        reduced = distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
        return reduced.then(lambda done: done.value()[0] / {}["scale"])

    module.register_comm_hook(None, hook)
    told = raised(KeyError, lambda: module(torch.ones(2, 3)).sum().backward())
    distributed.barrier()  # the group goes on
    return told


def test_backward_pass_raises_what_its_hook_has_failed_with() -> None:
    with RankProcesses(2) as ranks:
        for text, _ in ranks.run(fail_in_a_hook):
            assert "scale" in text


def begin_in_another_world(rank: int, size: int, file: str) -> str:
    return raised(RuntimeError, lambda: begin(rank, size + (rank == 1), file, seconds=20.0))[0]


def test_ranks_of_worlds_of_different_sizes_do_not_wait_for_each_other() -> None:
    with RankProcesses(2) as ranks:
        told = ranks.run(begin_in_another_world)
    assert any("world" in text for text in told), told


def refuse_what_makes_no_sense(rank: int, size: int, file: str) -> None:
    begin(rank, size, file)
    ones = torch.ones(2)
    with pytest.raises(ValueError, match="torch cannot do bitwise and with torch.float32"):
        distributed.all_reduce(ones, distributed.ReduceOp.BAND)
    with pytest.raises(ValueError, match="a tensor on the meta device has no data"):
        distributed.all_reduce(torch.ones(2, device="meta"))
    with pytest.raises(TypeError, match="takes lockstitch.collectives.SessionOptions"):
        distributed.new_group([0, 1], pg_options={"address": "::1"})
    other = distributed.new_group([1])
    if rank == 0:
        with pytest.warns(UserWarning, match="does not belong to the given group"):
            distributed.all_reduce(ones, group=other)
        with pytest.raises(ValueError, match="is not part of group|not part of the"):
            distributed.get_group_rank(other, 0)
    distributed.barrier()
    distributed.destroy_process_group()


def test_bad_input_is_an_error_of_torchs_own_kind() -> None:
    with RankProcesses(2) as ranks:
        ranks.run(refuse_what_makes_no_sense)
