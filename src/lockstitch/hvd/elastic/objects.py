"""What a training keeps: committed now and then, restored after a failure, equal on all ranks.

A commit is two things. It keeps a copy, to which `restore` goes back when a rank dies. And it is
the moment at which workers may come or go: whether they do, rank 0 decides for all, so that all
leave the loop in the same step.
"""

from __future__ import annotations

import copy
import enum
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from lockstitch.hvd.exceptions import HostsUpdatedInterrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class HostUpdateResult(enum.IntFlag):
    """What has happened to the workers."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3


class State:
    """The base of all states. A class of your own defines `save`, `restore` and `sync`.

    `bcast_object(obj)` returns rank 0's object on all ranks; `get_rank()` is this process's rank.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: SimpleQueue[tuple[float, int]] = SimpleQueue()
        self._last_update = 0.0
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """`callbacks` are called, in this order, each time that the ranks have met anew: to adapt
        what depends on their number, such as a learning rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The ranks have met anew: what was heard of workers before is settled."""
        while not self._host_messages.empty():
            self._host_messages.get()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Workers wait to come in, or are to go (`HostUpdateResult`). Called from any thread; what
        has the timestamp of an earlier one is the same news."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Keeps the state as it is now, and lets workers come and go: see `check_host_updates`."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises `HostsUpdatedInterrupt` on all ranks if rank 0 has heard of workers that wait to
        come in or are to go. All ranks call it equally often."""
        before = latest = self._last_update
        found = 0
        while True:
            try:
                timestamp, result = self._host_messages.get_nowait()
            except Empty:
                break
            if timestamp > before:
                latest = max(latest, timestamp)
                found |= int(result)
        before, latest, found = self._bcast_object((before, latest, found))
        self._last_update = latest
        if latest > before:
            raise HostsUpdatedInterrupt(found == HostUpdateResult.removed)

    def save(self) -> None:
        """Keeps the state as it is now, in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what was kept last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the state of rank 0, and keeps it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapts the state to the ranks that are there now; nothing by default."""


class ObjectState(State):
    """Attributes of any type that can be copied and pickled: `ObjectState(…, epoch=0, batch=0)`."""

    def __init__(
        self,
        bcast_object: Callable[[Any], Any],
        get_rank: Callable[[], int],
        **kwargs: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = kwargs
        self._assign()

    def save(self) -> None:
        """Keeps copies of the attributes."""
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in self._saved_state}

    def restore(self) -> None:
        """Sets the attributes to copies of what was kept."""
        self._assign()

    def sync(self) -> None:
        """Sets the attributes to those of rank 0 and keeps them."""
        if self._saved_state:
            current = {name: getattr(self, name) for name in self._saved_state}
            self._saved_state = self._bcast_object(current)
            self._assign()

    def _assign(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, copy.deepcopy(value))
