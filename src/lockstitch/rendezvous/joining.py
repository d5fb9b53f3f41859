"""Joining a static group, one with a `world_size`. (One without is dynamic: see `contacts`.)

A store serves static groups or dynamic ones, never both. Its counter `members/static` says how many
members of static groups there are. A worker first counts itself, then looks for a group of the
other sort; of two that come at the same time with different ideas at least one sees it.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from typing import TYPE_CHECKING

from torch.distributed import DistNetworkError  # not in its __all__

from lockstitch.ids import WorkerInfo
from lockstitch.link.machine import host_identity
from lockstitch.rendezvous.contacts import MIXED, Contacts
from lockstitch.rendezvous.gateway import HOST_GATEWAY
from lockstitch.rendezvous.roster import Member
from lockstitch.rendezvous.static_group import StaticRoster, meet
from lockstitch.rendezvous.store import losing_in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.distributed_c10d import Store

    from lockstitch.trust import Secret

_NAME = re.compile(r"[A-Za-z0-9_:-]{1,127}")
_COUNTER = "members/static"


def check_name(name: str) -> None:
    """Raises `RuntimeError` unless `name` is made of 1 to 127 letters, digits, `_`, `:`, `-`."""
    if not _NAME.fullmatch(name):
        raise RuntimeError(f"Worker name must match {_NAME.pattern}, but got {name!r}")


def outside(rank: int, world_size: int) -> str:
    """Returns the text of the error for a rank that `world_size` does not allow."""
    return f"rank {rank} does not lie within world_size {world_size}: ranks count from 0"


def join(  # noqa: PLR0913 - all that a member says of itself
    store: Store,
    name: str,
    rank: int,
    world_size: int,
    addresses: Sequence[str],
    timeout_seconds: float = 60.0,
    *,
    devices: str = "",
    kind: str = "",
    is_shared: bool = True,
    reached_at: str | None = None,
    secret: Secret | None = None,
) -> StaticRoster:
    """Publishes this worker, which listens at `addresses` already, and learns of the others.
    `devices`, `kind`: see `Member`. `is_shared`: whether groups of the other sort may use the
    store, which then has to be looked at. `reached_at`, `secret`: an address of this host for its
    gateway, and the job's secret; without both there is none (`gateway`).

    Returns when all `world_size` ranks are there. Raises RuntimeError naming those that are not in
    time, or when a name or rank is taken, when ranks were given different world sizes, when the
    group is of the other sort, or when `name` is ill-formed; ValueError when `rank` does not lie
    within `world_size`.

    The store is not authenticated; see the package.
    """
    check_name(name)
    if not 0 <= rank < world_size:
        raise ValueError(outside(rank, world_size))

    gateway = HOST_GATEWAY.offer(reached_at, secret, os.environ)

    def me(generation: int) -> Member:
        info = WorkerInfo(name, rank, generation)
        here = host_identity(), devices, socket.gethostname()
        return Member(info, tuple(addresses), *here, kind, gateway)

    def withdraw() -> None:
        if is_shared:
            store.add(_COUNTER, -1)

    if is_shared:
        store.add(_COUNTER, 1)
    # Not on an interrupt: the store may then still be busy with waiting, and not answer.
    try:
        if is_shared and Contacts(store).read().members:
            raise RuntimeError(MIXED)
        with losing_in_words():
            met = meet(store, me, rank, world_size, timeout_seconds)
        roster = StaticRoster(met.me.info, met.members, withdraw, met.census)
        HOST_GATEWAY.learn(roster, os.environ)
        return roster
    except Exception:
        with contextlib.suppress(DistNetworkError):  # the store may be lost
            withdraw()
        raise
