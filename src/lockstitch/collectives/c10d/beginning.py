"""How a session between hosts begins: all ranks come to rank 0, then they connect to each other.

Every wait of that has an end, and says who did not come. Whoever waits hears at once when a rank is
lost meanwhile: from rank 0, or from whoever else knows (`has_failed`).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from lockstitch.errors import CollectiveError, RankLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.collectives.pending_operations import PendingOperations

T = TypeVar("T")

_LOOK_SECONDS = 0.5
_THREAD_LOOK_SECONDS = 0.1
# So much longer than rank 0 all others wait for its word that all have come, or who has not.
_GRACE_SECONDS = 5.0


class Beginning:
    """The beginning of a session between hosts, as one rank sees it. The rank `coordinator_rank`
    gives the orders."""

    def __init__(self, coordinator_rank: int, pending: PendingOperations) -> None:
        self._coordinator_rank = coordinator_rank
        self._pending = pending
        self._is_known = threading.Event()

    def end(self) -> None:
        """All have come, or the session has broken off before."""
        self._is_known.set()

    def await_all(self, seconds: float, has_failed: Callable[[], str | None]) -> None:
        """Returns when all have come; raises who does not."""
        rank, clock = self._pending.rank, self._pending.clock
        deadline = clock.now() + seconds + _GRACE_SECONDS
        while not clock.wait(self._is_known, _LOOK_SECONDS):
            failure = has_failed()
            if failure is not None:
                raise RankLostError(failure)
            if rank != self._coordinator_rank and clock.now() >= deadline:
                raise CollectiveError(
                    f"rank {self._coordinator_rank} did not tell rank {rank} within "
                    f"{seconds:g} s that all ranks have come"
                )
        self._pending.check()


def in_thread(
    work: Callable[[], T],
    pending: PendingOperations,
    seconds: float | None = None,
    look: Callable[[], object] = lambda: None,
) -> T:
    """Calls it, and returns or raises what it does; or raises why the session has broken off
    meanwhile, or that the time is over. For what waits where nothing can end it: the thread is left
    to its own time then. `look` is called now and then meanwhile."""
    values: list[T] = []
    errors: list[Exception] = []
    is_over = threading.Event()

    def run() -> None:
        try:
            values.append(work())
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)
        finally:
            is_over.set()

    clock = pending.clock
    deadline = None if seconds is None else clock.now() + seconds
    name = f"rank {pending.rank} begins"
    threading.Thread(target=run, name=name, daemon=True).start()
    while not clock.wait(is_over, _THREAD_LOOK_SECONDS):
        pending.check()
        look()
        if deadline is not None and clock.now() >= deadline:
            raise CollectiveError(
                f"rank {pending.rank} waits for more than {seconds:g} s where ranks meet: "
                "another one may hold the store, or have ended while it wrote there"
            )
    if errors:
        raise errors[0]
    return values[0]
