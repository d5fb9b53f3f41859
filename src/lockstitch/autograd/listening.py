"""How threads of the initiator wait during a backward pass, and what they read meanwhile.

Workers to which the initiator has sent gradients push their answers (`runtime.reply_side_push`) to
where its waiting thread reads for itself: so a pass over two workers, whatever number of hops it
has, wakes nobody up. Of several workers that answer it reads all, as long as they are few; of many,
or where it may have to ask before they answer, the thread pool does, as it does everything else.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from lockstitch.runtime.pending import Pending

if TYPE_CHECKING:
    from lockstitch.ids import WorkerId
    from lockstitch.runtime.agent import Agent
    from lockstitch.runtime.reply_side_push import PushListener

_LINGER_SECONDS: Final = 10.0
_MOST_READ: Final = 8


class Sleeper(Pending):
    """Something to wait for in a backward pass: whoever changes anything finishes it."""

    is_shared = True
    deadline = None

    def __init__(self) -> None:
        self.locks = []


class Listening:
    """The workers of one pass to which this one listens; none at the beginning."""

    def __init__(self, messaging: Agent) -> None:
        self._messaging = messaging
        self._lock = threading.Lock()
        self._ways: dict[WorkerId, PushListener | None] = {}
        self._heard: list[PushListener] = []
        self._ended = False

    def begin(self, worker: WorkerId) -> bool:
        """Returns whether `worker`, to which something is about to be sent, may push its answer."""
        if worker not in self._ways:
            way = self._messaging.listen(worker)
            with self._lock:
                if self._ended or worker in self._ways:
                    if way is not None:
                        way.close()
                else:
                    self._ways[worker] = way
                    if way is not None:
                        self._heard.append(way)
        return self._ways.get(worker) is not None

    def sleep(self, sleeper: Pending, timeout_seconds: float | None) -> bool:
        """Blocks until `sleeper` is finished (True), or the time is over. Raises `PeerDiedError`
        where the only worker listened to is lost."""
        ways = self._heard
        if len(ways) == 1:
            way = ways[0]
            if timeout_seconds is None:
                way.wait(sleeper)
                if sleeper.error is not None:
                    raise sleeper.error
                return True
            way.spin_wait(sleeper)
        elif timeout_seconds is None and 1 < len(ways) <= _MOST_READ:
            first, *others = tuple(ways)
            with self._messaging.blocked():
                first.wait_with(others, sleeper)
            if sleeper.done:
                return True
        self.attend()
        with self._messaging.blocked(), sleeper.sleeping() as lock:
            return sleeper.done or lock.acquire(
                timeout=-1 if timeout_seconds is None else timeout_seconds
            )

    def attend(self) -> None:
        """No thread of the pass reads now: has the thread pool do so."""
        for way in tuple(self._heard):
            way.attend()

    def end(self, failed: bool) -> None:
        """The pass has ended. After a failure, something may still be on its way: it is read for a
        while yet, so that nobody is stuck in sending it."""
        with self._lock:
            self._ended = True
            self._ways = {}
            ways, self._heard = self._heard, []
        for way in ways:
            if failed:
                way.attend()
                self._messaging.call_later(_LINGER_SECONDS, way.close)
            else:
                way.close()
