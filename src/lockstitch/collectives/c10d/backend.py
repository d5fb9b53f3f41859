"""One rank's end: what is submitted goes to rank 0, what comes back is performed in order.

Two threads work for it. One reads what rank 0 says and puts it in a queue; the other performs one
order after the other, for an operation of a process group blocks until all ranks are in it. That
delays nobody for ever: an order is given only when all ranks are ready, and in the same order to
all. Results of small tensors come with the message (`riding`), and the reading thread hands them
out.
"""

from __future__ import annotations

import contextlib
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch

from lockstitch.collectives.c10d import riding
from lockstitch.collectives.c10d.ahead import Claims
from lockstitch.collectives.c10d.beginning import Beginning, in_thread
from lockstitch.collectives.c10d.messages import (
    ANYTHING,
    Ask,
    Define,
    Detailed,
    Done,
    Fail,
    Join,
    Joined,
    Leave,
    Lost,
    Message,
    Missing,
    Order,
    Refused,
    Submit,
    Welcome,
)
from lockstitch.collectives.c10d.orders import OrderPerformer
from lockstitch.collectives.negotiation import Refuse
from lockstitch.collectives.outcomes import error_of
from lockstitch.collectives.requests import GLOBAL_SET, Kind
from lockstitch.devices.kinds import is_host
from lockstitch.errors import CollectiveError, RankLostError
from lockstitch.forks import abandon_in_child

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from lockstitch.collectives.c10d.gloo_connections import GlooConnections
    from lockstitch.collectives.c10d.group_operations import GroupOperations
    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.pending_operations import PendingOperations
    from lockstitch.collectives.process_sets import ProcessSet, ProcessSets
    from lockstitch.collectives.request_cache import CachedRequest
    from lockstitch.collectives.requests import Request

T = TypeVar("T")
_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 1.0
_SILENCE_NEWS_SECONDS = 0.2
_ANSWER_SECONDS = 1.0
_LOOKS_FOR_ANSWER = 20


class _SendAhead(NamedTuple):
    """For the thread that performs orders: see `GroupOperations.send_ahead`."""

    request: Request
    number: int
    process_set: ProcessSet


class CoordinatorLink(Protocol):
    """This rank's connection to the coordinator at rank 0."""

    bytes_sent: int

    def tell(self, message: Message) -> None: ...

    def close(self) -> None: ...


