"""Averages of weights elsewhere are those that torch keeps of a module here."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim
from torch.optim import swa_utils

from lockstitch import autograd, checkpoint, rpc
from lockstitch.nn import RemoteModule
from lockstitch.optim import AveragedModel, DistributedOptimizer, parameters_of, update_bn
from lockstitch.testing.cluster import LocalCluster


@pytest.fixture
def cluster():
    with LocalCluster(3) as cluster, cluster[0].active():
        yield cluster


def model() -> nn.Module:
    made = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in made.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5, generator)
    return made


def batches(count: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(5, 3, generator=generator, dtype=torch.float64) for _ in range(count)]


def state_of(reference) -> dict[str, torch.Tensor]:
    return reference.local_value().state_dict()


KINDS = {
    "swa": dict,
    "ema": lambda: {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
    "avg_fn": lambda: {"avg_fn": swa_utils.get_ema_avg_fn(0.5), "use_buffers": True},
    "own": lambda: {"avg_fn": lambda old, new, n: old + (new - old) / (n + 2)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_averages_of_a_training_are_torchs(cluster, kind) -> None:
    remote = rpc.remote("worker1", model)
    average = AveragedModel(remote, **KINDS[kind]())
    optimizer = DistributedOptimizer(optim.SGD, parameters_of(remote), lr=0.1)
    here = model()
    plain, plain_optimizer = (
        swa_utils.AveragedModel(here, **KINDS[kind]()),
        optim.SGD(here.parameters(), lr=0.1),
    )
    for batch in batches():
        with autograd.context() as context_id:
            autograd.backward(context_id, [remote.rpc_sync().forward(batch).square().mean()])
            optimizer.step(context_id)
        average.update_parameters(remote)
        plain_optimizer.zero_grad()
        here(batch).square().mean().backward()
        plain_optimizer.step()
        plain.update_parameters(here)
    update_bn(iter(batches()), average)
    swa_utils.update_bn(batches(), plain)
    ours = rpc.rpc_sync("worker1", state_of, (average.averages[0],))
    expected = plain.state_dict()
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[key], expected[key]) for key in expected)
    assert torch.equal(average(batches()[0]), plain(batches()[0]))


def test_several_modules_are_averaged_at_once_each_where_it_is(cluster) -> None:
    modules = [RemoteModule("worker1/cpu", model), rpc.remote("worker2", model)]
    average = AveragedModel(modules)
    assert repr(average) == "<AveragedModel of 2 modules on 'worker1', 'worker2'>"
    before = cluster.traffic()
    average.update_parameters()
    assert (cluster.traffic() - before).kinds["Call"] == 2
    with pytest.raises(ValueError, match="there are averages of 2 modules"):
        average(batches()[0])
    with pytest.raises(ValueError, match=r"averages of 2 modules, and each is to see what it"):
        update_bn(batches(), average)
    with pytest.raises(ValueError, match=r"on \['worker1', 'worker2'\], but those given are on"):
        average.update_parameters(modules[::-1])


@pytest.mark.parametrize("count", [1, 2])
def test_the_state_is_torchs_and_goes_through_a_checkpoint(cluster, tmp_path, count) -> None:
    modules = [rpc.remote(f"worker{n + 1}", model) for n in range(count)]
    average = AveragedModel(modules)
    average.update_parameters()
    kept = [swa_utils.AveragedModel(model()) for _ in range(count)]
    plain = kept[0] if count == 1 else nn.ModuleList(kept)
    plain.load_state_dict(average.state_dict())
    assert [int(each.n_averaged) for each in kept] == [1] * count
    checkpoint.save(tmp_path, {"average": average})
    average.update_parameters()
    checkpoint.load(tmp_path, {"average": average})
    ours = average.state_dict()
    assert ours.keys() == plain.state_dict().keys()
    assert all(map(torch.equal, ours.values(), plain.state_dict().values()))
    with pytest.raises(RuntimeError, match="Missing key|of none of the 2 averages"):
        average.load_state_dict({"other": torch.ones(1)})


def test_batches_may_come_with_targets_and_modules_need_no_average(cluster) -> None:
    remote, here = rpc.remote("worker1", model), model()
    pairs = [(batch, torch.ones(1)) for batch in batches()]
    update_bn(pairs, remote)
    swa_utils.update_bn(pairs, here)
    ours = rpc.rpc_sync("worker1", state_of, (remote,))
    assert all(map(torch.equal, ours.values(), here.state_dict().values()))


def test_errors_are_torchs_and_ours(cluster) -> None:
    with pytest.raises(AssertionError, match="Only one of avg_fn and multi_avg_fn"):
        AveragedModel(rpc.remote("worker1", model), avg_fn=max, multi_avg_fn=max)
    with pytest.raises(TypeError, match=r"not a Sequential: .* say RRef\(module\)"):
        AveragedModel(model())  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        update_bn((batch / (1 // 0) for batch in batches()), rpc.remote("worker1", model))
