"""Sending and receiving between two ranks.

On one host a message is a broadcast in a set of the two ranks (`Session.open_pair`), through the
same memory as all else: the kth send of a rank with some tag meets the kth receive with that tag.
A send is done when the other rank receives, as with Gloo. Receiving from any rank looks for a
message that some rank has submitted, and then receives that.

A message may be shorter than the tensor that receives it, whose rest stays as it is: Gloo takes
that, and programs send what only they know the size of. The broadcast is refused then, on both
ranks alike, and each begins another one, of as many elements as there are.

Between hosts torch's own group of Gloo sends and receives (`gloo_messages`).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from torch import distributed

from lockstitch.c10d.outputs import Outputs, flat_input
from lockstitch.c10d.repetitions import learn
from lockstitch.c10d.works import NO_TIMEOUT, SessionWork
from lockstitch.collectives import Kind, Request
from lockstitch.collectives.requests import GLOBAL_SET
from lockstitch.errors import CollectiveError, MismatchError
from lockstitch.interrupts import elsewhere

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    import torch

    from lockstitch.c10d.flight_recorder import Entry, Repetition
    from lockstitch.c10d.membership import Membership
    from lockstitch.c10d.repetitions import Known
    from lockstitch.collectives import Handle
    from lockstitch.collectives.repeated import Repeated

_POLL_SECONDS: Final = 10e-3
_MOST_WAYS: Final = 1 << 12
_MOST_KNOWN: Final = 1 << 6


class _Way:
    """What all messages have in common that one rank sends another one with one tag."""

    def __init__(self, source: int, queue: str, pair: int, name: str) -> None:
        self.source = source
        self.queue = queue
        self.pair = pair
        """The set of the two ranks."""
        self.name = name
        """As torch calls them."""
        self.known: Known = {}
        """Small ones that came before, by shape and dtype."""


class Messages:
    """What one rank sends and receives over a session's pairs."""

    def __init__(self, group: Membership) -> None:
        self.group = group
        self._session = group.session
        self._rank = group.session.rank
        self._ways: dict[tuple[int, int, int], _Way] = {}
        """By who sends, who receives, and the tag."""
        self._refused: deque[tuple[Handle[Any], int]] = deque()
        """What is to be begun once more, of so many elements, in the order of its refusal, which is
        the same on both ranks."""
        self._beginning_again = threading.Lock()
        self._again: WeakKeyDictionary[Handle[Any], Handle[Any]] = WeakKeyDictionary()
        self._session.observers.failed = self._note_failure

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> MessageWork:
        """Begins to send; the tensor must not change before the work is done."""
        way = self._way(self._rank, to, tag)
        return self._begun(way, flat_input(tensor), tensor, Outputs())

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> MessageWork:
        """Begins to receive into the tensor, of as many elements as are sent or more."""
        outputs = Outputs()
        way = self._way(source, self._rank, tag)
        return self._begun(way, outputs.kept(tensor), tensor, outputs)

    def _way(self, source: int, to: int, tag: int) -> _Way:
        way = self._ways.get((source, to, tag))
        if way is None:
            peer, what = (to, "send {}->{}") if source == self._rank else (source, "recv {1}<-{0}")
            pair = self._session.open_pair(peer).id
            way = _Way(source, _queue(source, to, tag), pair, what.format(source, to))
            if len(self._ways) >= _MOST_WAYS:
                self._ways.clear()
            self._ways[source, to, tag] = way
        return way

    def _begun(
        self, way: _Way, vector: torch.Tensor, tensor: torch.Tensor, outputs: Outputs
    ) -> MessageWork:
        kind = (vector.shape, vector.dtype)
        known = way.known.get(kind)
        if known is not None:
            again = self._begun_again(way, known, vector)
            if again is not None:
                return MessageWork(self, *again, tensor, outputs, way.source)
        source, queue, pair, name = way.source, way.queue, way.pair, way.name
        whole = (vector,)
        try:
            handle = self._session.submit(
                Request(Kind.BROADCAST, "", whole, whole, None, source, None, pair, queue=queue)
            )
        except CollectiveError as error:
            raise self.group.explained(error, f"{name}, in {self.group.label}") from error
        entry = self.group.recorded(handle, name, (), 0.0, is_message=True)
        learn(way.known, kind, self._session, handle, entry, most=_MOST_KNOWN)
        return MessageWork(self, handle, entry, tensor, outputs, source)

    def _begun_again(
        self, way: _Way, known: tuple[Repeated, Entry], vector: torch.Tensor
    ) -> tuple[Handle[Any], Repetition] | None:
        """Begins one like an earlier one, if that can be had with fewer steps."""
        repeated, like = known
        handle = repeated.next(vector)
        if handle is None:
            return None
        try:
            if not repeated.begin(handle):
                return None
            repetition = self.group.repeated(like, handle.submitted_at)
            repeated.submit(handle)
        except BaseException as error:
            repeated.withdraw(handle, error)
            if isinstance(error, CollectiveError):
                raise self.group.explained(error, f"{way.name}, in {self.group.label}") from error
            raise
        return handle, repetition

    def _note_failure(self, handle: Handle[Any], error: BaseException) -> None:
        """A message that is shorter than the tensor for it is begun once more, also while nobody
        waits for it here: the other rank may."""
        request = handle.request
        elements = error.elements if isinstance(error, MismatchError) else {}
        count = elements.get(request.root, -1)
        if request.process_set != GLOBAL_SET and 0 <= count <= min(elements.values()):
            self._refused.append((handle, count))
            elsewhere(self._begin_shorter, ())
        else:
            self.group.label.note_failure(handle, error)

    def instead_of(self, handle: Handle[Any]) -> Handle[Any] | None:
        """The handle of a message that was begun once more; None where that was not done. Raises
        why nothing can begin any more."""
        if handle not in self._again:
            self._begin_shorter()
            self._session.check()
        return self._again.get(handle)

    def _begin_shorter(self) -> None:
        with self._beginning_again, contextlib.suppress(CollectiveError):  # told by `instead_of`
            while self._refused:
                handle, count = self._refused[0]
                (vector,) = handle.request.tensors
                whole = (vector[:count],)
                queue = f"{handle.request.queue}, shorter"
                request = replace(handle.request, tensors=whole, outputs=whole, queue=queue)
                self._again[handle] = self._session.submit(request)
                self._refused.popleft()

    def receive_any(self, tensor: torch.Tensor, tag: int) -> AnySourceWork:
        """Begins to receive from whoever sends first."""
        for peer in range(self._session.size):
            if peer != self._rank:
                self._session.open_pair(peer)
        return AnySourceWork(self, self.group, tensor, tag)

    def sender(self, tag: int) -> int | None:
        """Returns a rank that has sent something with this tag for which nobody here waits."""
        senders = {_queue(by, self._rank, tag): by for by in range(self._session.size)}
        for queue, _ in self._session.wanted():
            if queue in senders:
                return senders[queue]
        return None

    def close(self) -> None:
        """Before the session ends: tells each rank that this one sends and receives no more, also
        those that have not heard of it yet."""
        for peer in range(self._session.size):
            if peer != self._rank:
                self._session.open_pair(peer)


