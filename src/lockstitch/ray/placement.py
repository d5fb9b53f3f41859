"""Where workers get their room: a placement group of Ray's, waited for no longer than makes sense.

What the cluster has is compared with what is wanted first. Where the nodes that there are could
never have enough, only a moment is waited for others (an autoscaler may bring them), and the error
says what each node has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lockstitch.errors import PlacementError
from lockstitch.ray.engine import find_ray, running_ray

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Bundle = Mapping[str, float]

_SECONDS: Final = 100.0
_SECONDS_WITHOUT_ROOM: Final = 10.0
STRATEGIES: Final = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


@dataclass(frozen=True)
class Wish:
    """The room that is wanted: a bundle of resources for each worker, or for each host."""

    bundles: Sequence[Bundle]
    strategy: str = "PACK"

    def __str__(self) -> str:
        kinds: dict[str, int] = {}
        for bundle in self.bundles:
            words = " and ".join(f"{amount:g} {name}" for name, amount in bundle.items())
            kinds[words] = kinds.get(words, 0) + 1
        parts = [f"{count} × ({words})" for words, count in kinds.items()]
        return f"{', '.join(parts)}, {self.strategy}"

    def fits(self, nodes: Sequence[Bundle]) -> bool:
        """Whether nodes with these resources have room for it, as far as a simple way of filling
        them tells: the largest bundles first, each into the first node that has room."""
        left = [dict(node) for node in nodes]
        if self.strategy == "STRICT_PACK":
            return any(_all_fit(self.bundles, [node]) for node in left)
        return _all_fit(self.bundles, left, once=self.strategy == "STRICT_SPREAD")


def _all_fit(
    bundles: Sequence[Bundle], left: list[dict[str, float]], *, once: bool = False
) -> bool:
    for bundle in sorted(bundles, key=lambda each: -sum(each.values())):
        for node in left:
            if all(node.get(name, 0.0) >= amount for name, amount in bundle.items()):
                for name, amount in bundle.items():
                    node[name] -= amount
                if once:
                    left.remove(node)
                break
        else:
            return False
    return True


def living_nodes() -> list[dict[str, Any]]:
    """Returns what Ray says of the nodes that live."""
    return [node for node in find_ray().nodes() if node["Alive"]]


def describe(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Returns what each node has, in words."""
    kinds = ("CPU", "GPU")
    described = [
        f"{node['NodeManagerAddress']} has "
        + " and ".join(f"{node['Resources'].get(kind, 0):g} {kind}" for kind in kinds)
        for node in nodes
    ]
    return ", ".join(described) or "there are none"


def reserve(wish: Wish, timeout_seconds: float | None) -> Any:
    """Returns a placement group with this room. `timeout_seconds` None: as `Settings` says. Raises
    `PlacementError` where the cluster has no such room in time."""
    running_ray()
    nodes = living_nodes()
    is_possible = wish.fits([node["Resources"] for node in nodes])
    seconds = timeout_seconds
    if seconds is None:
        seconds = _SECONDS if is_possible else _SECONDS_WITHOUT_ROOM
    module = find_ray("util.placement_group")
    group = module.placement_group(
        [dict(bundle) for bundle in wish.bundles], strategy=wish.strategy
    )
    try:
        is_there = group.wait(seconds)
    except BaseException:
        module.remove_placement_group(group)
        raise
    if is_there:
        return group
    module.remove_placement_group(group)
    reason = (
        "others use it at present: end what is not needed, or wait longer"
        if is_possible
        else "its nodes could not have it even if nobody else used them"
    )
    raise PlacementError(
        f"there is no room for {wish} in the Ray cluster within {seconds:g} s: {reason}. "
        f"Of its nodes {describe(living_nodes())} "
        "(placement_group_timeout_s says how long to wait)"
    )


def give_back(group: Any) -> None:
    """Gives the room of a placement group back."""
    find_ray("util.placement_group").remove_placement_group(group)
