"""Process groups of the backend in real processes, by torch's own functions, beside Gloo's."""

from __future__ import annotations

import os
import random
import threading
import time

import pytest
import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from lockstitch.collectives import SUM, Session, open_session
from lockstitch.errors import RankLostError
from tests.processes.groups import begin, compare
from tests.processes.ranks import RankProcesses

# torch 2.13 has other names for some functions, which older ones lack.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")

# ---------------------------------------------------------------- groups


def use_groups(rank: int, size: int, file: str) -> str:
    """Overlapping groups, objects, the same group twice, and a second beginning."""
    for round_number in range(2):
        begin(rank, size, f"{file}{round_number}")
        pair = distributed.new_group([0, 1])
        others = distributed.new_group([2, 1])
        distributed.new_group([0, 2])
        # torch names this one by how many groups each of its ranks is in, and from 2.15 on later
        # ones by how many have been made where: hence the last, when all are in equally many.
        again = distributed.new_group([0, 1], use_local_synchronization=True)
        for group, members in ((pair, [0, 1]), (others, [1, 2]), (again, [0, 1])):
            if rank in members:
                mine = torch.ones(2) * rank
                distributed.all_reduce(mine, group=group)
                assert mine.tolist() == [float(sum(members))] * 2
                root = [{"from": rank}]
                distributed.broadcast_object_list(root, src=members[1], group=group)
                assert root == [{"from": members[1]}]
        part = distributed.group.WORLD.split_group([0, 2] if rank != 1 else [1])  # type: ignore[union-attr]
        distributed.all_reduce(mine := torch.ones(1), group=part)
        assert mine.item() == part.size()
        assert distributed.group.WORLD.split_group([2, 1]) is None or rank  # type: ignore[union-attr]
        objects: list[object] = [None] * size
        distributed.all_gather_object(objects, {"rank": rank, "more": "x" * rank * 1000})
        assert [each["rank"] for each in objects] == list(range(size))  # type: ignore[index]
        if rank in (1, 2):
            distributed.destroy_process_group(others)
        distributed.barrier()
        distributed.destroy_process_group()
    return "done"


def test_groups_overlap_end_in_any_order_and_begin_again() -> None:
    with RankProcesses(3) as ranks:
        assert ranks.run(use_groups) == ["done"] * 3


def exchange(rank: int, size: int, file: str) -> list[float]:
    begin(rank, size, file)
    other = 1 - rank
    given, found = torch.full((3,), float(rank)), torch.zeros(3)
    operations = [
        distributed.P2POp(distributed.isend, given, other, tag=4),
        distributed.P2POp(distributed.irecv, found, other, tag=4),
    ]
    for work in distributed.batch_isend_irecv(operations):
        work.wait()
    large, received = torch.full((1 << 20,), float(rank)), torch.zeros(1 << 20)
    sending = distributed.isend(large, other)
    assert distributed.recv(received) == other
    sending.wait()
    assert received.unique().tolist() == [float(other)]
    distributed.barrier()
    distributed.destroy_process_group()
    return found.tolist()


def test_messages_pass_between_processes() -> None:
    with RankProcesses(2) as ranks:
        assert ranks.run(exchange) == [[1.0] * 3, [0.0] * 3]


def use_session_beside(rank: int, size: int, file: str) -> list[float]:
    begin(rank, size, file)
    with open_session(rank, size, f"file://{file}-session") as session:
        mine = torch.ones(2)
        work = distributed.all_reduce(mine, async_op=True)
        total = session.wait(session.allreduce(torch.ones(1 << 20), SUM))
        work.wait()
        distributed.destroy_process_group()
        again = session.wait(session.allreduce(torch.ones(1), SUM))
    return [mine[0].item(), total[7].item(), again.item()]


def test_group_and_a_session_of_hvd_live_in_one_process() -> None:
    with RankProcesses(2) as ranks:
        assert ranks.run(use_session_beside) == [[2.0] * 3] * 2


# ---------------------------------------------------------------- death


def outlive(rank: int, size: int, file: str) -> tuple[str, float]:
    begin(rank, size, file)
    distributed.barrier()
    if rank == 1:
        os._exit(3)
    begun = time.monotonic()
    with pytest.raises(RankLostError, match="rank 1 died") as told:
        distributed.all_reduce(torch.ones(2))
    return str(told.value), time.monotonic() - begun


def outlive_in_receiving(rank: int, size: int, file: str) -> str:
    begin(rank, size, file)
    distributed.barrier()
    if rank == 1:
        os._exit(3)
    with pytest.raises(RankLostError, match="rank 1 died") as told:
        distributed.recv(torch.ones(2))
    return str(told.value)


def test_who_receives_from_any_rank_is_told_who_died() -> None:
    with RankProcesses(3) as ranks:
        ranks.start(outlive_in_receiving)
        assert all("rank 1 died" in ranks.next(rank) for rank in (0, 2))


