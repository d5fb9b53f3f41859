"""What one worker gets from others for a step of a pipeline, and who waits for it.

Values come from worker to worker, in any order, and before the worker has heard of the step
itself; each is for one *port*: a kind, a stage, a micro-batch. The worker's own thread takes and
reads them when its table says so. Small ones come as one-way messages, so a connection that breaks
ends the step, at both of its ends: who has done its part already tells the other, which may not
have heard of the step yet. A step that has failed anywhere fails here: whoever waits is told.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lockstitch.attach.values import OtherWait
from lockstitch.errors import ConnectionLostError, RpcError, copy_of
from lockstitch.ids import GlobalId, IdSource, WorkerId
from lockstitch.memory.waiting import DurationEstimate
from lockstitch.runtime.arrival import Arrival
from lockstitch.runtime.worker import current_worker
from lockstitch.trust.registry import needed
from lockstitch.wire.messages import HandOver

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lockstitch.errors import PeerDiedError
    from lockstitch.nn.pipelining.skips import Stash
    from lockstitch.runtime.worker import Worker
    from lockstitch.wire.messages import Payload

Port = tuple[str, int, int, int, int]
"""Which value it is: "F" an input or "B" gradients of outputs, with stage and micro-batch and two
zeros; "S" the gradient of a skip, with its number and the stage that it comes from."""

_REMEMBERED: Final = 1024
_TOLD: Final = 16
_SHORT_SECONDS: Final = 3e-3
_NEAR_SECONDS: Final = 4e-4
"""A worker that waits again after less than the former reads for itself (`runtime.arrival`), and
one that waits for less than the latter does not fall asleep at once."""


class StepEndedError(RpcError):
    """What is done here is for a step that has ended on another worker, which says why."""


class _Packed(NamedTuple):
    """A value as it came."""

    sender: WorkerId
    body: Payload


class Inbox:
    """What has come for one step. `participants` are the workers that take part in it, `stages` the
    worker of each stage, once that is known."""

    def __init__(self, worker: Worker, step: GlobalId) -> None:
        self._agent = worker.agent
        self._now = worker.clock.now
        self._values: dict[Port, Any] = {}
        self._lock = threading.Lock()
        self._arrival: Arrival | None = None
        self._between = DurationEstimate(10 * _SHORT_SECONDS)
        self._waits = DurationEstimate()
        self._since = 0.0
        self._failure: BaseException | None = None
        self.participants: frozenset[WorkerId] = frozenset([step.worker])
        self.stages: Sequence[WorkerId] = ()
        self.stashes: dict[int, Stash] = {}
        self._awaited: Port | None = None

    def put(self, port: Port, value: Any) -> None:
        """Brings a value."""
        with self._lock:
            self._values[port] = value
            arrival = self._arrival_at(port)
        if arrival is not None:
            self._agent.bring(arrival)

    def _arrival_at(self, port: Port | None) -> Arrival | None:
        """What the thread waits for that wants what has come there."""
        arrival = self._arrival if port == self._awaited else None
        if arrival is not None:
            self._arrival = None
        return arrival

    def take(self, port: Port) -> Any:
        """The value, waited for by one thread at a time; raises what the step has failed with."""
        value = self._taken(port)
        if isinstance(value, _Packed):
            return self._agent.values.unpack_from(value.body, None, value.sender)
        return value

    def _taken(self, port: Port) -> Any:
        with self._lock:
            if port in self._values and self._failure is None:
                return self._values.pop(port)
            begun = self._now()
            if self._since:
                self._between.note(begun - self._since)
            arrival = Arrival(
                may_keep=self._between.usual_seconds < _SHORT_SECONDS,
                is_near=self._waits.usual_seconds < _NEAR_SECONDS,
            )
            if self._failure is None:
                self._awaited, self._arrival = port, arrival
            else:
                arrival.finish()
        self._agent.wait_for(arrival)
        self._since = self._now()
        self._waits.note(self._since - begun)
        with self._lock:
            self._awaited = self._arrival = None
            if self._failure is not None:
                raise copy_of(self._failure)
            return self._values.pop(port)

    def wait(self) -> OtherWait | None:
        """What is waited for now, for who looks on."""
        port, stages = self._awaited, self.stages
        if port is None:
            return None
        kind, stage, micro_batch, _number, origin = port
        source = {"F": stage - 1, "B": stage + 1}.get(kind, origin)
        what = "the input" if kind == "F" else "gradients"
        ranks = (stages[source].rank,) if 0 <= source < len(stages) else ()
        return OtherWait(
            f"stage {stage} of a pipeline waits for {what} of micro-batch {micro_batch} from stage "
            f"{source}",
            ranks=ranks,
        )

    def check(self) -> None:
        """Raises what the step has failed with."""
        if self._failure is not None:
            raise copy_of(self._failure)

    def fail(self, error: BaseException) -> None:
        """Ends the step; the first error counts."""
        with self._lock:
            if self._failure is None:
                self._failure = error
            self._values.clear()
            arrival = self._arrival_at(self._awaited)
        if arrival is not None:
            self._agent.bring(arrival)


class Inboxes:
    """The inboxes of one worker, from the first value to the end of the step."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._inboxes: dict[GlobalId, Inbox] = {}
        self._closed: OrderedDict[GlobalId, frozenset[WorkerId]] = OrderedDict()
        """The steps that are over here, and the workers of their stages."""
        self._lock = threading.Lock()
        self.next_step = IdSource(worker.id)
        worker.agent.handle(HandOver, self._on_hand_over)
        worker.agent.on_peer_lost(self._on_peer_lost)
        worker.agent.on_connection_lost(self._on_connection_lost)
        worker.agent.add_concern(self._involved)
        worker.agent.on_close(self._on_close)

    def __repr__(self) -> str:
        return f"<Inboxes of {self._worker.name!r} · {len(self._inboxes)} steps under way>"

    def __len__(self) -> int:
        return len(self._inboxes)

    @classmethod
    def of(cls, worker: Worker) -> Inboxes:
        """Those of this worker."""
        try:
            return worker.service(cls)
        except LookupError:  # `obtain` makes one in any case, which would listen
            return worker.obtain(cls, lambda: cls(worker))

    def open(self, step: GlobalId) -> Inbox | None:
        """The inbox of a step, made on first contact; None where the step is over."""
        with self._lock:
            if step in self._closed:
                return None
            inbox = self._inboxes.get(step)
            if inbox is None:
                inbox = self._inboxes[step] = Inbox(self._worker, step)
        if self._worker.agent.peers.is_lost(step.worker):
            self._drop([step])
        return inbox

    def close(self, step: GlobalId, why: str = "the step is over") -> None:
        """Ends a step: what comes for it later is thrown away."""
        with self._lock:
            inbox = self._inboxes.pop(step, None)
            self._closed[step] = frozenset() if inbox is None else frozenset(inbox.stages)
            while len(self._closed) > _REMEMBERED:
                self._closed.popitem(last=False)
        if inbox is not None:
            inbox.fail(StepEndedError(f"a step of a pipeline has ended: {why}"))

    def _drop(self, steps: Iterable[GlobalId]) -> None:
        for step in steps:
            self.close(step, f"the worker that began the step, {step.worker}, is gone")

    def _on_hand_over(self, sender: WorkerId, message: HandOver) -> None:
        inbox = self.open(message.step)
        if inbox is not None:
            place = message.stage, message.micro_batch, message.number, message.origin
            inbox.put((message.port, *place), _Packed(sender, message.body))

    def waits(self) -> list[OtherWait]:
        """What the steps under way wait for here; see `runtime.reports`."""
        waits = [inbox.wait() for inbox in self._all().values()]
        return [each for each in waits if each is not None]

    def _all(self) -> dict[GlobalId, Inbox]:
        with self._lock:
            return dict(self._inboxes)

    def _involved(self) -> set[WorkerId]:
        return set().union(*(inbox.participants for inbox in self._all().values()))

    def _fail_steps(self, peer: WorkerId, error: Exception) -> None:
        for inbox in self._all().values():
            if peer in inbox.participants:
                inbox.fail(error)

    def _on_connection_lost(self, peer: WorkerId, error: ConnectionLostError) -> None:
        self._fail_steps(peer, error)
        with self._lock:
            steps = [step for step, workers in self._closed.items() if peer in workers]
            # Those that are just coming to their end here may not have noticed.
            steps += [step for step, inbox in self._inboxes.items() if peer in inbox.stages]
        if steps:  # what was sent last may not have arrived, and the peer may still wait for it
            args = steps[-_TOLD:], self._worker.name, error.cause
            with contextlib.suppress(RpcError, ConnectionError):
                self._worker.agent.outgoing.call_async(peer, fail_steps, args, timeout=0)

    def _on_peer_lost(self, peer: WorkerId, error: PeerDiedError) -> None:
        self._fail_steps(peer, error)
        self._drop(step for step in self._all() if step.worker == peer)

    def _on_close(self) -> None:
        for step in self._all():
            self.close(step, f"worker {self._worker.name!r} has shut down")


@needed
def fail_steps(steps: list[GlobalId], worker: str, cause: str) -> None:
    """A connection with `worker` has broken, over which it may have sent the last of these steps,
    of which this worker has a stage, too: those that are not over here fail."""
    inboxes = Inboxes.of(current_worker())
    for step in steps:
        inbox = inboxes.open(step)
        if inbox is not None:
            inbox.fail(ConnectionLostError(worker, cause))
