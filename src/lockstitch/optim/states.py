"""The states of several owners' optimizers as one, and back.

An optimizer's state numbers its parameters. `positions` says, for each owner, which numbers its
parameters have among all. Each owner has one group of parameters, since all are made alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def join_states(
    states: Sequence[dict[str, Any]], positions: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Returns one state over all parameters; the options are those of the first owner."""
    joined: dict[int, Any] = {}
    for state, places in zip(states, positions, strict=True):
        for number, place in enumerate(places):
            if number in state["state"]:
                joined[place] = state["state"][number]
    groups = [dict(state["param_groups"][0]) for state in states[:1]]
    for group in groups:
        group["params"] = sorted(place for places in positions for place in places)
    return {"state": dict(sorted(joined.items())), "param_groups": groups}


def split_state(state: dict[str, Any], positions: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Each owner's part. Raises `ValueError` where the number of parameters is another."""
    expected = sum(map(len, positions))
    groups = state["param_groups"]
    found = sum(len(group["params"]) for group in groups)
    if len(groups) != 1 or found != expected:
        raise ValueError(
            f"the state is of {found} parameters in {len(groups)} groups, but the optimizer has "
            f"{expected} in one group"
        )
    return [
        {
            "state": {
                number: state["state"][place]
                for number, place in enumerate(places)
                if place in state["state"]
            },
            "param_groups": [{**groups[0], "params": list(range(len(places)))}],
        }
        for places in positions
    ]