def test_every_survivor_is_told_who_died() -> None:
    with RankProcesses(3) as ranks:
        ranks.start(outlive)
        assert all("rank 1 died" in ranks.next(rank)[0] for rank in (0, 2))


# ---------------------------------------------------------------- training


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)),
        nn.Conv1d(1, 8, 3),
        nn.BatchNorm1d(8),
        nn.Flatten(),
        nn.Linear(32, 4),
    )


class Branches(nn.Module):
    """Uses one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(6, 4)
        self.calls = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        output: torch.Tensor = (self.first if self.calls % 2 else self.second)(batch)
        return output


def halve(_state, bucket):  # type: ignore[no-untyped-def] # torch reads annotations
    """A communication hook: sums in bfloat16."""
    small = bucket.buffer().bfloat16()
    future = distributed.all_reduce(small, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]) / 2)


def trained(module: DistributedDataParallel, rank: int, steps: int, syncs: int = 1) -> torch.Tensor:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        batch = torch.randn(5, 6, generator=generator)
        if step % syncs:
            with module.no_sync():
                module(batch).square().mean().backward()
            continue
        module(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def with_layers(rank: int) -> torch.Tensor:
    return trained(DistributedDataParallel(layers()), rank, 5)


def with_many_buckets(rank: int) -> torch.Tensor:
    wide = nn.Sequential(*(nn.Linear(6, 6) for _ in range(20)))
    return trained(DistributedDataParallel(wide, bucket_cap_mb=0.0005), rank, 5)


def with_large_buckets(rank: int) -> torch.Tensor:
    """They come to live in the memory that the ranks share, unless an array could look at them."""
    adopted = []

    def adopt(session: Session, tensor: torch.Tensor) -> bool:
        adopted.append(original(session, tensor))
        return adopted[-1]

    original = Session.adopt
    vectors = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "adopt", adopt)
        for are_views in (False, True):
            torch.manual_seed(3)
            wide = nn.Sequential(nn.Linear(6, 20_000), nn.ReLU(), nn.Linear(20_000, 4))
            module = DistributedDataParallel(
                wide, bucket_cap_mb=0.5, gradient_as_bucket_view=are_views
            )
            trained(module, rank, 1)
            module(torch.ones(5, 6) * rank).sum().backward()
            arrays = [each.grad.numpy() for each in module.parameters()] if are_views else []
            vectors.append(trained(module, rank, 6, syncs=2))
            assert all(array.base is not None for array in arrays)
            is_ours = distributed.get_backend() == "lockstitch"
            assert bool(adopted) == (is_ours and not are_views), adopted
            assert all(adopted)
            adopted.clear()
    return torch.cat(vectors)


def with_convolutions(rank: int) -> torch.Tensor:
    return trained(DistributedDataParallel(convolutions()), rank, 5)


def with_unused_parameters(rank: int) -> torch.Tensor:
    module = DistributedDataParallel(Branches(), find_unused_parameters=True)
    return trained(module, rank, 6)


def with_static_graph(rank: int) -> torch.Tensor:
    return trained(DistributedDataParallel(layers(), static_graph=True), rank, 5)


def with_accumulation(rank: int) -> torch.Tensor:
    return trained(DistributedDataParallel(layers()), rank, 6, syncs=2)


def with_a_hook(rank: int) -> torch.Tensor:
    module = DistributedDataParallel(layers(), gradient_as_bucket_view=True)
    module.register_comm_hook(None, halve)
    return trained(module, rank, 5)


def with_power_sgd(rank: int) -> torch.Tensor:
    module = DistributedDataParallel(layers())
    state = powerSGD_hook.PowerSGDState(process_group=None, start_powerSGD_iter=2)
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return trained(module, rank, 5)


def with_a_join(rank: int) -> torch.Tensor:
    module = DistributedDataParallel(layers())
    with Join([module]):
        return trained(module, rank, 3 + 2 * rank)


TRAININGS = [
    with_layers,
    with_many_buckets,
    with_large_buckets,
    with_convolutions,
    with_unused_parameters,
    with_static_graph,
    with_accumulation,
    with_a_hook,
    with_power_sgd,
    with_a_join,
]


def average_between_passes(rank: int) -> torch.Tensor:
    """Weights are averaged, and inputs received, between a forward pass and its backward pass."""
    weight, inputs = nn.Parameter(torch.full((3,), rank + 1.0)), torch.full((3,), rank + 2.0)
    found = []
    for _ in range(5):
        loss = (weight * inputs * weight).sum()
        with torch.no_grad():
            distributed.all_reduce(weight)
            distributed.broadcast(inputs, 1)
        loss.backward()
        found += [weight.detach().clone(), weight.grad]
    return torch.cat(found)  # type: ignore[arg-type]


def test_parameters_are_those_of_gloo_to_the_bit() -> None:
    compare(
        [
            with_many_buckets,
            with_large_buckets,
            with_unused_parameters,
            average_between_passes,
        ]
    )


def submit_in_callbacks(rank: int, size: int, file: str) -> str:
    """Each callback waits for collectives of its own, while the program submits others of the same
    shape: at another moment on each rank."""
    begin(rank, size, file)
    pauses = random.Random(rank)

    def pause() -> None:
        threading.Event().wait(pauses.random() * 2e-3)

    def reduced(value: float) -> torch.Tensor:
        pause()
        distributed.all_reduce(mine := torch.tensor([value + rank]))
        return mine

    def chain(number: int) -> torch.futures.Future[list[float]]:
        def first(_done: torch.futures.Future[list[torch.Tensor]]) -> list[float]:
            work = distributed.all_reduce(mine := torch.tensor([10.0 * number]), async_op=True)
            work.get_future().wait()
            return [mine.item(), reduced(20.0 * number).item()]

        def second(done: torch.futures.Future[list[float]]) -> list[float]:
            return [*done.value(), reduced(30.0 * number).item()]

        future = distributed.all_reduce(torch.zeros(1), async_op=True).get_future()
        pause()
        chained: torch.futures.Future[list[float]] = future.then(first).then(second)
        return chained

    for _ in range(5):
        begun = []
        for number in range(5):
            begun.append(chain(number))
            assert reduced(40.0 * number).item() == 80.0 * number + 1
        for number, future in enumerate(begun):
            assert future.wait() == [20.0 * number, 40.0 * number + 1, 60.0 * number + 1]
    distributed.barrier()
    distributed.destroy_process_group()
    return "done"


def test_collectives_in_callbacks_of_futures_meet_those_of_the_same_callback() -> None:
    with RankProcesses(2) as ranks:
        assert ranks.run(submit_in_callbacks) == ["done"] * 2


def compress_many_buckets(rank: int, size: int, file: str) -> list[float]:
    """Each bucket waits in callbacks; over Gloo that ends in a deadlock."""
    begin(rank, size, file)
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(6, 64), *(nn.Linear(64, 64) for _ in range(4)))
    module = DistributedDataParallel(wide, bucket_cap_mb=0.02)
    state = powerSGD_hook.PowerSGDState(process_group=None, start_powerSGD_iter=2)
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    vector = trained(module, rank, 5)
    distributed.destroy_process_group()
    return vector.tolist()


@pytest.mark.slow
def test_power_sgd_of_many_buckets_gives_all_ranks_the_same() -> None:
    with RankProcesses(2) as ranks:
        one, other = ranks.run(compress_many_buckets)
    assert one == other


@pytest.mark.slow
def test_parameters_of_every_training_are_those_of_gloo_to_the_bit() -> None:
    compare(TRAININGS)


def shard(rank: int) -> torch.Tensor:
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - takes seconds

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    module = layers()
    fully_shard(module[0], mesh=mesh)
    fully_shard(module, mesh=mesh)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        module(torch.randn(5, 6, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    full = [parameter.full_tensor().detach().flatten() for parameter in module.parameters()]
    return torch.cat(full)


def distribute(rank: int) -> torch.Tensor:
    from torch.distributed.tensor import (  # noqa: PLC0415 - takes seconds
        Replicate,
        Shard,
        distribute_tensor,
    )

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),), mesh_dim_names=("ranks",))
    whole = torch.arange(24.0).view(6, 4)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    product = (rows.t() @ rows).redistribute(mesh, [Replicate()])
    return torch.cat([columns.full_tensor().flatten(), product.to_local().flatten()])


def pass_on(rank: int) -> torch.Tensor:
    """Results of functional collectives, given to others before anybody has waited for them."""
    from torch.distributed import _functional_collectives as functional  # noqa: PLC0415 - as above

    group = distributed.group.WORLD
    mine = functional.all_reduce(torch.ones(3) * (rank + 1), "sum", group)
    distributed.all_reduce(mine)
    gathered = [torch.zeros(4) for _ in range(distributed.get_world_size())]
    part = functional.all_gather_tensor(torch.ones(2) * rank, 0, group)
    distributed.all_gather(gathered, part)
    return torch.cat([mine + 0, *gathered])


def derive_collectives(rank: int) -> torch.Tensor:
    """Functional collectives, whose results need gradients while they are under way."""
    from torch.distributed import _functional_collectives as functional  # noqa: PLC0415 - as above

    group = distributed.group.WORLD
    inputs = (torch.arange(1.0, 9.0).view(4, 2) * (rank + 1)).requires_grad_()
    gathered = functional.all_gather_tensor_autograd(inputs, 0, group)
    scattered = functional.reduce_scatter_tensor_autograd(gathered * gathered, "sum", 0, group)
    dealt = functional.all_to_all_single_autograd(scattered * 3, [2, 2], [2, 2], group)
    (dealt * (rank + 1)).sum().backward()
    assert inputs.grad is not None
    return torch.cat([inputs.grad, dealt.detach()])


@pytest.mark.slow
def test_what_stands_on_the_collectives_gives_what_it_gives_over_gloo() -> None:
    compare([shard, distribute, pass_on, derive_collectives])
