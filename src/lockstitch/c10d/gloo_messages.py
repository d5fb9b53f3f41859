"""Sending and receiving between hosts, by torch's own group of Gloo.

Gloo tells of a dead rank by a broken connection and without its name, and only who exchanges
something with it. The session knows more: when it ends by a fault, whatever waits here ends too,
and raises why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore

from lockstitch.c10d.works import NO_TIMEOUT
from lockstitch.errors import CollectiveError, RankLostError

if TYPE_CHECKING:
    from datetime import timedelta

    import torch
    from torch.distributed.distributed_c10d import Store

    from lockstitch.c10d.membership import Membership

# The connection to a rank that died may break before the news of its death are here.
_NEWS_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.1


class GlooMessages:
    """What one rank sends and receives between hosts."""

    def __init__(self, group: Membership, store: Store, timeout: timedelta) -> None:
        self._group = group
        rank, size = group.session.rank, group.session.size
        prefixed = PrefixStore("messages", store)
        self._gloo: Any = distributed.ProcessGroupGloo(prefixed, rank, size, timeout)
        group.session.observers.ended = self._end

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> GlooWork:
        """Begins to send."""
        work = self._gloo.send([tensor], to, tag)
        return GlooWork(self._group, work, tensor, f"send to {self._called(to)}, tag {tag}")

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> GlooWork:
        """Begins to receive."""
        work = self._gloo.recv([tensor], source, tag)
        return GlooWork(self._group, work, tensor, f"recv from {self._called(source)}, tag {tag}")

    def receive_any(self, tensor: torch.Tensor, tag: int) -> GlooWork:
        """Begins to receive from whoever sends first."""
        work = self._gloo.recv_anysource([tensor], tag)
        return GlooWork(self._group, work, tensor, f"recv from any rank, tag {tag}")

    def close(self) -> None:
        """Ends what waits for other ranks."""
        self._gloo.abort()

    def _end(self, error: BaseException) -> None:
        if not (isinstance(error, RankLostError) and error.is_farewell):
            self._gloo.abort()

    def _called(self, rank: int) -> str:
        return self._group.session.names.one(rank)


class GlooWork(distributed.Work):
    """A message of Gloo under way, which tells more of what goes wrong."""

    def __init__(self, group: Membership, work: Any, tensor: torch.Tensor, what: str) -> None:
        super().__init__()
        self._group = group
        self._work = work
        self._tensor = tensor
        self._what = f"{what}, in {group.label}"

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Returns True when the message is there, or has been received. Raises why the group has
        ended, if it has, or what Gloo says."""
        try:
            return bool(self._work.wait(timeout) if timeout > NO_TIMEOUT else self._work.wait())
        except RuntimeError as error:
            try:
                self._group.session.check()
                end = self._group.session.clock.now() + _NEWS_SECONDS
                while timeout <= NO_TIMEOUT and self._group.session.clock.now() < end:
                    self._group.session.rest(_LOOK_SECONDS)
            except CollectiveError as reason:
                raise self._group.explained(reason, self._what) from error
            raise

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
