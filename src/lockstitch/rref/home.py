"""What references need of the worker that they are on; `ReferenceService` offers it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from lockstitch.clock import UNSET_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.ids import WorkerId
    from lockstitch.rref.user_fork import UserFork
    from lockstitch.rref.values import OwnedValue
    from lockstitch.runtime.worker import Worker

R = TypeVar("R")
T = TypeVar("T")

State = tuple[tuple[int, int], tuple[int, int, int], tuple[int, int, int], tuple[int, int]]
"""A reference on its way: owner, reference, fork, and the worker that made the fork."""

Loan = tuple[int, tuple[int, int, int], tuple[int, int, int]]
"""A reference in a request to its owner: serial of the sender's claim, reference, sender's fork."""

LOAN_LENGTH: Final = 3
"""What tells it from a `State`."""


class Home(ABC, Generic[R]):
    """The operations of a worker's references that an `RRef` calls. `R` is the type that programs
    hold: `RRef`."""

    worker: Worker

    @abstractmethod
    def own(self, value: object) -> OwnedValue:
        """A new value of this worker."""

    @abstractmethod
    def fetch(self, fork: UserFork, timeout: float) -> Any:
        """A copy of the value of a reference, from its owner."""

    @abstractmethod
    def create_remote(
        self,
        to: WorkerId,
        function: Callable[..., T],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        timeout: float = UNSET_TIMEOUT,
    ) -> R:
        """Has a worker run a function and keep the value; see `rpc.remote`."""

    @abstractmethod
    def send_off(self, rref: R, to: WorkerId | None) -> State:
        """Makes a fork of a reference for another worker."""

    @abstractmethod
    def receive(self, state: State) -> R:
        """The reference that `send_off` of some worker made for this one."""
