"""What each rank of `test_cuda_hvd.py` runs: `hvd_program.py DEVICE FOLDER [CHECK …]`.

Every check compares results on the device with what the CPU says; what came of each goes to the
file `RANK.json` in the folder. All ranks use the same device.
"""

from __future__ import annotations

import copy
import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from lockstitch import hvd
from lockstitch.hvd.job import current_session

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKS: dict[str, Callable[[torch.device], None]] = {}
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.uint8,
)
LARGE = 3_000_000
"""Elements, so many that they pass in chunks or where they lie."""


def check(function: Callable[[torch.device], None]) -> Callable[[torch.device], None]:
    CHECKS[function.__name__] = function
    return function


def of_rank(rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(0, 7, shape, generator=generator).to(dtype)


def everybodys(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [of_rank(rank, shape, dtype) for rank in range(hvd.size())]


def total_of(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    total, *others = everybodys(shape, dtype)
    for other in others:
        total = total + other
    return total


def expect(actual: torch.Tensor, expected: torch.Tensor, device: torch.device) -> None:
    assert actual.device == device, actual.device
    torch.testing.assert_close(actual.cpu(), expected)


# ---------------------------------------------------------------- operations


@check
def allreduce_of_all_dtypes_and_sizes(device: torch.device) -> None:
    for dtype in DTYPES:
        is_usual = dtype in (torch.float32, torch.float16, torch.int64)
        for shape in ((), (100,), (300, 1000), (LARGE,) if is_usual else (LARGE // 4,)):
            mine = of_rank(hvd.rank(), shape, dtype).to(device)
            kept = mine.clone()
            expect(hvd.allreduce(mine, op=hvd.Sum), total_of(shape, dtype), device)
            assert torch.equal(mine, kept)
            assert hvd.allreduce_(mine, op=hvd.Sum) is mine
            expect(mine, total_of(shape, dtype), device)


@check
def allreduce_with_other_operators_and_scales(device: torch.device) -> None:
    for shape in ((100,), (LARGE,)):
        mine = of_rank(hvd.rank(), shape).to(device)
        parts = torch.stack(everybodys(shape))
        expect(hvd.allreduce(mine, op=hvd.Max), parts.amax(0), device)
        expect(hvd.allreduce(mine), parts.mean(0), device)
        scaled = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        expect(scaled, 2 * parts.sum(0), device)
        packed = hvd.allreduce(mine, op=hvd.Sum, compression=hvd.Compression.fp16)
        expect(packed, parts.sum(0), device)
        expect(
            hvd.allreduce(mine.cpu(), op=hvd.Adasum).to(device),
            hvd.allreduce(mine, op=hvd.Adasum).cpu(),
            device,
        )


@check
def allreduce_of_tensors_in_any_order_of_memory(device: torch.device) -> None:
    for shape in ((30, 20), (2000, 1500)):
        mine = of_rank(hvd.rank(), shape).to(device).t().contiguous().t()
        expect(hvd.allreduce(mine, op=hvd.Sum), total_of(shape), device)
        hvd.allreduce_(mine, op=hvd.Sum)
        expect(mine, total_of(shape), device)


@check
def groups(device: torch.device) -> None:
    for rows in (5, 3000):
        shapes = [(rows, width) for width in (1, 7, 300)]
        mine = [of_rank(hvd.rank(), shape).to(device) for shape in shapes]
        for result, shape in zip(hvd.grouped_allreduce(mine, op=hvd.Sum), shapes, strict=True):
            expect(result, total_of(shape), device)
        hvd.grouped_allreduce_(mine, op=hvd.Sum)
        for tensor, shape in zip(mine, shapes, strict=True):
            expect(tensor, total_of(shape), device)


@check
def what_moves_without_being_reduced(device: torch.device) -> None:
    me, size = hvd.rank(), hvd.size()
    for width in (3, 100_000):
        rows = hvd.allgather(torch.full((me + 1, width), float(me), device=device))
        expected = torch.cat([torch.full((rank + 1, width), float(rank)) for rank in range(size)])
        expect(rows, expected, device)
        mine = torch.full((4, width), float(me), device=device)
        expect(hvd.broadcast(mine, size - 1), torch.full((4, width), size - 1.0), device)
        hvd.broadcast_(mine, 0)
        expect(mine, torch.zeros(4, width), device)
        sent = torch.arange(size * width, device=device).view(size, width) + me
        received, counts = hvd.alltoall(sent, [1] * size)
        base = torch.arange(width) + me * width
        expect(received, torch.stack([base + rank for rank in range(size)]), device)
        assert counts.tolist() == [1] * size
        share = hvd.reducescatter(torch.ones(2 * size, width, device=device), op=hvd.Sum)
        expect(share, torch.full((2, width), float(size)), device)
        (share,) = hvd.grouped_reducescatter([torch.ones(size, width, device=device)])
        expect(share, torch.ones(1, width), device)


@check
def operations_on_streams_of_the_program(device: torch.device) -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    source = torch.rand(1500, 1500, device=device)
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        slow = source
        for _ in range(30):
            slow = slow @ source / 750
        mine = torch.zeros_like(slow).add_(slow, alpha=0.0).add_(hvd.rank() + 1.0)
        under_way = hvd.allreduce_async(mine, op=hvd.Sum)
        in_place = hvd.allreduce_async_(mine.clone(), op=hvd.Sum)
    total = float(sum(range(1, hvd.size() + 1)))
    with torch.cuda.stream(second):
        results = [hvd.synchronize(under_way) * 1.0, hvd.synchronize(in_place) * 1.0]
        junk = [torch.rand(1500, 1500, device=device) for _ in range(4)]
    second.synchronize()
    assert len(junk) == 4
    for result in results:
        expect(result, torch.full((1500, 1500), total), device)


@check
def gradients_pass_through(device: torch.device) -> None:
    x = torch.ones(3, device=device, requires_grad=True)
    hvd.allreduce(x, op=hvd.Sum).sum().backward()
    expect(x.grad, torch.full((3,), float(hvd.size())), device)


@check
def sparse_gradients(device: torch.device) -> None:
    embedding = nn.Embedding(20, 4, sparse=True).to(device)
    nn.init.zeros_(embedding.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(embedding.parameters(), lr=1.0),
        named_parameters=embedding.named_parameters(),
    )
    embedding(torch.tensor([hvd.rank(), 7], device=device)).sum().backward()
    optimizer.step()
    expected = torch.zeros(20, 4)
    expected[: hvd.size()] = -1.0 / hvd.size()
    expected[7] -= 1.0
    expect(embedding.weight.detach(), expected, device)


@check
def ranks_that_join(device: torch.device) -> None:
    for number in range(hvd.rank() + 1):
        result = hvd.allreduce(torch.ones(3, device=device), op=hvd.Sum, name=f"step.{number}")
        expect(result, torch.full((3,), float(hvd.size() - number)), device)
    assert hvd.join() in range(hvd.size())


# ---------------------------------------------------------------- training


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 600)
        self.norm = nn.BatchNorm1d(600)
        self.second = nn.Linear(600, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.norm(self.first(x))))


def net(device: torch.device, *, has_norm: bool) -> Net:
    torch.manual_seed(0)
    made = Net()
    if not has_norm:
        made.norm = nn.Identity()
    return made.to(device)


def batches(device: torch.device, steps: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8 * hvd.size(), 64, generator=generator).to(device) for _ in range(steps)]


def trained(model: Net, optimizer: torch.optim.Optimizer, parts: list[torch.Tensor]) -> Net:
    for x in parts:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    return model


def compare_with_one_process(
    device: torch.device, *, has_norm: bool = False, tolerance: float = 1e-5, **options: object
) -> None:
    whole = batches(device)
    me, plain = hvd.rank(), net(device, has_norm=has_norm)
    alone = copy.deepcopy(plain)
    trained(alone, torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9), whole)
    model = plain
    if has_norm:
        model.norm = hvd.SyncBatchNorm(600).to(device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        named_parameters=model.named_parameters(),
        **options,
    )
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    trained(model, optimizer, [x[8 * me : 8 * me + 8] for x in whole])
    for mine, expected in zip(
        model.state_dict().values(), alone.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(mine, expected, rtol=tolerance, atol=tolerance)
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    everybody = hvd.allgather(flat[None])
    assert all(torch.equal(everybody[0], each) for each in everybody)


@check
def training_is_that_of_one_process(device: torch.device) -> None:
    compare_with_one_process(device)


@check
def training_with_options_is_that_of_one_process(device: torch.device) -> None:
    compare_with_one_process(device, groups=2)
    compare_with_one_process(device, gradient_predivide_factor=2.0)
    compare_with_one_process(device, compression=hvd.Compression.fp16, tolerance=1e-3)


@check
def batch_norm_of_all_ranks_is_that_of_one_process(device: torch.device) -> None:
    compare_with_one_process(device, has_norm=True, tolerance=1e-4)


@check
def adasum_training_is_the_same_on_all_ranks(device: torch.device) -> None:
    model = net(device, has_norm=False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        op=hvd.Adasum,
    )
    me = hvd.rank()
    trained(model, optimizer, [x[8 * me : 8 * me + 8] for x in batches(device)])
    everybody = hvd.allgather(model.first.weight.detach()[None])
    assert all(torch.equal(everybody[0], each) for each in everybody)


@check
def scaled_gradients_are_unscaled_alike_and_steps_with_inf_are_skipped(
    device: torch.device,
) -> None:
    model = net(device, has_norm=False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    me = hvd.rank()
    for number, x in enumerate(batches(device)):
        before = model.first.weight.detach().clone()
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            loss = model(x[8 * me : 8 * me + 8]).float().pow(2).mean()
        # On one rank only; the average tells all.
        factor = float("inf") if number == 2 and me == hvd.size() - 1 else 1.0
        scaler.scale(loss * factor).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, model.first.weight) == (number == 2)
        everybody = hvd.allgather(model.first.weight.detach()[None])
        assert all(torch.equal(everybody[0], each) for each in everybody)
    assert scaler.get_scale() == 512.0


@check
def state_of_an_elastic_job_goes_to_all(device: torch.device) -> None:
    model = net(device, has_norm=True)
    with torch.no_grad():
        model.first.weight.add_(hvd.rank())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    if hvd.rank() == 0:
        trained(model, optimizer, batches(device, 1))
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=hvd.rank())
    state.sync()
    assert state.epoch == 0
    everybody = hvd.allgather(model.first.weight.detach()[None])
    assert all(torch.equal(everybody[0], each) for each in everybody)
    assert len(optimizer.state) == len(list(model.parameters()))
    assert all(each["exp_avg"].device == device for each in optimizer.state.values())


def route() -> str:
    """By which tensors of the device have gone."""
    routes = current_session()._devices._routes
    if not routes:
        return "device"
    return "host" if routes[0].backend is None else routes[0].backend.name


def main(device_name: str, folder: str, *names: str) -> None:
    hvd.init()
    device = torch.device(device_name)
    outcomes: dict[str, str] = {}
    for name, function in CHECKS.items():
        if names and name not in names:
            continue
        if device.type != "cuda" and "streams" in name:
            continue
        try:
            function(device)
        except Exception:  # noqa: BLE001 - told in the file
            outcomes[name] = traceback.format_exc(limit=-8)
        else:
            outcomes[name] = "ok"
    outcomes["route"] = route()
    Path(folder, f"{hvd.rank()}.json").write_text(json.dumps(outcomes))
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
