"""Programs that are in a mode of torch while they call us, and train afterwards."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lockstitch import hvd
from lockstitch.hvd.job import active
from tests.cluster.collectives.ranks import BACKENDS, Ranks
from tests.modes import EACH_MODE, Hollow, in_mode

SIZES = [3, 700]  # together beyond what is reduced in one phase, and large enough for a bucket


def on_two(program, backend="shared_memory"):
    """The values of both ranks."""

    def run(session):
        with active(session):
            return program()

    with Ranks(2, backend) as ranks:
        return ranks.run(run)


def train(steps=2):
    rows = torch.randn(4, 700, generator=torch.Generator().manual_seed(hvd.rank()))
    model = nn.Sequential(nn.Linear(700, 700), nn.Linear(700, 3))
    for each in model.parameters():
        nn.init.constant_(each, 0.01)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    for _ in range(steps):
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
    return [each.detach() for each in model.parameters()]


@pytest.mark.parametrize("mode", EACH_MODE[1:])
def test_a_metric_is_reduced_in_a_mode_and_training_goes_on_as_if_it_had_not_been(mode):
    """As Lightning does: a validation in inference mode comes before the first step."""

    def program():
        metrics = [torch.full((size,), hvd.rank() + 1.0) for size in (*SIZES, 1 << 19)]
        with in_mode(mode):
            reduced = [hvd.allreduce(each, op=hvd.Sum) for each in metrics]
            reduced += hvd.grouped_allreduce(metrics, op=hvd.Sum)
            hvd.broadcast_object({"epoch": 1}, 0)
            assert hvd.allgather_object(hvd.rank()) == [0, 1]
        for each in reduced:
            assert type(each) is torch.Tensor
            assert each.unique().tolist() == [3.0]
            each.add_(1)
        return train()

    for found, expected in zip(on_two(program), on_two(train), strict=True):
        assert all(map(torch.equal, found, expected))


class BegunInMode(Ranks):
    """Every rank opens its session in a mode of torch."""

    mode = "none"

    def _open(self, rank):
        with in_mode(self.mode):
            return super()._open(rank)


@pytest.mark.parametrize("mode", ["inference", "meta", "functions"])
def test_a_job_may_begin_in_a_mode(mode):
    def in_session(session):
        with active(session):
            return train()

    begun = BegunInMode(2, "shared_memory")
    begun.mode = mode
    with begun:
        trained = begun.run(in_session)
    for found, expected in zip(trained, on_two(train), strict=True):
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_of_inference_mode_are_reduced_in_place_outside_of_it(backend):
    def program():
        results = []
        for size in (*SIZES, 1 << 19):
            with torch.inference_mode():
                tensor = torch.full((size,), hvd.rank() + 1.0)
            results += [tensor, *hvd.grouped_allreduce_([tensor], op=hvd.Sum)]
            assert hvd.broadcast_(hvd.allreduce_(tensor, op=hvd.Sum), 1) is tensor
        return [each.unique().tolist() for each in results]

    assert on_two(program, backend) == [[[6.0]] * 6] * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tensor_without_data_is_refused_on_its_rank_and_the_session_goes_on(backend):
    def program():
        for nothing in (Hollow(torch.ones(2)), torch.ones(2, device="meta")):
            for operation in (hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.allreduce_async):
                if hvd.rank():
                    with pytest.raises(ValueError, match="without data|has no data"):
                        operation(nothing, name="x")
        if hvd.rank():
            with pytest.raises(RuntimeError, match="data|setup_context"):
                torch.vmap(hvd.allreduce)(torch.ones(2))
            with pytest.raises(ValueError, match="torch.func"):
                torch.vmap(hvd.allreduce_)(torch.ones(2))
        return hvd.allreduce(torch.ones(2), op=hvd.Sum, name="x").tolist()

    assert on_two(program, backend) == [[2.0, 2.0]] * 2


def test_sparse_tensors_of_inference_mode_are_added_up_and_refused_where_dense_ones_are_needed():
    def program():
        with torch.inference_mode():
            sparse = torch.eye(2).to_sparse()
        with pytest.raises(ValueError, match="make it dense"):
            hvd.allreduce(sparse)
        return hvd.sparse_allreduce_async(sparse, None, hvd.Sum)().to_dense().tolist()

    assert on_two(program) == [[[2.0, 0.0], [0.0, 2.0]]] * 2


class Unreadable(torch.Tensor):
    """Looks like any other, until somebody copies it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function.__name__ in ("copy_", "_foreach_copy_", "contiguous", "add"):
            raise LookupError("lost")
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("size", [3, 1 << 19])
def test_a_tensor_that_cannot_be_read_fails_on_its_rank_and_the_session_goes_on(size):
    def program():
        if hvd.rank():
            unreadable = torch.ones(size).t().as_subclass(Unreadable)
            with pytest.raises(LookupError):
                hvd.allreduce_(unreadable, op=hvd.Sum, name="x")
        return hvd.allreduce_(torch.ones(size), op=hvd.Sum, name="x")[:2].tolist()

    assert on_two(program) == [[2.0, 2.0]] * 2


def test_modes_of_the_program_see_nothing_of_our_work():
    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    seen: list[str] = []

    def program():
        tensor = torch.ones(700, 700)
        with Seeing():
            hvd.allreduce_(tensor)
            hvd.barrier()
            hvd.broadcast_object("x", 0)

    on_two(program)
    assert seen == []


def test_gradients_of_powersgd_are_not_rounded_by_autocast():
    def program(is_rounded):
        weight = nn.Parameter(torch.ones(64, 48))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=1.0), compression=hvd.Compression.powersgd(rank=2)
        )
        loss = (weight * torch.linspace(0, 1, 48) * (1 + hvd.rank())).sum()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_rounded):
            loss.backward()
            optimizer.step()
        return copy.copy(weight.detach())

    for found, expected in zip(
        on_two(lambda: program(True)), on_two(lambda: program(False)), strict=True
    ):
        assert torch.equal(found, expected)
