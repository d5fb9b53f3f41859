"""Groups are read in torch's forms; a view keeps what is assigned until it is sent."""

from __future__ import annotations

import copy

import pytest
import torch

from lockstitch import rpc
from lockstitch.optim.groups import (
    Change,
    OptionElsewhere,
    ParameterGroup,
    by_owner,
    read_group,
    read_groups,
    shown,
)
from lockstitch.testing.cluster import LocalCluster
from lockstitch.unversioned import UNVERSIONED


class Optimizer:
    """Counts how often a view wants to be sent."""

    def __init__(self, **options) -> None:
        self.sent: list[Change | None] = []
        self.view = ParameterGroup(["p"], None, self.send)  # type: ignore[list-item]
        self.view.show(options)

    def send(self) -> None:
        self.sent.append(self.view.take_change())


def test_assigned_options_are_kept_until_one_of_them_is_read() -> None:
    optimizer = Optimizer(lr=0.1, momentum=0.5, nesterov=False)
    view = optimizer.view
    view["lr"] = 0.2
    view.update(momentum=0.9)
    view |= {"more": 1}
    assert view.setdefault("lr", 7) == 0.2
    del view["nesterov"]
    assert view["params"] == ["p"]
    assert optimizer.sent == []
    assert view["lr"] == 0.2
    assert optimizer.sent == [Change({"lr": 0.2, "momentum": 0.9, "more": 1}, ("nesterov",))]
    assert (view["momentum"], view.get("more"), view.get("nesterov")) == (0.9, 1, None)
    assert len(optimizer.sent) == 1
    assert view.pop("more") == 1
    assert view.pop("more", None) is None
    assert view.take_change() == Change({}, ("more",))


def test_what_has_not_arrived_is_sent_again() -> None:
    optimizer = Optimizer(lr=0.1)
    optimizer.view["lr"] = 0.2
    change = optimizer.view.take_change()
    assert change is not None
    assert optimizer.view.take_change() is None
    optimizer.view["lr"] = 0.3
    optimizer.view.give_back(change)
    assert optimizer.view.take_change() == Change({"lr": 0.3})


def test_writing_into_a_tensor_changes_the_option() -> None:
    view = Optimizer(lr=torch.tensor(0.5), betas=(0.9, 0.99)).view
    assert view.take_change() is None
    view["lr"].fill_(0.25)
    change = view.take_change()
    assert change is not None
    assert change.assigned["lr"] == 0.25
    assert view.take_change() is None


def test_what_a_collective_of_c10d_writes_into_a_tensor_changes_the_option() -> None:
    view = Optimizer(lr=torch.tensor(0.5)).view
    lr = view["lr"]
    lr.data.fill_(0.25)
    UNVERSIONED.note([lr])
    assert view.take_change() == Change({"lr": lr})
    assert view.take_change() is None


def test_a_view_shows_what_owners_tell() -> None:
    view = Optimizer(lr=0.1, old=1).view
    view["lr"] = 0.2
    view.show({"lr": 7.0, "seen": 1})
    assert (dict.get(view, "lr"), view["seen"]) == (0.2, 1)  # what was assigned is still to be sent
    view.show({"lr": 0.3}, only=True)
    assert (view.options, view.take_change()) == ({"lr": 0.3}, None)


def test_what_a_group_was_made_of_is_no_option() -> None:
    view = Optimizer(lr=0.1).view
    for change in (
        lambda: view.__setitem__("params", []),
        lambda: view.__delitem__("param_names"),
    ):
        with pytest.raises(ValueError, match="by add_param_group"):
            change()
    for refused in (view.clear, view.popitem):
        with pytest.raises(TypeError, match="remove one by its name"):
            refused()


def test_a_copy_is_an_ordinary_dict_and_a_view_outlives_its_optimizer() -> None:
    optimizer = Optimizer(lr=0.1)
    view = optimizer.view
    view["lr"] = 0.2
    assert type(copy.deepcopy(view)) is dict
    del optimizer
    assert view["lr"] == 0.2


def test_options_that_may_not_cross_are_named_only() -> None:
    lr = torch.tensor(0.1)
    told = shown({"params": [1], "lr": lr, "betas": (0.9, [1]), "own": {"f": print}})
    assert list(told) == ["lr", "betas", "own"]
    assert told["lr"] is not lr
    assert told["betas"] == (0.9, [1])
    assert isinstance(told["own"]["f"], OptionElsewhere)
    assert "builtin_function_or_method on the owner" in repr(told["own"])


@pytest.fixture
def references():
    with LocalCluster(2) as cluster, cluster[0].active():
        yield [rpc.remote(f"worker{n % 2}", torch.ones, (n,)) for n in (1, 2, 3)]


def test_all_forms_of_torch_are_read(references) -> None:
    first, second, third = references
    (plain,) = read_groups(iter(references))
    assert plain == (references, None, {})
    (named,) = read_groups([("a", first), ("b", second)])
    assert named == ([first, second], ["a", "b"], {})
    one, two = read_groups([{"params": third, "lr": 1}, {"params": [("c", first)]}])
    assert one == ([third], None, {"lr": 1})
    assert two == ([first], ["c"], {})
    assert read_groups([]) == []


def test_other_forms_are_refused(references) -> None:
    with pytest.raises(TypeError, match="number 1 of group 0 is a int: wrap parameters"):
        read_groups([{"params": [references[0], 3]}])
    with pytest.raises(TypeError, match="number 0 is a tuple"):
        read_groups([(references[0], references[1])])
    with pytest.raises(TypeError, match="param_group must be a dict"):
        read_groups([{"params": references}, references[0]])
    with pytest.raises(KeyError, match="'params' is missing"):
        read_group({"lr": 1}, "")
    with pytest.raises(TypeError, match="give a list, not a set"):
        read_group({"params": {references[0]}}, "")
    with pytest.raises(ValueError, match="Some param names are missing"):
        read_groups([("a", references[0]), references[1]])


def test_each_owner_has_parts_of_the_groups_in_which_it_owns_something(references) -> None:
    groups = read_groups([{"params": references, "lr": 1}, {"params": references[1:2]}])
    parts = {owner.name: own for owner, own in by_owner(groups, 5, 10).items()}
    numbers = {name: [(p.group, p.positions) for p in own] for name, own in parts.items()}
    assert numbers == {"worker1": [(5, [10, 12])], "worker0": [(5, [11]), (6, [13])]}
    assert parts["worker1"][0].given == ([references[0], references[2]], None, {"lr": 1})
