"""Options of groups reach all owners, in as few messages as can be, and no state moves."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn, optim

from lockstitch import autograd, checkpoint, rpc
from lockstitch.errors import PeerDiedError, RRefError, SerializationError
from lockstitch.optim import DistributedOptimizer, named_parameters_of, parameters_of
from lockstitch.rref.service import ReferenceService
from lockstitch.testing.cluster import LocalCluster
from tests.unit.optim.test_local import Counting


@pytest.fixture
def cluster():
    with LocalCluster(3) as cluster, cluster[0].active():
        yield cluster


@pytest.fixture
def modules(cluster):
    return [rpc.remote(f"worker{n}", nn.Linear, (3, 3)) for n in (1, 2, 1)]


def groups_of(modules) -> list[dict]:
    first, second, third = (parameters_of(module) for module in modules)
    return [{"params": [*first, *second], "lr": 0.5}, {"params": third}]


def owners_options(optimizer: DistributedOptimizer) -> list[list[dict]]:
    return [reference.rpc_sync().options() for reference in optimizer.remote_optimizers]


def calls(cluster, action) -> int:
    before = cluster.traffic()
    action()
    return (cluster.traffic() - before).kinds.get("Call", 0)


def test_views_show_what_torch_shows(cluster, modules) -> None:
    given = groups_of(modules)
    optimizer = DistributedOptimizer(optim.Adam, given, 0.1, weight_decay=0.2)
    plain = optim.Adam(
        [{"params": [torch.ones(1)], "lr": 0.5}, {"params": [torch.ones(2)]}], 0.1, weight_decay=0.2
    )
    assert isinstance(optimizer, optim.Optimizer)
    assert optimizer.defaults == plain.defaults
    for ours, theirs in zip(optimizer.param_groups, plain.param_groups, strict=True):
        assert ours.options == {key: theirs[key] for key in theirs if key != "params"}
    assert optimizer.param_groups[1]["params"] == given[1]["params"]
    assert "<Adam on worker1, worker2>" in repr(optimizer)
    assert "Parameter Group 1" in repr(optimizer)


def test_a_scheduler_costs_each_owner_one_message(cluster, modules) -> None:
    optimizer = DistributedOptimizer(optim.SGD, groups_of(modules), lr=0.1)
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with autograd.context() as context_id:
        optimizer.step(context_id)
        assert calls(cluster, scheduler.step) == 2
    assert [[g["lr"] for g in groups] for groups in owners_options(optimizer)] == [
        [0.25, 0.05],
        [0.25],
    ]


def test_what_is_assigned_goes_with_the_step_to_those_whom_it_concerns(cluster, modules) -> None:
    optimizer = DistributedOptimizer(optim.SGD, groups_of(modules), lr=0.1)

    def assign() -> None:
        for group in optimizer.param_groups:
            group["lr"] *= 2
            group["momentum"] = 0.9

    assert calls(cluster, assign) == 0
    with autograd.context() as context_id:
        assert calls(cluster, lambda: optimizer.step(context_id)) == 2
    assert [g["lr"] for g in owners_options(optimizer)[0]] == [1.0, 0.2]
    optimizer.param_groups[1]["lr"] = 0.7
    assert calls(cluster, lambda: optimizer.param_groups[1]["lr"]) == 1


def test_no_state_moves_with_an_option(cluster) -> None:
    table = rpc.remote("worker1", nn.Embedding, (5000, 64))
    optimizer = DistributedOptimizer(optim.Adam, parameters_of(table), lr=0.1)
    with autograd.context() as context_id:
        rows = table.rpc_sync().forward(torch.tensor([1]))
        autograd.backward(context_id, [rows.sum()])
        optimizer.step(context_id)
        before = cluster.traffic()
        optimizer.param_groups[0]["lr"] = 0.2
        assert optimizer.param_groups[0]["lr"] == 0.2
        assert (cluster.traffic() - before).bytes < 2000


def test_a_default_that_is_a_tensor_is_one_for_all_groups_as_in_torch(cluster, modules) -> None:
    """Wherever their parameters are; a group to which another one is assigned leaves it."""

    def options_of(optimizer, given, values) -> list[list[float]]:
        seen = []
        optimizer.param_groups[1]["lr"].mul_(0.5)
        seen.append(values(optimizer))
        optimizer.add_param_group(given[2])  # with the value of now
        seen.append(values(optimizer))
        optimizer.param_groups[0]["lr"] = torch.tensor(0.75)
        optimizer.param_groups[2]["lr"].mul_(0.5)
        seen.append(values(optimizer))
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.param_groups[1]["lr"].mul_(0.5)
        seen.append(values(optimizer))
        return seen

    def seen_by_owners(optimizer) -> list[float]:
        optimizer.param_groups[0]["sent"] = True
        assert optimizer.param_groups[0]["sent"]  # so that all is sent
        return _by_group(optimizer, "lr")

    given = [{"params": parameters_of(module)} for module in modules]
    optimizer = DistributedOptimizer(optim.Adam, given[:2], lr=torch.tensor(1.0))
    plain_given = [{"params": [torch.ones(size)]} for size in (1, 2, 3)]
    plain = optim.Adam(plain_given[:2], lr=torch.tensor(1.0))
    assert options_of(optimizer, given, seen_by_owners) == options_of(
        plain, plain_given, lambda each: [float(group["lr"]) for group in each.param_groups]
    )
    assert seen_by_owners(optimizer) == [0.75, 0.125, 0.125]
    state = optimizer.state_dict()["param_groups"]
    assert state[1]["lr"] is state[2]["lr"]
    assert state[1]["lr"] is not optimizer.param_groups[1]["lr"]


def test_groups_share_a_tensor_after_a_checkpoint_if_they_did_before(cluster, modules, tmp_path):
    """As with `torch.save`: in torch a loaded state shares what the saved one did."""

    def rates(optimizer, reload) -> list[float]:
        optimizer.param_groups[0]["lr"] = torch.tensor(1.0)  # equal, and of this group alone
        reload(optimizer)
        optimizer.param_groups[0]["lr"].mul_(0.5)
        optimizer.param_groups[1]["lr"].mul_(0.25)
        return [float(group["lr"]) for group in optimizer.param_groups]

    def by_checkpoint(optimizer) -> None:
        checkpoint.save(tmp_path / "ours", {"optimizer": optimizer})
        checkpoint.load(tmp_path / "ours", {"optimizer": optimizer})

    def by_file(optimizer) -> None:
        torch.save(optimizer.state_dict(), tmp_path / "plain")
        optimizer.load_state_dict(torch.load(tmp_path / "plain"))

    given = [{"params": parameters_of(module)} for module in modules]
    optimizer = DistributedOptimizer(optim.Adam, given, lr=torch.tensor(1.0))
    plain = optim.Adam([{"params": [torch.ones(1)]} for _ in modules], lr=torch.tensor(1.0))
    assert rates(optimizer, by_checkpoint) == rates(plain, by_file) == [0.5, 0.25, 0.25]
    optimizer.param_groups[0]["sent"] = True
    assert optimizer.param_groups[0]["sent"]  # so that all is sent
    assert _by_group(optimizer, "lr") == [0.5, 0.25, 0.25]


def _by_group(optimizer: DistributedOptimizer, key: str) -> list[float]:
    """An option of each group, as its owner has it."""
    found = {
        group: float(options[key])
        for share, own in zip(optimizer._shares, owners_options(optimizer), strict=True)
        for group, options in zip(share.groups, own, strict=True)
    }
    return [found[group] for group in sorted(found)]


def test_a_group_is_added_on_all_owners_or_on_none(cluster, modules) -> None:
    first, second, third = (parameters_of(module) for module in modules)
    optimizer = DistributedOptimizer(optim.SGD, first, lr=0.1)
    taken = [second[0], first[0]]  # one of another owner, one that is in a group already
    with pytest.raises(ValueError, match="appear in more than one parameter group"):
        optimizer.add_param_group({"params": [*third, *taken]})
    with pytest.raises(ValueError, match="appear in more than one"):
        optimizer.add_param_group({"params": taken})
    assert len(optimizer.param_groups) == len(optimizer.remote_optimizers) == 1
    optimizer.add_param_group({"params": [*third, *second], "lr": 0.3})
    optimizer.add_param_group({"params": [], "lr": 0.4})
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.3, 0.4]
    assert [len(groups) for groups in owners_options(optimizer)] == [2, 1]
    sizes = [group["params"] for group in optimizer.state_dict()["param_groups"]]
    assert sizes == [[0, 1], [2, 3, 4, 5], []]


def test_an_optimizer_without_parameters_gets_some(cluster, modules) -> None:
    optimizer = DistributedOptimizer(optim.SGD, [], lr=0.1)
    optimizer.add_param_group({"params": parameters_of(modules[0])})
    assert optimizer.param_groups[0]["lr"] == optimizer.defaults["lr"] == 0.1


def test_groups_are_with_names_or_without(cluster, modules) -> None:
    optimizer = DistributedOptimizer(optim.SGD, named_parameters_of(modules[0]), lr=0.1)
    with pytest.raises(ValueError, match="with/without names"):
        optimizer.add_param_group({"params": parameters_of(modules[1])})
    optimizer.add_param_group({"params": [("other", parameters_of(modules[1])[0])]})
    saved = optimizer.state_dict()
    assert [g["param_names"] for g in saved["param_groups"]] == [["weight", "bias"], ["other"]]
    optimizer.load_state_dict(saved)


def test_loading_replaces_all_options_and_nothing_else_is_pending(cluster, modules) -> None:
    optimizer = DistributedOptimizer(optim.SGD, groups_of(modules), lr=0.1)
    saved = optimizer.state_dict()
    optimizer.param_groups[0]["lr"] = 9.0
    optimizer.param_groups[0]["own"] = 1
    optimizer.load_state_dict(saved)
    assert "own" not in optimizer.param_groups[0]
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert owners_options(optimizer)[1][0]["lr"] == 0.5
    with pytest.raises(ValueError, match=r"groups of \[1\], but the optimizer has 6 in"):
        optimizer.load_state_dict({"state": {}, "param_groups": [{"params": [0]}]})


def test_hooks_run_here(cluster, modules) -> None:
    optimizer = DistributedOptimizer(optim.SGD, groups_of(modules), lr=0.1)
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda _opt, args, _kwargs: seen.append(f"pre {args[1:]}"))
    optimizer.register_step_post_hook(lambda *_: seen.append("post"))
    optimizer.register_state_dict_pre_hook(lambda _: seen.append("save"))
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "mark": 1})
    optimizer.register_load_state_dict_pre_hook(lambda _, state: seen.append(state.pop("mark")))
    optimizer.register_load_state_dict_post_hook(lambda _: seen.append("loaded"))
    optimizer.zero_grad()
    with autograd.context() as context_id:
        optimizer.step(context_id)
    saved = optimizer.state_dict()
    optimizer.load_state_dict(saved)
    assert seen == [f"pre ({context_id},)", "post", "save", 1, "loaded"]
    assert saved["mark"] == 1


def test_options_that_a_step_changes_are_shown(cluster, modules) -> None:
    optimizer = DistributedOptimizer(Counting, parameters_of(modules[0]), lr=0.1)
    with autograd.context() as context_id:
        optimizer.step(context_id)
        optimizer.step(context_id)
    assert optimizer.param_groups[0]["count"] == 2


def halve_rate(optimizer: DistributedOptimizer) -> list[float]:
    for group in optimizer.param_groups:
        group["lr"] /= 2
    return [group["lr"] for group in optimizer.param_groups]


def test_another_worker_may_have_a_handle(cluster, modules) -> None:
    optimizer = DistributedOptimizer(optim.SGD, groups_of(modules), lr=0.1)
    optimizer.param_groups[1]["lr"] = 0.3
    assert rpc.rpc_sync("worker2", halve_rate, (optimizer,)) == [0.25, 0.15]
    assert owners_options(optimizer)[1][0]["lr"] == 0.25


def test_what_owners_refuse_is_raised_where_it_is_sent_and_sent_again(cluster, modules) -> None:
    optimizer = DistributedOptimizer(optim.SGD, parameters_of(modules[0]), lr=0.1)
    optimizer.param_groups[0]["lr"] = threading.Lock()
    with pytest.raises(SerializationError, match="lock"):
        print(optimizer.param_groups[0]["lr"])
    optimizer.param_groups[0]["lr"] = 0.2
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert owners_options(optimizer)[0][0]["lr"] == 0.2


def kill_the_owner(cluster: LocalCluster) -> None:
    cluster.kill("worker1")


def free_the_parameters(cluster: LocalCluster) -> None:
    cluster[0].service(ReferenceService).delete_all_users(5.0)


@pytest.mark.parametrize(
    ("lose", "error", "text"),
    [
        (kill_the_owner, PeerDiedError, "worker1"),
        (free_the_parameters, RRefError, "value of worker 'worker1' has been deleted"),
    ],
)
def test_a_scheduler_is_told_that_an_owner_or_its_parameters_are_gone(lose, error, text) -> None:
    with LocalCluster(2) as cluster, cluster[0].active():
        module = rpc.remote("worker1", nn.Linear, (1, 1))
        optimizer = DistributedOptimizer(optim.SGD, parameters_of(module), lr=0.1)
        scheduler = optim.lr_scheduler.StepLR(optimizer, 1)
        with autograd.context() as context_id:
            optimizer.step(context_id)
        lose(cluster)
        with pytest.raises(error, match=text):
            scheduler.step()
