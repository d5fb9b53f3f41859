"""States of several owners as one of all parameters, and back."""

from __future__ import annotations

import pytest

from lockstitch.optim.states import join_states, split_state


def state(*values: str) -> dict:
    return {
        "state": {number: value for number, value in enumerate(values) if value},
        "param_groups": [{"lr": 0.1, "params": list(range(len(values)))}],
    }


def test_parameters_are_numbered_among_all_and_may_go_to_other_owners() -> None:
    joined = join_states([state("a", "c"), state("b", "")], [[0, 2], [1, 3]])
    assert joined == state("a", "b", "c", "")
    assert split_state(joined, [[3, 0], [2], [1]]) == [state("", "a"), state("c"), state("b")]


def test_another_number_of_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="of 2 parameters in 1 groups, but the optimizer has 3"):
        split_state(state("a", "b"), [[0], [1, 2]])
