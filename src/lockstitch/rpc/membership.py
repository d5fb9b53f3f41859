"""How a worker belongs to its group: who else is in, waiting for them, hearing of changes.

`StaticMembership`: all come and go together, and who dies is missing from then on. In a dynamic
group (`rpc.dynamic_membership`) everybody comes and goes alone. A service of the worker.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from lockstitch.errors import PeerLeftError, RpcError, RpcTimeoutError
from lockstitch.ids import is_applicant
from lockstitch.rpc.announcer import CALLBACK_SECONDS, Announcer, MembershipEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.errors import PeerDiedError
    from lockstitch.ids import WorkerId, WorkerInfo
    from lockstitch.rendezvous import StaticRoster
    from lockstitch.runtime.worker import Worker

_STORE_SECONDS = 0.2


class Membership:
    """How a worker belongs to its group: what static and dynamic groups have in common."""

    is_static: bool
    fixed_size: int | None = None
    """How many workers there are, where they come and go together and have the ranks below it."""
    addresses: tuple[str, ...] = ()
    """Where this worker listens."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._announcer = Announcer(worker)
        self._lock = threading.Lock()
        self._waiting: set[threading.Event] = set()

    def begin(self) -> None:
        """Called when the worker serves."""

    def present(self) -> list[WorkerInfo]:
        """Returns all workers that are in now, by rank."""
        return list(self.worker.agent.members())

    def leave(self, timeout_seconds: float) -> None:
        """Tells the others that this worker leaves; returns when they know, or the time is over."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends all waiting, and the callbacks."""
        self._announcer.close(self.worker.agent.remaining_seconds(CALLBACK_SECONDS))
        self._wake()

    @property
    def callback_error(self) -> BaseException | None:
        """The first exception that a callback raised; None while there is none."""
        return self._announcer.error

    # ------------------------------------------------------------ waiting and hearing

    def wait_for(
        self, name: str, timeout_seconds: float, after: WorkerInfo | None = None
    ) -> WorkerInfo:
        """Waits for a worker, as `rpc.wait_for_worker` says."""
        clock = self.worker.clock
        deadline = clock.now() + timeout_seconds if timeout_seconds else None
        changed = threading.Event()
        with self._lock:
            self._waiting.add(changed)
        try:
            while True:
                changed.clear()
                present = self.present()
                for info in present:
                    if info.name == name and (after is None or info.worker != after.worker):
                        return info
                self._check_may_come(name)
                if deadline is not None and clock.now() >= deadline:
                    here = ", ".join(info.name for info in present)
                    raise RpcTimeoutError(
                        f"worker {name!r} did not come within {timeout_seconds:g} s: worker "
                        f"{self.worker.name!r} sees {here}"
                    )
                with self.worker.agent.blocked():
                    clock.wait_until(changed, deadline)
        finally:
            with self._lock:
                self._waiting.discard(changed)

    def _check_may_come(self, name: str) -> None:
        """Raises `RpcError` where that worker cannot come in any more."""

    def add_callback(self, callback: Callable[[MembershipEvent], object]) -> Callable[[], None]:
        """Adds a callback, as `rpc.add_membership_callback` says; returns what removes it."""
        raise NotImplementedError

    def _add_callback(
        self, callback: Callable[[MembershipEvent], object], so_far: list[WorkerInfo]
    ) -> Callable[[], None]:
        others = [info for info in so_far if info.worker != self.worker.id]
        self._announcer.add(callback, [MembershipEvent("joined", info) for info in others])
        return lambda: self._announcer.remove(callback)

    def _tell(self, event: MembershipEvent) -> None:
        self._announcer.announce(event)
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        for changed in waiting:
            changed.set()


def try_store(worker: Worker, leave: Callable[[], object]) -> None:
    """Runs `leave`, which strikes the worker out of the store, if the store is still there and
    answers soon."""

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the store may have gone with its host
            leave()

    leaving = threading.Thread(target=run, name="leaving-the-store", daemon=True)
    leaving.start()
    leaving.join(worker.agent.remaining_seconds(_STORE_SECONDS))


class StaticMembership(Membership):
    """How a worker belongs to a group whose workers come and go together."""

    is_static = True

    def __init__(self, worker: Worker, roster: StaticRoster | None = None) -> None:
        super().__init__(worker)
        self._roster = roster
        self.fixed_size = len(worker.agent.members()) if roster is None else roster.size
        self._changing = threading.Lock()
        self._gone: set[WorkerId] = set()
        worker.agent.on_peer_lost(self._lost)

    def present(self) -> list[WorkerInfo]:
        return [info for info in super().present() if info.worker not in self._gone]

    def leave(self, timeout_seconds: float = 0.0) -> None:
        del timeout_seconds
        if self._roster is not None:
            try_store(self.worker, self._roster.leave)

    def close(self) -> None:
        self.leave()
        super().close()

    def add_callback(self, callback: Callable[[MembershipEvent], object]) -> Callable[[], None]:
        with self._changing:
            return self._add_callback(callback, self.present())

    def _check_may_come(self, name: str) -> None:
        raise RpcError(
            f"worker {name!r} is not in this group, or is gone, and nobody joins a group of a "
            "fixed world_size"
        )

    def _lost(self, peer: WorkerId, error: PeerDiedError) -> None:
        if is_applicant(peer):
            return
        with self._changing:
            if peer in self._gone:
                return
            self._gone.add(peer)
            info = self.worker.agent.info_of(peer)
            has_left = isinstance(error, PeerLeftError)
            self._tell(MembershipEvent("left" if has_left else "died", info, error.cause))