class MessageWork(SessionWork):
    """A message on its way from a rank, or to it."""

    has_future = False

    def __init__(
        self,
        messages: Messages,
        handle: Handle[Any],
        entry: Entry | Repetition,
        tensor: torch.Tensor,
        outputs: Outputs,
        source: int,
    ) -> None:
        super().__init__(messages.group, handle, entry, [tensor], outputs)
        self._messages = messages
        self._source = source

    def _limit_seconds(self) -> float:
        return 0.0  # the group's

    def _goes_on(self, refused: Handle[Any]) -> bool:
        again = self._messages.instead_of(refused)
        if again is None:
            return False
        self._handle = again
        return True

    def _is_over(self) -> bool:
        handle = self._handle
        if not super()._is_over():
            return False
        try:
            handle.result()
        except MismatchError:
            with contextlib.suppress(CollectiveError):  # told by `finish`
                return not self._goes_on(handle)
        except CollectiveError:
            pass
        return True

    def source_rank(self) -> int:
        """The rank, in the group, that has sent it."""
        return self._source

    _source_rank = source_rank


class AnySourceWork(distributed.Work):
    """Receives from whoever sends first; who that is shows when somebody waits or asks."""

    def __init__(
        self, messages: Messages, group: Membership, tensor: torch.Tensor, tag: int
    ) -> None:
        super().__init__()
        self._messages = messages
        self._group = group
        self._session = group.session
        self._what = f"recv from any rank with tag {tag}, in {group.label}"
        self._tensor = tensor
        self._tag = tag
        self._found: MessageWork | None = None
        self._looking = threading.Lock()

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Returns True when a message is there, or raises what went wrong; `StalledError` after
        `timeout`, and nothing is received then."""
        now = self._session.clock.now
        end = now() + timeout.total_seconds() if timeout > NO_TIMEOUT else None
        while (found := self._look_or_rest()) is None:
            if end is not None and now() >= end:
                raise self._group.late(self._what, timeout.total_seconds(), ())
        return found.wait(timeout)

    def _look_or_rest(self) -> MessageWork | None:
        try:
            found = self._look()
            if found is None:
                self._session.rest(_POLL_SECONDS)
        except CollectiveError as error:
            raise self._group.explained(error, self._what) from error
        return found

    def _look(self) -> MessageWork | None:
        with self._looking:
            if self._found is None:
                self._session.check()
                source = self._messages.sender(self._tag)
                if source is not None:
                    self._found = self._messages.receive(self._tensor, source, self._tag)
            return self._found

    def is_completed(self) -> bool:
        """Returns whether a message is there; never waits."""
        found = self._look()
        return found is not None and found.is_completed()

    def is_success(self) -> bool:
        """Returns whether it is there, and nothing went wrong."""
        found = self._look()
        return found is not None and found.is_success()

    def exception(self) -> BaseException | None:
        """Returns what went wrong."""
        return None if self._found is None else self._found.exception()

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """Returns the tensor, when a message is there."""
        self.wait()
        return [self._tensor]

    def source_rank(self) -> int:
        """The rank, in the group, that has sent the message; -1 while there is none."""
        return -1 if self._found is None else self._found.source_rank()

    _source_rank = source_rank


def _queue(source: int, to: int, tag: int) -> str:
    return f"{source} to {to}, tag {tag}"


def only(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the one tensor of a list. Raises `ValueError` for another number."""
    if len(tensors) != 1:
        raise ValueError(f"one tensor is needed, not {len(tensors)}")
    return tensors[0]
