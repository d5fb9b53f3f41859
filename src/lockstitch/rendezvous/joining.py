"""The door to a group: static where `world_size` is given, else dynamic, never both on one store.

`members/static` and `members/dynamic` count who is in. A worker first counts itself, then looks at
the other counter; of two that come at the same time with different ideas at least one sees it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lockstitch.ids import WorkerInfo
from lockstitch.rendezvous.dynamic_group import DynamicRoster, enter
from lockstitch.rendezvous.hosts import host_identity
from lockstitch.rendezvous.roster import Member, Roster
from lockstitch.rendezvous.static_group import StaticRoster, meet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.distributed_c10d import Store

_NAME = re.compile(r"[A-Za-z0-9_:-]{1,127}")


def join(
    store: Store,
    name: str,
    rank: int,
    world_size: int | None,
    addresses: Sequence[str],
    timeout_seconds: float = 60.0,
) -> Roster:
    """Publishes this worker, which listens at `addresses` already, and learns of the others.

    With a `world_size` it returns when all ranks are there, and raises RuntimeError naming those
    that are not in time. Without one (None or 0) the group is dynamic and it returns at once;
    `rank` -1 then takes the next free rank.

    Raises RuntimeError also when a name or rank is taken, when the group is of the other sort, or
    when `name` is not made of 1 to 127 letters, digits, `_`, `:` and `-`; ValueError when `rank`
    does not lie within `world_size`.

    The store is not authenticated; see the package.
    """
    if not _NAME.fullmatch(name):
        raise RuntimeError(f"Worker name must match {_NAME.pattern}, but got {name!r}")
    if world_size and not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} does not lie within world_size {world_size}")

    def me(rank: int, generation: int) -> Member:
        return Member(WorkerInfo(name, rank, generation), tuple(addresses), host_identity())

    counter, other = "members/static", "members/dynamic"
    if not world_size:
        counter, other = other, counter

    def withdraw() -> None:
        store.add(counter, -1)

    store.add(counter, 1)
    # Not on an interrupt: the store may then still be busy with waiting, and not answer.
    try:
        if store.add(other, 0) > 0:
            raise RuntimeError(
                "RPC group mixes statically and dynamically initialized members "
                "which is not supported."
            )
        if not world_size:
            return DynamicRoster(store, enter(store, me, name, rank), withdraw)
        member, table = meet(store, lambda life: me(rank, life), rank, world_size, timeout_seconds)
        return StaticRoster(member.info, table, withdraw)
    except Exception:
        withdraw()
        raise
