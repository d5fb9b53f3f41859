"""Sending and receiving between hosts, by torch's own group of Gloo.

Gloo tells of a dead rank by a broken connection and without its name, and only who exchanges
something with it. The session knows more: when it ends by a fault, whatever waits here ends too,
and raises why.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from torch import distributed

from lockstitch.c10d.outputs import Outputs, flat_input
from lockstitch.c10d.works import NO_TIMEOUT
from lockstitch.collectives.mappings import check_outputs
from lockstitch.errors import CollectiveError, RankLostError
from lockstitch.unversioned import UNVERSIONED

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    import torch

    from lockstitch.c10d.flight_recorder import Entry
    from lockstitch.c10d.membership import Membership

# The connection to a rank that died may break before the news of its death are here.
_NEWS_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.1


class GlooMessages:
    """What one rank sends and receives between hosts."""

    def __init__(self, group: Membership, timeout: timedelta) -> None:
        self._group = group
        self._rank = group.session.rank
        self._gloo, self._connections = group.session.message_group(timeout)
        group.session.observers.ended = self._end

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> GlooWork:
        """Begins to send; the tensor must not change before the work is done."""
        mine = flat_input(tensor)
        entry = self._group.recorded_message(f"send {self._rank}->{to}", mine)
        return self._begun(entry, lambda: self._gloo.send([mine], to, tag), tensor, Outputs())

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> GlooWork:
        """Begins to receive into the tensor, of as many elements as are sent or more."""
        into, outputs = self._into(tensor)
        entry = self._group.recorded_message(f"recv {self._rank}<-{source}", into)
        return self._begun(entry, lambda: self._gloo.recv([into], source, tag), tensor, outputs)

    def receive_any(self, tensor: torch.Tensor, tag: int) -> GlooWork:
        """Begins to receive from whoever sends first."""
        into, outputs = self._into(tensor)
        entry = self._group.recorded_message(f"recv {self._rank}<-any", into)
        return self._begun(entry, lambda: self._gloo.recv_anysource([into], tag), tensor, outputs)

    def _into(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Outputs]:
        """Where Gloo may write what is wanted in a tensor."""
        outputs = Outputs()
        into = outputs.kept(tensor)
        check_outputs("this receive", [into])
        return into, outputs

    def _begun(
        self, entry: Entry, begin: Callable[[], Any], tensor: torch.Tensor, outputs: Outputs
    ) -> GlooWork:
        try:
            work = GlooWork(self._group, begin(), entry, tensor, outputs)
        except BaseException:
            entry.has_failed = True
            raise
        entry.work = weakref.ref(work)
        return work

    def close(self) -> None:
        """Ends what waits for other ranks."""
        self._connections.end()

    def _end(self, error: BaseException) -> None:
        if not (isinstance(error, RankLostError) and error.is_farewell):
            self._connections.end()


class GlooWork(distributed.Work):
    """A message of Gloo under way, which tells more of what goes wrong."""

    def __init__(
        self,
        group: Membership,
        work: Any,
        entry: Entry,
        tensor: torch.Tensor,
        outputs: Outputs,
    ) -> None:
        super().__init__()
        self._group = group
        self._work = work
        self._entry = entry
        self._tensor = tensor
        self._outputs = outputs
        self._finishing = threading.Lock()

    def __repr__(self) -> str:
        return f"<Work · {self._entry} · {self._entry.state}>"

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Returns True when the message is there, or has been received. Raises why the group has
        ended, if it has, or what Gloo says."""
        try:
            is_there = self._work.wait(timeout) if timeout > NO_TIMEOUT else self._work.wait()
        except RuntimeError as error:
            try:
                self._group.session.check()
                end = self._group.session.clock.now() + _NEWS_SECONDS
                while timeout <= NO_TIMEOUT and self._group.session.clock.now() < end:
                    self._group.session.rest(_LOOK_SECONDS)
            except CollectiveError as reason:
                raise self._group.explained(reason, self._entry) from error
            self._entry.has_failed = True
            raise
        if self._outputs.are_copied:
            with self._finishing:  # as in `SessionWork.finish`
                if self._outputs.are_copied:
                    self._outputs.copy_back()
        UNVERSIONED.note([self._tensor])
        return bool(is_there)

    def is_completed(self) -> bool:
        """Returns whether it is done, or has failed; never waits."""
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        """Returns whether it is done, and nothing went wrong."""
        return bool(self._work.is_success())

    def exception(self) -> BaseException | None:
        """Returns what went wrong."""
        error: BaseException | None = self._work.exception()
        return error

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """Returns the tensor, when it is done."""
        self.wait()
        return [self._tensor]

    def source_rank(self) -> int:
        """The rank, in the group, that has sent it."""
        return int(self._work._source_rank())

    _source_rank = source_rank
