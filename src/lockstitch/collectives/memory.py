"""All ranks of a session in one process, each a thread of the test: the twin of the real backends.

One table serves all. The submission that makes an operation ready performs it, for every rank.

    sessions = LocalSessions(3)
    sessions.run(lambda session: session.wait(session.allreduce(torch.ones(2))))
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from lockstitch.clock import SYSTEM_CLOCK, Clock
from lockstitch.collectives.arithmetic import combine, rows_gathered, scaled_copy
from lockstitch.collectives.negotiation import (
    AllJoined,
    Instruction,
    Joined,
    Left,
    Negotiation,
    Perform,
    Submitted,
)
from lockstitch.collectives.outcomes import error_of, value_of
from lockstitch.collectives.pending_operations import PendingOperations
from lockstitch.collectives.process_sets import ProcessSet, ProcessSets
from lockstitch.collectives.requests import GLOBAL_SET, Kind
from lockstitch.collectives.session import Session
from lockstitch.collectives.topology import Topology
from lockstitch.devices.streams import Arrival, Streams
from lockstitch.errors import RankLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.nccl_bootstrap import NcclBootstrap
    from lockstitch.collectives.requests import Request

T = TypeVar("T")

_LOOK_SECONDS = 0.1


class LocalSessions:
    """`size` sessions, one for each rank, that belong together.

    `hosts` names each rank's host, for programs that ask for local and cross ranks. `bootstrap`,
    called for each rank, make operations between devices possible; without them a single rank works
    on the device itself, and several go through host memory.
    """

    def __init__(
        self,
        size: int,
        *,
        hosts: Sequence[str] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        stall_warning_seconds: float = 60.0,
        stall_failure_seconds: float = 0.0,
        bootstrap: Callable[[Topology, ProcessSets, PendingOperations], NcclBootstrap]
        | None = None,
    ) -> None:
        self._meeting = _Meeting(size)
        self._sessions: list[Session] = []
        for rank in range(size):
            pending = PendingOperations(
                rank,
                clock,
                stall_warning_seconds=stall_warning_seconds,
                stall_failure_seconds=stall_failure_seconds,
            )
            self._meeting.pending.append(pending)
            topology = Topology.of(rank, hosts or ["host"] * size)
            backend = MemoryBackend(rank, self._meeting, takes_devices=size == 1 and not bootstrap)
            sets = ProcessSets(size)
            way_out = bootstrap and bootstrap(topology, sets, pending)
            self._sessions.append(Session(topology, backend, pending, sets, way_out))

    def __enter__(self) -> LocalSessions:
        return self

    def __exit__(self, *_error: object) -> None:
        self.shutdown()

    def __len__(self) -> int:
        return len(self._sessions)

    def __getitem__(self, rank: int) -> Session:
        return self._sessions[rank]

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions)

    def run(self, function: Callable[[Session], T]) -> list[T]:
        """Runs `function` for every rank at once, each in a thread of its own; returns the values
        in the order of ranks, or raises the error of the first rank that has one."""
        results: list[Any] = [None] * len(self)
        errors: dict[int, BaseException] = {}

        def run_one(rank: int) -> None:
            try:
                results[rank] = function(self[rank])
            except BaseException as error:  # noqa: BLE001 - raised below
                errors[rank] = error

        threads = [
            threading.Thread(target=run_one, args=(rank,), name=f"rank {rank}", daemon=True)
            for rank in range(len(self))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[min(errors)]
        return results

    def kill(self, rank: int) -> None:
        """Ends every other session with an error, as if the process of that rank had died."""
        self._meeting.lose(rank)

    def shutdown(self) -> None:
        """Shuts all of them down."""
        for session in self:
            session.shutdown()


class MemoryBackend:
    """One rank's end of a session in one process."""

    name = "memory"
    negotiation_bytes = 0
    opens_sets_alone = True

    def __init__(self, rank: int, meeting: _Meeting, *, takes_devices: bool) -> None:
        self._rank = rank
        self._meeting = meeting
        self.takes_devices = takes_devices
        self._deferred: deque[tuple[Handle[Any], Streams | None]] = deque()
        """Of a single rank, with the streams of who has submitted them. Among several, whoever
        submits last does everything for all."""

    def submit(self, handle: Handle[Any]) -> None:
        handle.is_begun = True
        self.advance()
        if self._meeting.size > 1:
            self._meeting.submit(self._rank, handle)
            return
        tensors = handle.request.tensors
        streams = None if all(tensor.is_cpu for tensor in tensors) else Streams.of(tensors)
        if handle.request.is_deferred:
            self._deferred.append((handle, streams))
        else:
            self._perform_alone(handle, streams)

    def advance(self) -> None:
        """Performs what was deferred; everything else has been done by whoever submitted last."""
        while self._deferred:
            with contextlib.suppress(IndexError):  # another thread has come first
                self._perform_alone(*self._deferred.popleft())

    look_after = advance

    def _perform_alone(self, handle: Handle[Any], streams: Streams | None) -> None:
        if streams is None:
            self._meeting.submit(self._rank, handle)
            return
        with streams.current():
            handle.copy_back = Arrival(streams)
            self._meeting.submit(self._rank, handle)

    def wait(self, handle: Handle[Any], gives_up: Callable[[], bool] | None = None) -> None:
        self.advance()
        while not handle.wait(_LOOK_SECONDS):
            self._meeting.look_for_stalls(self._rank)
            if gives_up is not None and gives_up():
                return

    def rest(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    def is_wanted(self) -> bool:
        return self._meeting.is_wanted(self._rank)

    def missing(self, handle: Handle[Any]) -> tuple[int, ...] | None:
        return self._meeting.missing(self._rank, handle)

    def wanted(self) -> list[tuple[str, tuple[int, ...]]]:
        return self._meeting.wanted(self._rank)

    def resident(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    def is_resident(self, tensor: torch.Tensor) -> bool:  # noqa: ARG002 - all memory is alike
        return True

    def open_set(self, process_set: ProcessSet) -> None:
        self._meeting.open_set(process_set)

    def close_set(self, process_set: ProcessSet) -> None:
        """Does nothing: ids are not used again."""

    def close(self) -> None:
        self._meeting.leave(self._rank)


class _Meeting:
    """The state that the ranks share. One lock guards it all: this is for tests."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pending: list[PendingOperations] = []
        self._lock = threading.RLock()
        everybody = ProcessSet(GLOBAL_SET, tuple(range(size)))
        self._sets = {GLOBAL_SET: everybody}
        self._tables = {GLOBAL_SET: Negotiation(everybody.ranks)}
        self._joining: dict[int, Handle[Any]] = {}
        self._gone: set[int] = set()

    def open_set(self, process_set: ProcessSet) -> None:
        with self._lock:
            if process_set.id not in self._sets:
                self._sets[process_set.id] = process_set
                self._tables[process_set.id] = Negotiation(process_set.ranks)
                for rank in self._gone.intersection(process_set.ranks):
                    self._tables[process_set.id].handle(Left(rank))

    def submit(self, rank: int, handle: Handle[Any]) -> None:
        request = handle.request
        event: Submitted | Joined
        if request.kind is Kind.JOIN:
            self._joining[rank] = handle
            event = Joined(rank, time.monotonic_ns())
        else:
            event = Submitted(rank, handle.cached.description, handle)
        with self._lock:
            for instruction in self._tables[request.process_set].handle(event):
                self._follow(request.process_set, instruction)

    def leave(self, rank: int) -> None:
        with self._lock:
            if rank in self._gone:
                return
            self._gone.add(rank)
            for set_id, process_set in self._sets.items():
                if process_set.includes(rank):
                    for instruction in self._tables[set_id].handle(Left(rank)):
                        self._follow(set_id, instruction)

    def lose(self, rank: int) -> None:
        error = RankLostError(f"rank {rank} died: it was killed")
        with self._lock:
            self._gone.add(rank)
            for pending in self.pending:
                pending.break_off(error)

    def look_for_stalls(self, rank: int) -> None:
        with self._lock:
            self.pending[rank].look_for_stalls(lambda handle: self.missing(rank, handle))

    def missing(self, rank: int, handle: Handle[Any]) -> tuple[int, ...]:
        with self._lock:
            table = self._tables[handle.request.process_set]
            if handle.request.kind is Kind.JOIN:
                return table.not_joined()
            return table.missing(handle.name, rank)

    def wanted(self, rank: int) -> list[tuple[str, tuple[int, ...]]]:
        with self._lock:
            return [
                (waiting.name, waiting.submitted)
                for table in self._tables.values()
                for waiting in table.waiting()
                if rank in waiting.missing
            ]

    def is_wanted(self, rank: int) -> bool:
        with self._lock:
            return any(
                self._tables[set_id].wants(rank)
                for set_id, process_set in self._sets.items()
                if process_set.includes(rank)
            )

    def _follow(self, set_id: int, instruction: Instruction) -> None:
        if isinstance(instruction, AllJoined):
            for rank, handle in list(self._joining.items()):
                del self._joining[rank]
                self.pending[rank].complete(handle, instruction.last)
            return
        handles = {rank: part.note for rank, part in instruction.parts.items()}
        if isinstance(instruction, Perform):
            for rank, handle in handles.items():
                self.pending[rank].note_ready(handle)
            try:
                self._perform(self._sets[set_id], instruction, handles)
            except Exception as error:  # noqa: BLE001 - everybody who waits gets it
                for rank, handle in handles.items():
                    self.pending[rank].fail(handle, error)
            return
        for rank, handle in handles.items():
            self.pending[rank].fail(handle, error_of(instruction))

    def _perform(
        self, process_set: ProcessSet, instruction: Perform, handles: dict[int, Handle[Any]]
    ) -> None:
        described = [
            instruction.parts[rank].description if rank in instruction.parts else None
            for rank in process_set.ranks
        ]
        # Copies, all before the first result is written: outputs may be the inputs themselves.
        parts = [
            _part(handles[rank], rank, is_alone=self.size == 1) if rank in handles else None
            for rank in process_set.ranks
        ]
        for position, rank in enumerate(process_set.ranks):
            if rank in handles:
                handle = handles[rank]
                results = combine(handle.request, described, parts, position)
                if handle.request.kind is Kind.ALLGATHER:
                    handle.rows = rows_gathered(described)
                self.pending[rank].complete(handle, value_of(handle.request, results))


def _is_in_place(request: Request) -> bool:
    return request.outputs is not None and all(
        tensor is out for tensor, out in zip(request.tensors, request.outputs, strict=True)
    )


def _part(handle: Handle[Any], rank: int, *, is_alone: bool) -> list[torch.Tensor]:
    request = handle.request
    if request.kind is Kind.BROADCAST and request.root != rank:
        return []
    factor = request.reduction.prescale if request.reduction else 1.0
    if is_alone and factor == 1.0 and (request.outputs is None or _is_in_place(request)):
        return list(request.tensors)  # nobody else writes anything
    copies = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in request.tensors]
    for tensor, copy in zip(request.tensors, copies, strict=True):
        scaled_copy(tensor, factor, copy)
    return copies
