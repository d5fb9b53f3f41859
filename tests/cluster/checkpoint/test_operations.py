"""A group saves what its workers own, and another one of another size goes on from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch import autograd, checkpoint, rpc
from lockstitch.checkpoint import registry, storage
from lockstitch.errors import PeerDiedError, SerializationError
from lockstitch.nn import RemoteModule
from lockstitch.optim import DistributedOptimizer, GradScaler, parameters_of
from lockstitch.runtime.agent import AgentOptions
from lockstitch.testing.cluster import LocalCluster
from lockstitch.trust.registry import Registry
from tests.parity.training.choices import SCHEDULERS

if TYPE_CHECKING:
    from pathlib import Path


def make_weight(fill: float) -> torch.Tensor:
    return torch.full((3,), fill, requires_grad=True)


class Training:
    """Weights on several workers, an optimizer over them, a counter; on the first worker."""

    def __init__(self, owners: list[str]) -> None:
        self.weights = [rpc.remote(name, make_weight, (n + 1.0,)) for n, name in enumerate(owners)]
        self.optimizer = DistributedOptimizer(torch.optim.Adam, self.weights, lr=0.1)
        self.steps = {"n": 0}
        for number, weight in enumerate(self.weights):
            checkpoint.register(f"weight{number}", weight)
        checkpoint.register("optimizer", self.optimizer)
        checkpoint.register("steps", self.steps)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            with autograd.context() as context:
                loss = sum((weight.to_here() ** 2).sum() for weight in self.weights)
                autograd.backward(context, [loss])
                self.optimizer.step(context)
            self.steps["n"] += 1

    def values(self) -> torch.Tensor:
        return torch.stack([weight.to_here().detach() for weight in self.weights])


@pytest.fixture
def group():
    with LocalCluster(3) as cluster, cluster[0].active():
        yield cluster


def test_training_goes_on_on_fewer_workers_as_if_nothing_had_happened(group, tmp_path) -> None:
    training = Training(["worker1", "worker2", "worker1", "worker0"])
    training.train(3)
    checkpoint.save(tmp_path / "x")
    training.train(3)
    expected = training.values()
    assert set(checkpoint.names(tmp_path / "x").values()) == {"worker0", "worker1", "worker2"}
    with LocalCluster(["other", "one"]) as smaller, smaller["one"].active():
        again = Training(["other", "one", "other", "other"])
        checkpoint.load(tmp_path / "x")
        assert again.steps == {"n": 3}
        again.train(3)
        assert torch.equal(again.values(), expected)


def test_a_save_that_fails_leaves_the_former_checkpoint(group, tmp_path) -> None:
    training = Training(["worker1"])
    checkpoint.save(tmp_path)
    before = sorted(tmp_path.iterdir())
    training.steps["n"] = {1, 2}
    with pytest.raises(TypeError, match="steps.n is of type set"):
        checkpoint.save(tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    training.steps["n"] = 5
    group.kill("worker1")
    with pytest.raises(PeerDiedError, match="worker1"):
        checkpoint.save(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_a_checkpoint_is_whole_though_the_save_failed_when_it_was_there(
    group, tmp_path, monkeypatch
) -> None:
    flush = storage._flush

    def flush_files_only(path: Path) -> None:
        if path.is_dir():
            raise OSError("the disk has gone")
        flush(path)

    checkpoint.save(tmp_path, {"steps": {"n": 1}})
    monkeypatch.setattr(storage, "_flush", flush_files_only)
    with pytest.raises(OSError, match="the disk has gone"):
        checkpoint.save(tmp_path, {"steps": {"n": 2}})
    assert checkpoint.read(tmp_path) == {"steps": {"n": 2}}


def test_what_does_not_fit_changes_nothing(group, tmp_path) -> None:
    checkpoint.register("a", {"n": 1})
    checkpoint.register("b", torch.ones(2))
    checkpoint.save(tmp_path)
    with LocalCluster(1) as other, other[0].active():
        counter = {"n": 0}
        checkpoint.register("a", counter)
        checkpoint.register("c", {})
        with pytest.raises(
            checkpoint.CheckpointError,
            match=r"lacks 'c' \(worker0\); nobody has registered 'b' \(of worker0\)",
        ):
            checkpoint.load(tmp_path)
        checkpoint.unregister("c")
        checkpoint.register("b", torch.ones(3))
        with pytest.raises(ValueError, match="'b' has the shape"):
            checkpoint.load(tmp_path)
        assert counter == {"n": 0}
        assert registry.CheckpointRegistry.of(other[0]).pending == {}
        checkpoint.unregister("b")
        checkpoint.load(tmp_path, strict=False)
        assert counter == {"n": 1}


def test_names_are_unique_and_something_must_be_there(group, tmp_path) -> None:
    with pytest.raises(checkpoint.CheckpointError, match="nothing to save"):
        checkpoint.save(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        checkpoint.load(tmp_path)
    checkpoint.register("x", {})
    with pytest.raises(ValueError, match="'x' is registered already on worker 'worker0'"):
        rpc.rpc_sync("worker1", checkpoint.register, ("x", {}))
    with pytest.raises(ValueError, match="'x' is registered already on worker 'worker0'"):
        checkpoint.register("x", rpc.remote("worker2", dict))
    checkpoint.save(tmp_path)
    assert checkpoint.names(tmp_path) == {"x": "worker0"}
    checkpoint.unregister("x")
    rpc.rpc_sync("worker1", checkpoint.register, ("x", {}))


def test_a_name_of_a_worker_that_died_is_free(group) -> None:
    rpc.rpc_sync("worker1", checkpoint.register, ("x", {}))
    group.kill("worker1")
    checkpoint.register("x", {})


def test_two_that_register_one_name_unseen_by_each_other_are_found_out_by_save(
    group, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(registry.CheckpointRegistry, "holds", lambda self, name: False)
    checkpoint.register("x", {})
    rpc.rpc_sync("worker1", checkpoint.register, ("x", {}))
    with pytest.raises(checkpoint.CheckpointError, match="two workers, 'worker0' and 'worker1'"):
        checkpoint.save(tmp_path)


def test_a_remote_module_is_saved_where_it_lives(group, tmp_path) -> None:
    module = RemoteModule("worker1/cpu", torch.nn.Linear, (2, 1))
    checkpoint.register("direct", module)
    behind = rpc.rpc_sync("worker2", handle_of, (module,))
    with pytest.raises(ValueError, match="'direct' is registered already on worker 'worker1'"):
        checkpoint.register("direct", {})
    checkpoint.register("behind", behind)  # on worker2 a reference to a handle, there to worker1
    before = module(torch.ones(1, 2))
    checkpoint.save(tmp_path)
    assert checkpoint.names(tmp_path) == {"direct": "worker1", "behind": "worker1"}
    for parameter in module.remote_parameters():
        rpc.rpc_sync("worker1", wipe, (parameter,))
    assert not module(torch.ones(1, 2)).any()
    checkpoint.load(tmp_path)
    assert torch.equal(module(torch.ones(1, 2)), before)
    checkpoint.unregister("direct")
    checkpoint.register("direct", {})


def handle_of(module: RemoteModule) -> rpc.RRef[RemoteModule]:
    return rpc.RRef(module)


def wipe(parameter: rpc.RRef[torch.nn.Parameter]) -> None:
    torch.nn.init.zeros_(parameter.local_value())


def test_peers_have_a_worker_use_files_where_its_registry_says_so(tmp_path) -> None:
    kept = {"n": 1}
    for allowed, verb in (([], "write"), ([checkpoint.save], "read")):
        registry = Registry(allowed)
        with (
            LocalCluster(2, options=AgentOptions(registry=registry)) as cluster,
            cluster[0].active(),
        ):
            checkpoint.register("kept", kept)
            if verb == "read":
                checkpoint.save(tmp_path / "x")
            use = checkpoint.save if verb == "write" else checkpoint.load
            with pytest.raises(SerializationError, match=f"may not have this worker {verb} files"):
                use(tmp_path / "x")
    registry = Registry([checkpoint.save, checkpoint.load])
    with LocalCluster(2, options=AgentOptions(registry=registry)) as cluster, cluster[0].active():
        checkpoint.register("kept", kept)
        checkpoint.save(tmp_path / "x")
        kept["n"] = 2
        checkpoint.load(tmp_path / "x")
    assert kept == {"n": 1}


def everything(owners: list[str]) -> dict[str, object]:
    """All ends of a training, on the worker that holds them, none of them registered."""
    modules = [rpc.remote(name, make_layer, (number,)) for number, name in enumerate(owners)]
    references = [each for module in modules for each in parameters_of(module)]
    optimizer = DistributedOptimizer(torch.optim.AdamW, references, lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
    layers = {f"layer{number}": module for number, module in enumerate(modules)}
    return {
        **layers,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": GradScaler(init_scale=64.0, growth_interval=2),
    }


def make_layer(number: int) -> torch.nn.Module:
    layer = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(layer.weight, 0.1 * (number + 1))
    torch.nn.init.zeros_(layer.bias)
    return layer


def train_all(things, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        with autograd.context() as context:
            x = torch.ones(3, 2)
            for name in ("layer0", "layer1"):
                x = things[name].rpc_sync().forward(x)
            loss = x.square().mean()
            autograd.backward(context, [things["scaler"].scale(loss)])
            things["scaler"].step(things["optimizer"], context)
            things["scaler"].update()
            things["scheduler"].step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("where", ["path", "memory"])
def test_all_ends_of_a_training_are_saved_and_restored_in_one_call(group, tmp_path, where) -> None:
    place = tmp_path / "x" if where == "path" else f"memory://{tmp_path.name}/x"
    things = everything(["worker1", "worker2"])
    train_all(things, 3)
    checkpoint.save(place, things)
    expected = train_all(things, 4)
    assert set(checkpoint.names(place)) == set(things)
    with pytest.raises(checkpoint.CheckpointError, match="nothing to save"):
        checkpoint.save(place)  # they were registered for that one call
    with LocalCluster(2) as smaller, smaller[0].active():
        again = everything(["worker1", "worker0"])
        checkpoint.load(place, again)
        assert train_all(again, 4) == expected


def test_a_save_goes_on_while_the_training_does(group, tmp_path) -> None:
    steps = {"n": 1}
    weight = rpc.remote("worker1", make_weight, (1.0,))
    saved = checkpoint.save_async(tmp_path / "x", {"steps": steps, "weight": weight})
    steps["n"] = 2
    rpc.rpc_sync("worker1", wipe, (weight,))
    saved.wait()
    assert checkpoint.read(tmp_path / "x")["steps"] == {"n": 1}
    assert torch.equal(checkpoint.read(tmp_path / "x")["weight"], torch.ones(3))


def test_only_one_save_into_a_folder_is_under_way_and_what_goes_wrong_is_raised(
    group, tmp_path
) -> None:
    kept = registry.CheckpointRegistry.of(group[0])
    assert kept.begin_save(str(tmp_path))
    with pytest.raises(checkpoint.CheckpointError, match="a save into .* is under way: wait for"):
        checkpoint.save(tmp_path, {"a": {}})
    kept.end_save(str(tmp_path))
    (tmp_path / "taken").write_text("a file")
    future = checkpoint.save_async(tmp_path / "taken", {"a": {}})
    with pytest.raises(OSError, match="File exists") as caught:
        future.wait()
    assert f"being saved into {tmp_path}/taken" in "".join(caught.value.__notes__)
    with pytest.raises(OSError, match="taken"):
        checkpoint.save(tmp_path / "taken", {"a": {}})
    assert kept._copied == {}


def test_names_given_for_one_call_may_be_registered_before(group, tmp_path) -> None:
    steps, more = {"n": 1}, {"m": 1}
    checkpoint.register("steps", steps)
    checkpoint.save(tmp_path, {"steps": steps, "more": more})
    checkpoint.register("other", {})
    steps["n"] = more["m"] = 5
    checkpoint.load(tmp_path, {"steps": steps, "more": more})
    assert (steps, more) == ({"n": 1}, {"m": 1})
    with pytest.raises(ValueError, match="'steps' is registered already"):
        checkpoint.save(tmp_path, {"steps": {}})
    assert set(kept_names(group)) == {"steps", "other"}


def kept_names(group) -> list[str]:
    return registry.CheckpointRegistry.of(group[0]).names()


def test_states_come_in_and_go_out_without_a_group(tmp_path) -> None:
    model = torch.nn.Linear(2, 1)
    states = {"model": model.state_dict(), "steps": {"n": 3, "seen": (1, None)}}
    checkpoint.write(tmp_path, states)
    assert checkpoint.names(tmp_path) == {"model": "nobody", "steps": "nobody"}
    found = checkpoint.read(tmp_path)
    assert found["steps"] == states["steps"]
    assert torch.equal(found["model"]["weight"], model.weight)
    with pytest.raises(checkpoint.CheckpointError, match="no states were given"):
        checkpoint.write(tmp_path, {})
    with pytest.raises(TypeError, match="steps is of type set"):
        checkpoint.write(tmp_path, {"steps": {1}})
    assert checkpoint.read(tmp_path)["steps"] == states["steps"]
    other = torch.nn.Linear(2, 1)
    with LocalCluster(2) as cluster, cluster[0].active():
        checkpoint.load(tmp_path, {"model": rpc.RRef(other), "steps": {}})
    assert torch.equal(other.weight, model.weight)


def test_every_scheduler_can_be_saved(tmp_path) -> None:
    with LocalCluster(1) as cluster, cluster[0].active():
        weight = rpc.RRef(torch.nn.Parameter(torch.ones(1)))
        for name, make in SCHEDULERS.items():
            optimizer = DistributedOptimizer(torch.optim.SGD, [weight], lr=0.1, momentum=0.9)
            scheduler = make(optimizer)
            if scheduler is None:
                continue
            checkpoint.save(tmp_path / name, {"scheduler": scheduler})
            before = scheduler.state_dict()
            checkpoint.load(tmp_path / name, {"scheduler": scheduler})
            assert scheduler.state_dict().keys() == before.keys()
