"""What a user's reference knows of itself: whose value it is, and whether it may still be used."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lockstitch.errors import OwnerDiedError, RRefError, copy_of
from lockstitch.rref.values import TIMED_OUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.ids import GlobalId, WorkerInfo


class UserFork:
    """One fork of a value that lives elsewhere; all `RRef`s that stand for the fork share it."""

    __slots__ = ("__weakref__", "_confirmed", "_lock", "_trouble", "_waiters", "fork", "holder",
                 "owner", "reference")  # fmt: skip

    def __init__(
        self, reference: GlobalId, fork: GlobalId, owner: WorkerInfo, holder: str = "here"
    ) -> None:
        self.reference = reference
        self.fork = fork
        self.owner = owner
        self.holder = holder
        """The name of the worker that it belongs to."""
        self._lock = threading.Lock()
        self._confirmed = False
        self._trouble: BaseException | str | None = None
        self._waiters: list[Callable[[BaseException | None], None]] = []

    def __str__(self) -> str:
        return f"UserRRef(RRefId = {self.reference}, ForkId = {self.fork})"

    @property
    def description(self) -> str:
        """How the incumbent names the fork, for whoever searches a log."""
        return f"UserRRef(rref_id={self.reference}, fork_id={self.fork})"

    @property
    def whose(self) -> str:
        """The beginning of errors about the reference, for people."""
        return f"the reference of worker {self.holder!r} to a value of worker {self.owner.name!r}"

    @property
    def condition(self) -> str:
        """The state of the fork in one word, for people."""
        if isinstance(self._trouble, str):
            return "deleted"
        if self._trouble is not None:
            return "orphaned" if isinstance(self._trouble, OwnerDiedError) else "failed"
        return "confirmed" if self._confirmed else "pending"

    # ------------------------------------------------------------ confirmation

    def is_confirmed(self) -> bool:
        """Whether the owner counts it."""
        return self._confirmed

    def when_confirmed(self, callback: Callable[[BaseException | None], None]) -> None:
        """Calls `callback(None)` once the owner counts the fork, or `callback(error)` when it
        never will."""
        with self._lock:
            trouble = self._trouble if isinstance(self._trouble, BaseException) else None
            if not self._confirmed and trouble is None:
                self._waiters.append(callback)
                return
        callback(trouble)

    def confirm(self) -> None:
        """The owner counts it."""
        with self._lock:
            self._confirmed = True
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter(None)

    # ------------------------------------------------------------ the end of its use

    def time_out(self) -> None:
        """The call that should make the value got no answer in time."""
        self._end(RRefError(f"{TIMED_OUT} (This is {self.whose}.)"))

    def fail(self, error: BaseException) -> None:
        """The call that should make the value could not be served."""
        self._end(error)

    def orphan(self, how: object = None) -> None:
        """The owner died, and the value with it; `how` tells of its death."""
        self._end(self.loss(how or f"its owner {self.owner.name!r} died, or has left"))

    def loss(self, how: object) -> OwnerDiedError:
        """Returns the error to be raised once the fork is lost."""
        return OwnerDiedError(f"{self.whose} lost its value: {how} ({self.description})")

    def delete(self) -> None:
        """The owner is told that this fork is gone, although objects still stand for it."""
        self._end("deleted")

    def _end(self, trouble: BaseException | str) -> None:
        with self._lock:
            if self._trouble is None:
                self._trouble = trouble
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter(trouble if isinstance(trouble, BaseException) else None)

    def check_usable(self, use: str) -> None:
        """Raises what forbids `use` of it, if anything does."""
        trouble = self._trouble
        if isinstance(trouble, str):
            raise RRefError(
                f"{self.whose} has been deleted, as shutdown does. Cannot call {use} after "
                f"deletion. ({self.description})"
            )
        if trouble is not None:
            raise copy_of(trouble)
