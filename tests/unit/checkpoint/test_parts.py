"""What an optimizer over several workers has is written by those who own it, and read by those who
do then."""

from __future__ import annotations

import pytest
import torch

from lockstitch import autograd, checkpoint, rpc
from lockstitch.checkpoint.parts import copy_parts, is_in_parts, owners_of
from lockstitch.checkpoint.registry import CheckpointRegistry
from lockstitch.checkpoint.shards import write_shard
from lockstitch.checkpoint.structure import Stored
from lockstitch.optim import DistributedOptimizer
from lockstitch.testing.cluster import LocalCluster


@pytest.fixture
def group():
    with LocalCluster(3) as cluster, cluster[0].active():
        yield cluster


def make_weight(fill: float) -> torch.Tensor:
    return torch.full((2,), fill, requires_grad=True)


def trained(owners: list[str], **options) -> DistributedOptimizer:
    weights = [rpc.remote(name, make_weight, (n + 1.0,)) for n, name in enumerate(owners)]
    optimizer = DistributedOptimizer(torch.optim.Adam, weights, **options)
    with autograd.context() as context:
        autograd.backward(context, [sum((each.to_here() ** 2).sum() for each in weights)])
        optimizer.step(context)
    return optimizer


def test_the_state_names_the_tensors_that_owners_have_copied(group) -> None:
    optimizer = trained(["worker1", "worker2"])
    assert is_in_parts(optimizer)
    assert owners_of(optimizer) == ["worker1", "worker2"]
    state = copy_parts(optimizer, "attempt", "o")
    assert state["state"][1]["exp_avg"] == Stored("worker2", "o.state.0.exp_avg")
    copy = CheckpointRegistry.of(group[2]).take_copy("attempt")
    assert copy is not None
    assert copy.plain == {}
    assert torch.equal(copy.tensors["o.state.0.exp_avg"], torch.full((2,), 0.4))


def test_an_optimizer_whose_states_hooks_see_is_not(group) -> None:
    optimizer = trained(["worker1"])
    optimizer.register_state_dict_post_hook(lambda _optimizer, state: state)
    assert not is_in_parts(optimizer)
    optimizer = trained(["worker1"])
    optimizer.register_load_state_dict_pre_hook(lambda _optimizer, state: state)
    assert not is_in_parts(optimizer)


def test_no_tensor_of_the_state_passes_the_worker_that_saves_or_loads(
    group, tmp_path, monkeypatch
) -> None:
    expected = trained(["worker1", "worker2"]).state_dict()
    optimizer = trained(["worker1", "worker2"])
    monkeypatch.setattr(DistributedOptimizer, "state_dict", pytest.fail)
    monkeypatch.setattr(DistributedOptimizer, "load_state_dict", pytest.fail)
    checkpoint.save(tmp_path, {"o": optimizer})
    assert checkpoint.names(tmp_path) == {"o": "worker0"}
    for path in tmp_path.glob("*worker0*"):
        assert path.stat().st_size < 2000
    checkpoint.load(tmp_path, {"o": optimizer})
    monkeypatch.undo()
    for state in (checkpoint.read(tmp_path)["o"], optimizer.state_dict()):
        assert state["param_groups"] == expected["param_groups"]
        for number in (0, 1):
            for key, value in expected["state"][number].items():
                assert torch.equal(state["state"][number][key], value)


def test_options_that_are_tensors_come_back(group, tmp_path) -> None:
    optimizer = trained(["worker1", "worker2"], lr=torch.tensor(0.5))
    checkpoint.save(tmp_path, {"o": optimizer})
    again = trained(["worker2"] * 2, lr=torch.tensor(0.1))
    checkpoint.load(tmp_path, {"o": again})
    assert again.param_groups[0]["lr"] == torch.tensor(0.5)


def test_a_part_that_is_damaged_or_gone_changes_nothing(group, tmp_path) -> None:
    optimizer = trained(["worker1", "worker2"])
    checkpoint.save(tmp_path, {"o": optimizer})
    (file,) = tmp_path.glob("*worker2*")
    before = optimizer.state_dict()["state"]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="is not the file that was saved"):
        checkpoint.load(tmp_path, {"o": optimizer})
    file.unlink()
    with pytest.raises(FileNotFoundError, match="is not there"):
        checkpoint.load(tmp_path, {"o": optimizer})
    after = optimizer.state_dict()["state"]
    assert all(torch.equal(after[n]["exp_avg"], before[n]["exp_avg"]) for n in (0, 1))
    for worker in group:
        registry = CheckpointRegistry.of(worker)
        assert (registry.pending, registry._parts, registry._copied) == ({}, {}, {})


def test_an_owner_that_cannot_write_leaves_the_former_checkpoint(
    group, tmp_path, monkeypatch
) -> None:
    optimizer = trained(["worker1", "worker2"])
    checkpoint.save(tmp_path, {"o": optimizer})
    before = sorted(path.name for path in tmp_path.iterdir())

    def write(folder, save, worker, copy):
        if worker == "worker2":
            raise OSError("disk full")
        return write_shard(folder, save, worker, copy)

    monkeypatch.setattr("lockstitch.checkpoint.operations.write_shard", write)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.save(tmp_path, {"o": optimizer})
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert torch.equal(checkpoint.read(tmp_path)["o"]["state"][1]["exp_avg"], torch.full((2,), 0.4))


def test_a_save_in_the_background_has_what_was_there_when_it_began(group, tmp_path) -> None:
    optimizer = trained(["worker1", "worker2"])
    saved = checkpoint.save_async(tmp_path, {"o": optimizer})
    state = optimizer.state_dict()
    for each in state["state"].values():
        each["exp_avg"].zero_()
    optimizer.load_state_dict(state)
    saved.wait()
    found = checkpoint.read(tmp_path)["o"]["state"]
    assert torch.equal(found[0]["exp_avg"], torch.full((2,), 0.2))
