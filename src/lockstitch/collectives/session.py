"""One rank's part in the reductions of a job: what faces are built on.

Every operation is submitted under a name and returns a `Handle` at once. Ranks may submit in any
order; an operation is done when all ranks of its process set have submitted it. `wait(handle)`
gives the result, `poll(handle)` says whether there is one.

- *Names*. A name is unique while in flight: a second submission raises `ValueError`. Without a name
  an operation is matched by its place among the unnamed ones of its kind and process set.
- *Errors*. What is wrong whatever others do raises `ValueError` at submission, on this rank only.
  What does not fit together (`MismatchError`), or cannot be done because ranks have joined
  (`CollectiveError`), is raised by `wait` on every rank of the set, and the session goes on. A rank
  that dies ends the session: everything under way, and every later submission, raises
  `RankLostError` on every survivor at once. After `shutdown` everything raises `CollectiveError`.
- *Tensors*. Any layout and device. Reductions take every dtype with which torch can do them;
  operations that only move tensors take every dtype. Inputs must not change before the operation is
  done. All ranks get the same bits from a reduction.
- *Threads*. Any thread may submit and wait, also while others do.
- *Modes* of torch (inference mode, a default device, …) do not matter: whoever waits does the work
  of all, and what is made for it is kept. So it is done in plain modes (`lockstitch.modes`), and
  results are ordinary tensors.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

import torch

from lockstitch.attach.values import CollectiveWait, Counter, GroupReport, in_words
from lockstitch.collectives import checks
from lockstitch.collectives.device_routes import DeviceRoutes
from lockstitch.collectives.events import Observers, Statistics
from lockstitch.collectives.mappings import (
    OperationOnCopies,
    check_outputs,
    is_usual,
    must_be_copied,
)
from lockstitch.collectives.operations import Awaited, Deferred, Operations
from lockstitch.collectives.process_sets import ProcessSet, pair_id
from lockstitch.collectives.repeated import Repeated
from lockstitch.collectives.request_cache import RequestCache
from lockstitch.collectives.requests import GLOBAL_SET, Kind, Request
from lockstitch.collectives.staging import Staging, is_on_host
from lockstitch.errors import CollectiveError
from lockstitch.modes import are_plain, in_plain_modes, plain_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import timedelta

    from lockstitch.attach.values import Question
    from lockstitch.clock import Clock
    from lockstitch.collectives.backend import Backend, BetweenHosts
    from lockstitch.collectives.c10d.gloo_connections import GlooConnections
    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.nccl_bootstrap import NcclBootstrap
    from lockstitch.collectives.pending_operations import PendingOperations
    from lockstitch.collectives.process_sets import ProcessSets
    from lockstitch.collectives.rank_names import RankNames
    from lockstitch.collectives.topology import Topology

T = TypeVar("T")

_PATIENCE_SECONDS = 1.0
# Of these, one rank's result may lie where another one's contribution does.
_MAY_OVERLAP = (Kind.ALLREDUCE, Kind.BROADCAST)
# The queues of what has no name.
_NAMELESS: Final = {kind: f"{kind.value}.noname" for kind in Kind}


class Session(Operations):
    """See the module. Made by `open_session`, or several in one process by `LocalSessions`."""

    _is_on_host = staticmethod(is_on_host)

    def __init__(
        self,
        topology: Topology,
        backend: Backend,
        pending: PendingOperations,
        sets: ProcessSets,
        bootstrap: NcclBootstrap | None = None,
    ) -> None:
        """`bootstrap`: for operations between devices; without them all goes by the backend."""
        self.topology = topology
        self._rank = topology.rank
        self._backend = backend
        self._pending = pending
        self._sets = sets
        self._request_cache = RequestCache(topology.rank)
        self._staging = Staging(backend, pending)
        # Without a cycle the memory that ranks share is unmapped as soon as it may be.
        self._devices = DeviceRoutes(weakref.proxy(self), bootstrap, self._staging, pending)
        self._added = itertools.count()
        self._removed = itertools.count()
        self._set_changes = threading.Lock()
        self._submitting = threading.Lock()

    def __repr__(self) -> str:
        return (
            f"<Session of rank {self.rank}/{self.size} over {self._backend.name} · "
            f"{len(self._pending)} under way>"
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_error: object) -> None:
        self.shutdown()

    # ------------------------------------------------------------ where this rank stands

    @property
    def rank(self) -> int:
        """The global rank."""
        return self.topology.rank

    @property
    def size(self) -> int:
        """How many ranks the session has."""
        return self.topology.size

    @property
    def backend_name(self) -> str:
        """`shared_memory`, `c10d`, `hierarchical` or `memory`."""
        return self._backend.name

    @property
    def clock(self) -> Clock:
        """By which it measures time."""
        return self._pending.clock

    def give_up_after(self, seconds: float) -> None:
        """Says after how long the wait for other ranks ends the session with an error, from now on;
        0: never."""
        self._pending.give_up_after(seconds)

    def check(self) -> None:
        """Raises why nothing can begin any more, if that is so."""
        self._pending.check()

    @property
    def names(self) -> RankNames:
        """How its errors call the ranks."""
        return self._pending.names

    @property
    def observers(self) -> Observers:
        """Whom to tell of progress and stalls; set its fields at any time."""
        return self._pending.observers

    def statistics(self) -> Statistics:
        """Counts since the beginning."""
        counts = self._pending
        return Statistics(
            backend=self._backend.name,
            submitted=counts.submitted,
            completed=counts.completed,
            failed=counts.failed,
            under_way=len(counts),
            negotiation_bytes=self._backend.negotiation_bytes,
            tensor_bytes=counts.tensor_bytes,
            process_sets=len(self._sets.all()),
        )

    def waits(self) -> list[CollectiveWait]:
        """Each operation under way here, and each that other ranks wait for, with the ranks as
        people know them; from any thread. May ask other ranks and wait for a moment."""
        waits, now, number = [], self._pending.clock.now(), self._pending.names.number
        for handle in self._pending.all():
            missing = self.missing(handle)
            if not handle.is_done:
                kind, seconds = handle.request.kind.value, round(now - handle.submitted_at, 3)
                known = None if missing is None else tuple(map(number, missing))
                waits.append(CollectiveWait(kind, handle.name, True, seconds, known))
        for name, by in [] if self._pending.is_broken else self._backend.wanted():
            here = (number(self.rank),)
            waits.append(CollectiveWait("", name, False, 0.0, here, tuple(map(number, by))))
        return waits

    def describe_waits(self) -> list[str]:
        """`waits` in words, a line each."""
        where = f"{self._pending.names.one(self.rank)} of {self.size}"
        return [f"{where}: {in_words(wait)}" for wait in self.waits()]

    def told(self, kind: Literal["hvd", "c10d"], name: str, question: Question) -> GroupReport:
        """What this rank tells somebody who looks on."""
        return GroupReport(
            kind,
            name,
            self._pending.names.number(self.rank),
            self.size,
            self.backend_name,
            tuple(self.waits()) if question.waits else (),
            self._counters() if question.counters else (),
        )

    def _counters(self) -> tuple[Counter, ...]:
        now = self.statistics()
        return (
            Counter("lockstitch_collectives_submitted_total", now.submitted, "counter"),
            Counter("lockstitch_collectives_completed_total", now.completed, "counter"),
            Counter("lockstitch_collectives_failed_total", now.failed, "counter"),
            Counter("lockstitch_collectives_bytes_total", now.tensor_bytes, "counter"),
            Counter("lockstitch_collectives_pending", now.under_way),
        )

    def in_flight(self, key: tuple[int, str]) -> Handle[Any] | None:
        """Returns the handle in flight under a key (`Handle.key`)."""
        return self._pending.find(*key)

    def missing(self, handle: Handle[Any]) -> tuple[int, ...] | None:
        """Returns the ranks that have not submitted an operation which this one has; None where
        that is not found out. May ask other ranks and wait for a moment."""
        route: Any = handle.route or self._backend
        found: tuple[int, ...] | None = route.missing(handle) if hasattr(route, "missing") else None
        return found

    @property
    def deferred(self) -> Deferred:
        """The operations in the form that leaves all work to later calls."""
        return Deferred(self)

    @property
    def awaited(self) -> Awaited:
        """The operations in the form for who waits for them at once."""
        return Awaited(self)

    # ------------------------------------------------------------ handles

    def submit(self, request: Request) -> Handle[Any]:
        """Begins an operation; all methods for operations come down to it. Raises `ValueError` when
        the request makes no sense or its name is in flight, `CollectiveError` when the session is
        over."""
        if not are_plain():
            with plain_modes():
                return self.submit(request)
        pending = self._pending
        if pending.is_broken:
            pending.check()
        process_set = self._sets[request.process_set]
        is_for_backend = True
        on_copies: OperationOnCopies | None = None
        if not is_usual(request):
            is_for_backend = self._is_on_host(request) or self._backend.takes_devices
            if not is_for_backend:
                checks.check_devices(request)
            if (on_copies := self._on_copies(request)) is not None:
                request = on_copies.request
        if not request.name and not request.queue:
            request.queue = _NAMELESS[request.kind]
        try:
            with self._submitting:
                cached = self._request_cache.of(request, process_set, pending.is_in_flight)
                if request.outputs is not None and request.outputs is not request.tensors:
                    checks.check_outputs(request)
                handle = pending.begin(request, cached)
            if on_copies is not None:
                handle.copy_back = on_copies
            if is_for_backend:
                self._backend.submit(handle)
            else:
                self._devices.submit(handle, process_set)
        except BaseException as error:
            self.withdraw(request, error)
            raise
        return handle

    def withdraw(self, request: Request, error: BaseException) -> None:
        """Nobody will wait for what was to be submitted, or has been."""
        self._pending.withdraw(request, error, self._backend.look_after)

    def repeated(self, first: Handle[Any]) -> Repeated:
        """For operations like one that is done: of one tensor, in place, waited for at once."""
        return Repeated(first, self._pending, self._submitting, self._backend)

    def poll(self, handle: Handle[Any]) -> bool:
        """Returns whether the operation is done; never waits."""
        if not handle.is_done and not are_plain():
            with plain_modes():
                return self.poll(handle)
        if not handle.is_done:
            if self._staging.is_busy:
                self._staging.advance()
            self._backend.advance()
        return handle.is_done

    def wait(self, handle: Handle[T]) -> T:
        """The operation's result, or raises its error."""
        if not handle.is_done:
            if not are_plain():
                with plain_modes():
                    return self.wait(handle)
            if handle.route is None:
                self._backend.wait(handle)
            else:
                self._wait(handle)
        elif handle.copy_back is not None and not are_plain():
            with plain_modes():
                return handle.result()
        return handle.result()

    @in_plain_modes
    def wait_unless_wanted(self, handle: Handle[Any]) -> bool:
        """Waits like `wait`, but not for ever while other ranks wait for this one elsewhere: after
        a second of that it returns False, and the operation is still under way. For waits that
        could as well come later."""
        now = self._pending.clock.now
        wanted_since: float | None = None

        def gives_up() -> bool:
            nonlocal wanted_since
            if not self._backend.is_wanted() and not self._devices.is_wanted():
                wanted_since = None
                return False
            wanted_since = wanted_since or now()
            return now() - wanted_since >= _PATIENCE_SECONDS

        if not handle.is_done:
            self._wait(handle, gives_up)
        return handle.is_done

    @in_plain_modes
    def rest(self, seconds: float) -> None:
        """For who looks again and again: does nothing for so long, or until another rank has news.
        Raises why the session is over, if it is by then."""
        self._backend.rest(seconds)
        self.check()

    # ------------------------------------------------------------ memory

    @in_plain_modes
    def resident(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor that is reduced fastest, in place: it lives where the other ranks
        of this host can reach it. Views of it (the gradients in a bucket) are as good. It is an
        ordinary tensor otherwise, and its memory is free when nobody holds it any more."""
        self._pending.check()
        return self._backend.resident(shape, dtype)

    def is_resident(self, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor lives where `resident` makes them."""
        return self._backend.is_resident(tensor)

    @in_plain_modes
    def adopt(self, tensor: torch.Tensor) -> bool:
        """Moves the memory of a tensor that will be reduced again and again, all of its storage, to
        where `resident` makes tensors. Its content and all views of it stay as they are, but not
        its address, which nobody may have noted (as an array of numpy does). Returns False, having
        done nothing, where that is not possible: it is not all of its storage, or there are no
        other ranks on this host."""
        adopt = getattr(self._backend, "adopt", None)
        return adopt is not None and bool(adopt(tensor))

    # ------------------------------------------------------------ process sets

    def process_set(self, set_id: int) -> ProcessSet:
        """The set with that id; `ValueError` where there is none."""
        return self._sets[set_id]

    def process_sets(self) -> list[ProcessSet]:
        """All sets, the one of all ranks first."""
        return self._sets.all()

    @in_plain_modes
    def add_process_set(self, ranks: Iterable[int]) -> ProcessSet:
        """Makes a new set, on all ranks of the session: each must call this, with the same ranks,
        in the same order as other changes of sets. Returns when all have. Raises `ValueError` for
        impossible or existing ranks, `MismatchError` when the ranks differ."""
        with self._set_changes:
            chosen = self._sets.checked(ranks)
            number = next(self._added)
            name = f"process_set.add.{number}"
            self.wait(self.submit(Request(Kind.ADD_SET, name, ranks=chosen)))
            added = ProcessSet(number + 1, chosen)
            self._backend.open_set(added)
            self._sets.add(added)
            return added

    @in_plain_modes
    def remove_process_set(self, set_id: int) -> None:
        """Ends a set, on all ranks of the session, as `add_process_set` begins it."""
        with self._set_changes:
            removed = self._sets[set_id]
            if set_id == GLOBAL_SET:
                raise ValueError("the process set of all ranks cannot be removed")
            name = f"process_set.remove.{next(self._removed)}"
            self.wait(self.submit(Request(Kind.REMOVE_SET, name, root=set_id)))
            self._sets.remove(set_id)
            gone = CollectiveError(f"process set {set_id} was removed on {self._me}")
            for handle in self._pending.all():
                if handle.request.process_set == set_id:
                    self._pending.fail(handle, gone)
            self._devices.close_set(set_id)
            self._backend.close_set(removed)

    @in_plain_modes
    def join(self) -> int:
        """Tells that this rank is out of data; see `Operations.join`."""
        self._devices.before_join(self._sets[GLOBAL_SET])
        last = super().join()
        self._devices.after_join()
        return last

    @property
    def has_pairs(self) -> bool:
        """Whether `open_pair` can be used."""
        return self._backend.opens_sets_alone

    def message_group(self, timeout: timedelta) -> tuple[Any, GlooConnections]:
        """A process group of Gloo of all ranks, for messages between two of them where there are no
        pairs, and its connections; all ranks call it. `timeout`: for each message. Raises
        `CollectiveError`."""
        return cast("BetweenHosts", self._backend).message_group(timeout)

    @in_plain_modes
    def open_pair(self, peer: int) -> ProcessSet:
        """The set of this rank and another one, for what they send to each other. Each of the two
        opens it for itself, when it needs it, and waits for nobody."""
        set_id = pair_id(self.rank, peer)
        if self._sets.has(set_id):
            return self._sets[set_id]
        pair = ProcessSet(set_id, tuple(sorted((self.rank, peer))))
        with self._set_changes:
            if not self._sets.has(pair.id):
                self._backend.open_set(pair)
                self._sets.add(pair)
        return pair

    @in_plain_modes
    def wanted(self) -> list[tuple[str, tuple[int, ...]]]:
        """Returns what other ranks have submitted and this one has not: names or queues, and by
        whom they are."""
        return self._backend.wanted()

    # ------------------------------------------------------------ the end

    @in_plain_modes
    def shutdown(self) -> None:
        """Ends this rank's part; harmless when repeated. What is under way here fails, as does
        whatever other ranks still want from this one. Waits for nobody."""
        self._pending.break_off(CollectiveError(f"the session of {self._me} was shut down"))
        self._backend.close()
        self._devices.close()
        self._staging.close()

    # ------------------------------------------------------------ for operations on devices

    def tell_all(self, content: bytes, process_set: ProcessSet) -> Handle[torch.Tensor]:
        """Begins to tell the other ranks of a set where this one's tensors are."""
        told = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return self.allgather(told, name="where CUDA tensors are", process_set=process_set.id)

    def hear_all(self, handle: Handle[torch.Tensor]) -> list[bytes]:
        """Waits for what all have told."""
        whole = self.wait(handle).numpy().tobytes()
        ends = list(itertools.accumulate(handle.rows[0], initial=0))
        return [whole[begin:end] for begin, end in itertools.pairwise(ends)]

    # ------------------------------------------------------------ inside

    def _on_copies(self, request: Request) -> OperationOnCopies | None:
        """What a request comes to that may not be performed on its own tensors. Raises `ValueError`
        where its result cannot be written where it is wanted."""
        if request.kind not in _MAY_OVERLAP:
            if request.outputs:
                check_outputs(request.kind.value, request.outputs)
            return None
        if not must_be_copied(request, self._rank):
            return None
        checks.check_outputs(request)
        return OperationOnCopies(request, self._rank)

    @property
    def _me(self) -> str:
        return self._pending.names.one(self.rank)

    def _wait(self, handle: Handle[Any], gives_up: Callable[[], bool] | None = None) -> None:
        """Waits by whichever route the operation goes; another one may be found meanwhile."""
        has_given_up = False

        def asked() -> bool:
            nonlocal has_given_up
            has_given_up = gives_up is not None and gives_up()
            return has_given_up

        while not handle.is_done and not has_given_up:
            route = handle.route or self._backend
            route.wait(handle, gives_up and asked)