class C10dBackend:
    """See the module. `connect` makes the link to the coordinator that calls back with what rank 0
    says.

    For one process set only (`only_for`) it is one of several routes of a session: its first rank
    stands where rank 0 does otherwise, and joins are decided elsewhere.

    It is made when all ranks have come to rank 0 and have connected to each other; `start_seconds`
    are for the first of that. `has_failed` may know earlier of a rank that does not come.
    `news_seconds`: how long news of a death may take to come here once a connection has broken.
    `riding_bytes`: see `SessionOptions`.
    """

    def __init__(  # noqa: PLR0913 - all that it works with
        self,
        groups: GroupOperations,
        sets: ProcessSets,
        pending: PendingOperations,
        connect: Callable[[Callable[[Message], None]], CoordinatorLink],
        name: str = "c10d",
        only_for: ProcessSet | None = None,
        *,
        start_seconds: float = 60.0,
        news_seconds: float = 1.0,
        has_failed: Callable[[], str | None] = lambda: None,
        riding_bytes: int = 0,
    ) -> None:
        self.name = name
        self._only_for = only_for
        self._news_seconds = news_seconds
        self._route = None if only_for is None else self
        self._end: CollectiveError | None = None
        """Why it takes nothing any more, though the session goes on."""
        self._rank, self._me = pending.rank, pending.names.one(pending.rank)
        self._groups = groups
        self._sets = sets
        self._pending = pending
        self._told: dict[int, CachedRequest] = {}
        """What each number stands for, as rank 0 knows it."""
        self._told_sets = {GLOBAL_SET}
        """Of which process sets rank 0 knows the ranks."""
        self._allowance = riding.Allowance(riding_bytes)
        self._claims = Claims()
        self._performer = OrderPerformer(groups, sets, pending, self._let_go)
        self._stream = self._performer.stream
        self._side_operations = self._performer.side_operations
        self._under_way = self._performer.under_way
        self._joining: Handle[Any] | None = None
        self._missing: dict[int, tuple[int, ...]] = {}
        self._orders: SimpleQueue[Message | _SendAhead | None] = SimpleQueue()
        self._submitting = threading.Lock()
        self._content_bytes = 0
        """Of the tensors that this rank has sent with its submissions."""
        self._is_closed = self._is_abandoned = False
        self._beginning = Beginning(0 if only_for is None else only_for.ranks[0], pending)
        self._knows_why = threading.Event()
        """Set when a rank was lost, or this one ends: what fails then fails for that reason."""
        self._thread = threading.Thread(
            target=self._run, name=f"rank {self._rank} reductions", daemon=True
        )
        self._link = self._linked(connect)
        try:
            self._beginning.await_all(start_seconds, has_failed)
            self.open_set(only_for or sets[GLOBAL_SET])
            self._thread.start()
        except BaseException as error:
            self._give_up_start(error)
            raise
        abandon_in_child(self)

    def _linked(
        self, connect: Callable[[Callable[[Message], None]], CoordinatorLink]
    ) -> CoordinatorLink:
        try:
            return connect(self._hear)
        except BaseException:
            self._groups.close()
            raise

    def _give_up_start(self, error: BaseException) -> None:
        """Rank 0 tells the others, who wait or have begun."""
        self._is_closed = True
        self._link.tell(Fail(str(error) or repr(error)))
        self._link.close()
        self._groups.close()

    opens_sets_alone = False

    @property
    def takes_devices(self) -> bool:
        return not is_host(self._groups.device)

    @property
    def negotiation_bytes(self) -> int:
        return self._link.bytes_sent - self._content_bytes

    # ------------------------------------------------------------ the backend

    def submit(self, handle: Handle[Any]) -> None:
        if self._is_abandoned:
            self._refuse_child()
        handle.is_begun = True
        if handle.request.kind is Kind.JOIN:
            self._joining = handle
            self._link.tell(Join())
            return
        cached, request = handle.cached, handle.request
        process_set = self._sets[request.process_set]
        content = b""
        if self._stream is not None:
            operation = self._stream.operation([*request.tensors, *(request.outputs or ())])
            handle.copy_back = self._side_operations[cached.number] = operation
        elif request.reduction is not None and self._allowance.claim(cached, process_set.size):
            content = riding.packed(request.tensors, request.reduction.prescale)
        with self._submitting:
            if self._end is not None:
                self._pending.fail(handle, self._end)
                return
            self._under_way[cached.number] = handle
            if self._told.get(cached.number) is not cached:
                described = cached.description.encode().decode()
                ranks = () if process_set.id in self._told_sets else process_set.ranks
                self._told_sets.add(process_set.id)
                self._link.tell(Define(cached.number, process_set.id, ranks, described))
                self._told[cached.number] = cached
            self._content_bytes += len(content)
            ahead = 0
            if not content and self._groups.may_send_ahead(request, process_set):
                ahead = self._claims.claim(cached.number)
            if ahead:
                # Before the word that it does: whatever interrupts this thread, it will.
                self._orders.put(_SendAhead(request, ahead, process_set))
            self._link.tell(Submit(cached.number, content, ahead))

    def join(self) -> None:
        """This rank has joined, as the session's backend is told; that says, too, when all have."""
        self._link.tell(Join())

    def advance(self) -> None:
        """Does nothing: threads of its own do the work."""
        if self._is_abandoned:
            self._refuse_child()

    look_after = advance

    def wait(self, handle: Handle[Any], gives_up: Callable[[], bool] | None = None) -> None:
        if self._is_abandoned:
            self._refuse_child()
        while not handle.wait(_LOOK_SECONDS):
            self._pending.look_for_stalls(self._whom_it_waits_for, self._route, self._give_up)
            self._look_for_silence()
            if gives_up is not None and gives_up():
                return

    def _look_for_silence(self) -> None:
        """Others may be cut off in the midst of what is done here, so that nobody would tell."""
        try:
            self._groups.check_silence()
        except RankLostError as error:
            if not self._pending.is_broken:
                self._fail(error)

    def rest(self, seconds: float) -> None:
        self._knows_why.wait(seconds)

    def is_wanted(self) -> bool:
        """Returns what rank 0 has answered to the last such question, and asks anew."""
        self._link.tell(Ask(ANYTHING))
        return bool(self._missing.pop(ANYTHING, ()))

    def missing(self, handle: Handle[Any]) -> tuple[int, ...] | None:
        if handle.request.kind is Kind.JOIN or self._is_abandoned:
            return None
        return self._answer(lambda: self._whom_it_waits_for(handle))

    def wanted(self) -> list[tuple[str, tuple[int, ...]]]:
        if self._is_abandoned:
            return []
        self._missing.pop(ANYTHING, None)
        self._link.tell(Ask(ANYTHING))
        return [("", ())] if self._answer(lambda: self._missing.pop(ANYTHING, None)) else []

    def _answer(self, look: Callable[[], tuple[int, ...] | None]) -> tuple[int, ...] | None:
        """Returns what rank 0 says, if it does so soon."""
        for _ in range(_LOOKS_FOR_ANSWER):
            if (answer := look()) is not None:
                return answer
            self._knows_why.wait(_ANSWER_SECONDS / _LOOKS_FOR_ANSWER)
        return None

    def resident(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype, device=self._groups.device)

    def is_resident(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self._groups.device

    def open_set(self, process_set: ProcessSet) -> None:
        self._connected(lambda: self._groups.open_set(process_set))

    def message_group(self, timeout: timedelta) -> tuple[Any, GlooConnections]:
        """See `Session.message_group`."""
        return self._connected(lambda: self._groups.message_group(self._sets[GLOBAL_SET], timeout))

    def _connected(self, connect: Callable[[], T]) -> T:
        """All members connect to each other. Where that fails nobody can go on."""
        try:
            with self._groups.opening() as look:
                return in_thread(connect, self._pending, look=look)
        except Exception as error:
            # It may have failed since a rank died, of which the news are on their way.
            self._knows_why.wait(self._news_seconds)
            self._give_up(error)
            self._pending.check()
            raise

    def close_set(self, process_set: ProcessSet) -> None:
        self._groups.close_set(process_set)

    def close(self) -> None:
        if self._is_closed or self._is_abandoned:
            return
        self._is_closed = True
        self._knows_why.set()
        self._link.close()
        self._orders.put(None)
        if not self._groups.is_aborted:
            # What is being performed is let go on for a moment: other ranks may be in it, too.
            self._thread.join(_GRACE_SECONDS)
            if self._thread.is_alive():
                self._groups.abort()
        self._thread.join(_GRACE_SECONDS)
        # Of those who wait Gloo wakes none whose content was under way when the connection ended,
        # and its groups cannot end before. Then the thread is left to it, with what it holds.
        if not self._thread.is_alive():
            self._groups.close()

    def abandon(self) -> None:
        """Gives up the session in a forked child, where there are no threads to perform
        anything."""
        self._is_abandoned = True

    # ------------------------------------------------------------ what rank 0 says

    def _hear(self, message: Message) -> None:
        """Takes in a message of rank 0, in the thread that reads: quickly, for the next one may be
        urgent."""
        if isinstance(message, Lost):
            who = self._pending.names.one(message.rank)
            lost = f"{who} {message.why} (heard by {self._me})"
            self._break(RankLostError(lost))
            self._knows_why.set()
            self._beginning.end()
            self._groups.abort()
        elif isinstance(message, Welcome):
            self._beginning.end()
        elif isinstance(message, Missing):
            self._missing[message.number] = message.ranks
        elif isinstance(message, Done):
            try:
                self._performer.hand_out(message)
            except Exception as error:  # noqa: BLE001 - as in `_run`
                self._fail(error)
        else:
            self._orders.put(message)

    def _whom_it_waits_for(self, handle: Handle[Any]) -> tuple[int, ...] | None:
        """Rank 0 knows; until it has answered nobody does."""
        missing = self._missing.pop(handle.cached.number, None)
        if missing is None:
            self._link.tell(Ask(handle.cached.number))
        return missing

    def _break(self, error: BaseException) -> None:
        self._pending.break_off(error)

    # ------------------------------------------------------------ performing

    def _run(self) -> None:
        with contextlib.nullcontext() if self._stream is None else self._stream.current():
            while (message := self._orders.get()) is not None:
                if self._pending.is_broken:
                    continue
                try:
                    self._obey(message)
                except Exception as error:  # noqa: BLE001 - the session ends with it, everywhere
                    # The connection to a rank that died may break before the news of its death,
                    # which say more, are here. Of a silent host none are on their way.
                    is_silent = isinstance(error, RankLostError)
                    most = _SILENCE_NEWS_SECONDS if is_silent else self._news_seconds
                    self._knows_why.wait(min(most, self._news_seconds))
                    self._fail(error)
        if self._stream is not None:
            self._stream.finish()

    def _fail(self, error: Exception) -> None:
        """Others wait in the operation that failed here, so nobody can go on."""
        kind = RankLostError if isinstance(error, RankLostError) else CollectiveError
        broken = kind(f"an operation failed on {self._me}: {error}")
        broken.__cause__ = error
        self._give_up(broken)
        self._groups.abort()

    def _give_up(self, error: BaseException) -> None:
        """The session is over here, and so it is for the others."""
        self._break(error)
        if not self._knows_why.is_set():
            self._link.tell(Fail(str(error)))

    def _let_go(self, number: int) -> None:
        self._allowance.release(number)
        self._claims.release(number)

    def _obey(self, message: Message | _SendAhead) -> None:
        if isinstance(message, _SendAhead):
            self._groups.send_ahead(*message)
        elif isinstance(message, Order):
            for number in message.numbers:
                self._claims.learn(number, is_likely=message.is_likely)
            self._performer.perform_together(message.numbers, message.sent)
        elif isinstance(message, Detailed):
            self._claims.learn(message.number, is_likely=False)
            self._performer.perform_detailed(message)
        elif isinstance(message, Refused):
            self._claims.learn(message.number, is_likely=False)
            handle = self._performer.take(message.number)
            self._side_operations.pop(message.number, None)
            refusal = Refuse(handle.name, {}, message.objection, message.text)
            self._pending.fail(handle, error_of(refusal))
        elif isinstance(message, Leave):
            who = self._pending.names.one(message.rank)
            text = f"{who}, from which all orders come, shut down (heard by {self._me})"
            error = RankLostError(text)
            error.is_farewell = True
            self._lose_coordinator(error)
        elif isinstance(message, Joined) and self._joining is not None:
            joining, self._joining = self._joining, None
            self._pending.complete(joining, message.last)

    def _lose_coordinator(self, error: CollectiveError) -> None:
        """No orders come any more. Where there are other routes, the session goes on by them."""
        if self._only_for is None:
            self._break(error)
            return
        with self._submitting:
            self._end = error
            left = list(self._under_way.values())
            self._under_way.clear()
        for handle in left:
            self._pending.fail(handle, error)

    def _refuse_child(self) -> None:
        raise CollectiveError(
            f"this process was forked from {self._me}, which alone may use its session"
        )
