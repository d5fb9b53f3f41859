"""The states of several owners' optimizers as one, and back.

An optimizer's state numbers its parameters, in the order of its groups. A `Share` says which part
of all an owner has: which groups, and which numbers its parameters have among all.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from torch import is_tensor

from lockstitch.optim.groups import NAMES, PARAMS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")


class Share(NamedTuple):
    """What of all groups one owner has. Its optimizer has groups of its own only for those in which
    it has parameters."""

    groups: list[int]
    """The numbers of its groups among all."""
    positions: list[int]
    """The numbers of its parameters among all, in its own order."""

    def add(self, group: int, positions: Sequence[int]) -> None:
        """The owner has also these parameters, of another group."""
        self.groups.append(group)
        self.positions.extend(positions)

    def own(self, things: Mapping[int, T]) -> dict[int, T]:
        """What there is for this owner's groups among things for all groups, by its own numbers."""
        return {
            number: things[group] for number, group in enumerate(self.groups) if group in things
        }


def join_states(
    states: Sequence[dict[str, Any]], shares: Sequence[Share], groups: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Returns one state over all parameters. `groups`: for each group its options, which stand
    where no owner has any parameter of it, and under "params" a number for each parameter. The
    options of other groups are those of the first owner."""
    joined: dict[int, Any] = {}
    told: dict[int, dict[str, Any]] = {}
    numbers = [number for group in groups for number in group[PARAMS]]
    for state, share in zip(states, shares, strict=True):
        for number, place in enumerate(share.positions):
            if number in state["state"]:
                joined[place] = state["state"][number]
        for number_of_group, options in zip(share.groups, state["param_groups"], strict=True):
            told.setdefault(number_of_group, options)
            places = _places(share, state, number_of_group)
            for number, place in zip(options[PARAMS], places, strict=True):
                numbers[place] = share.positions[number]  # another where one is there twice
    following = iter(numbers)
    packed = []
    for index, given in enumerate(groups):
        options = told.get(index, given)
        # Tensors are those given, since groups may share them; an owner may say only where its are.
        own = {k: v for k, v in given.items() if k == NAMES or (k in options and is_tensor(v))}
        options = {**options, **own}
        packed.append({**options, PARAMS: [next(following) for _ in given[PARAMS]]})
    return {"state": dict(sorted(joined.items())), "param_groups": packed}


def _places(share: Share, state: dict[str, Any], group: int) -> list[int]:
    """The numbers among all of the parameters of one group of a share."""
    lengths = [len(each[PARAMS]) for each in state["param_groups"]]
    own = share.groups.index(group)
    start = sum(lengths[:own])
    return share.positions[start : start + lengths[own]]


def split_state(
    state: dict[str, Any], shares: Sequence[Share], sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """Each owner's part. `sizes`: how many parameters each group has. Raises `ValueError` where the
    state's groups are others."""
    groups = state["param_groups"]
    found = [len(group[PARAMS]) for group in groups]
    if found != list(sizes):
        raise ValueError(
            f"the state is of {sum(found)} parameters in groups of {found}, but the optimizer has "
            f"{sum(sizes)} in groups of {list(sizes)}"
        )
    saved = list(chain.from_iterable(group[PARAMS] for group in groups))
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [_part(state, share, saved, starts) for share in shares]


def _part(
    state: dict[str, Any], share: Share, saved: list[int], starts: list[int]
) -> dict[str, Any]:
    own = {place: number for number, place in enumerate(share.positions)}
    packed = []
    for index in share.groups:
        group = state["param_groups"][index]
        places = range(starts[index], starts[index] + len(group[PARAMS]))
        options = {**group, PARAMS: [own[place] for place in places if place in own]}
        if NAMES in group:
            pairs = zip(places, group[NAMES], strict=True)
            options[NAMES] = [name for place, name in pairs if place in own]
        packed.append(options)
    return {
        "state": {
            number: state["state"][saved[place]]
            for place, number in own.items()
            if saved[place] in state["state"]
        },
        "param_groups": packed,
    }
