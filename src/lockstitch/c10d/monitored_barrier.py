"""`torch.distributed.monitored_barrier` for groups of this backend.

torch's own function refuses every backend but Gloo by its name. In its place stands one that asks a
group of ours, and hands every other group on to torch's.
"""

from __future__ import annotations

import functools
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch import distributed
from torch.distributed import distributed_c10d

if TYPE_CHECKING:
    from collections.abc import Callable

_UNSET = timedelta(milliseconds=-1)


def install(kind: type) -> None:
    """Puts ours in the place of torch's, for groups of that type; harmless when repeated."""
    of_torch: Any = distributed_c10d.monitored_barrier
    if getattr(of_torch, "asks_lockstitch", False):
        return
    ours: Any = _made(of_torch, kind)
    ours.asks_lockstitch = True
    distributed_c10d.monitored_barrier = ours
    distributed.monitored_barrier = ours


def _made(of_torch: Callable[..., None], kind: type) -> Callable[..., None]:
    @functools.wraps(of_torch)
    def monitored_barrier(
        group: Any = None,
        timeout: timedelta | float | None = None,
        wait_all_ranks: bool = False,
    ) -> None:
        asked = distributed.group.WORLD if group is None else group
        if not isinstance(asked, kind):
            return of_torch(group, timeout, wait_all_ranks)
        if isinstance(timeout, float):
            warnings.warn(
                "Please specify timeout arg as a timedelta. Converting current value of "
                f"{timeout} assuming it represents seconds",
                stacklevel=2,
            )
            timeout = timedelta(seconds=timeout)
        limit = _UNSET if timeout is None else timeout
        if not isinstance(limit, timedelta):
            raise TypeError(f"monitored_barrier: timeout must be a timedelta, not {timeout!r}")
        barrier: Any = asked
        barrier.monitored_barrier(limit, wait_all_ranks=wait_all_ranks)
        return None

    return monitored_barrier
