"""States of several owners as one of all parameters, and back."""

from __future__ import annotations

import pytest

from lockstitch.optim.states import Share, join_states, split_state


def state(*values: str) -> dict:
    return {
        "state": {number: value for number, value in enumerate(values) if value},
        "param_groups": [{"lr": 0.1, "params": list(range(len(values)))}],
    }


def shares(*positions: list[int]) -> list[Share]:
    return [Share([0], own) for own in positions]


def test_parameters_are_numbered_among_all_and_may_go_to_other_owners() -> None:
    groups = [{"params": [0, 1, 2, 3]}]
    joined = join_states([state("a", "c"), state("b", "")], shares([0, 2], [1, 3]), groups)
    assert joined == state("a", "b", "c", "")
    parts = split_state(joined, shares([0, 3], [2], [1]), [4])
    assert parts == [state("a", ""), state("c"), state("b")]


def test_an_owner_has_only_groups_in_which_it_has_parameters() -> None:
    whole = {
        "state": {0: "a", 2: "c", 3: "d"},
        "param_groups": [
            {"lr": 1, "params": [0, 1]},
            {"lr": 2, "params": [2]},
            {"lr": 3, "params": []},
            {"lr": 4, "params": [3]},
        ],
    }
    owned = [Share([0, 1], [1, 2]), Share([0, 3], [0, 3])]
    parts = split_state(whole, owned, [2, 1, 0, 1])
    assert parts == [
        {
            "state": {1: "c"},
            "param_groups": [{"lr": 1, "params": [0]}, {"lr": 2, "params": [1]}],
        },
        {
            "state": {0: "a", 1: "d"},
            "param_groups": [{"lr": 1, "params": [0]}, {"lr": 4, "params": [1]}],
        },
    ]
    assert join_states(parts, owned, whole["param_groups"]) == whole


def test_saved_numbers_may_be_any_and_names_go_with_their_parameters() -> None:
    saved = {
        "state": {7: "a", 5: "b"},
        "param_groups": [{"params": [7, 5, 6], "param_names": ["x", "y", "z"]}],
    }
    first, second = split_state(saved, shares([0, 2], [1]), [3])
    assert first == {
        "state": {0: "a"},
        "param_groups": [{"params": [0, 1], "param_names": ["x", "z"]}],
    }
    assert second["state"] == {0: "b"}


@pytest.mark.parametrize("sizes", [[3], [1, 1], [2, 1]])
def test_groups_of_other_sizes_are_refused(sizes) -> None:
    with pytest.raises(ValueError, match=r"of 2 parameters in groups of \[2\], but the optimizer"):
        split_state(state("a", "b"), shares([0], [1]), sizes)
