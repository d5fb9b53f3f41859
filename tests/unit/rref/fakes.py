"""A worker whose agent only notes what it is asked to do: nothing is sent, no thread is started.

`Wire` joins several of them: what they send lies there until the test delivers it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.rref.service import ReferenceService
from lockstitch.runtime.agent import Agent
from lockstitch.runtime.packing import Values
from lockstitch.runtime.pending import Future
from lockstitch.testing.clock import ManualClock
from lockstitch.wire.encodings import PicklingRegistry, UnpickleSession
from lockstitch.wire.pickling import pack
from lockstitch.wire.unpickling import unpack

if TYPE_CHECKING:
    from lockstitch.wire.messages import Payload


class FakePeers:
    def __init__(self) -> None:
        self.lost: set[WorkerId] = set()

    def is_lost(self, worker: WorkerId) -> bool:
        return worker in self.lost


class FakeRunningRequests(set[Any]):
    begin = set.add
    end = set.discard


class FakeAgent:
    """The part of an `Agent` that references use."""

    def __init__(self, info: WorkerInfo, pickling: PicklingRegistry) -> None:
        self.info = info
        self.id = info.worker
        self.clock = ManualClock()
        self.peers = FakePeers()
        self.running_requests = FakeRunningRequests()
        self.sent: list[tuple[WorkerId, Any]] = []
        self.requests: list[tuple[WorkerId, Any, Future[Any]]] = []
        self.notes: list[str] = []
        self.later: list[Any] = []
        self.handlers: dict[type, Any] = {}
        self.servers: dict[type, Any] = {}
        self.failure: BaseException | None = None
        self._pickling = pickling
        self.values = Values(self, pickling)  # type: ignore[arg-type]
        self.outgoing = self

    # The real ones: they need no more than what is here.
    is_lost = Agent.is_lost

    @property
    def interceptor(self):
        return self.values.interceptor

    @interceptor.setter
    def interceptor(self, interceptor) -> None:
        self.values.interceptor = interceptor

    def handle(self, cls, handler) -> None:
        self.handlers[cls] = handler

    def serve(self, cls, server) -> None:
        self.servers[cls] = server

    def add_concern(self, workers) -> None:
        self.concern = workers

    def on_peer_lost(self, callback) -> None:
        self.lose = callback

    def remaining_seconds(self, most_seconds: float) -> float:
        return most_seconds

    def on_close(self, callback) -> None:
        self.close = callback

    def info_of(self, worker: WorkerId) -> WorkerInfo:
        return WorkerInfo(f"worker{worker.rank}", *worker)

    def spawn(self, task) -> None:
        task()

    def blocked(self):
        return contextlib.nullcontext()

    def call_later(self, seconds: float, task) -> None:
        self.later.append(task)

    def note(self, event: str, detail: str) -> None:
        self.notes.append(f"{event}: {detail}")

    def send(self, to: WorkerId, message) -> None:
        if self.failure is not None:
            raise self.failure
        self.sent.append((to, message))

    def call_async(self, to, function, args=(), kwargs=None, timeout=-1.0):
        return self._request(to, (function, pack((args, kwargs or {}), self._pickling, to)[0]))

    def call_into(self, completion, to, call, timeout, make) -> None:
        _function, args, kwargs = call
        body = pack((args, kwargs or {}), self._pickling, to)[0]
        message = make(len(self.requests), 0, None, None, None, body)

        def completed(future) -> None:
            try:
                completion.complete(future.value(), None)
            except Exception as error:  # noqa: BLE001 - what the test says has gone wrong
                completion.complete(None, error)

        torch._C.Future.add_done_callback(self._request(to, message), completed)

    def _request(self, to: WorkerId, message) -> Future[Any]:
        if self.failure is not None:
            raise self.failure
        future: Future[Any] = Future()
        self.requests.append((to, message, future))
        return future


class FakeWorker:
    """A `Worker` with references and nothing else."""

    def __init__(self, rank: int = 0) -> None:
        self.info = WorkerInfo(f"worker{rank}", rank)
        self.id = self.info.worker
        self.name = self.info.name
        self.clock = ManualClock()
        self.pickling = PicklingRegistry()
        self.agent = FakeAgent(self.info, self.pickling)
        self.references = ReferenceService(self)

    def send_value(self, value: object, to: FakeWorker) -> Payload:
        """A value on its way to another worker."""
        return pack(value, self.pickling, to.id)[0]

    def receive_value(self, payload: Payload, sender: FakeWorker) -> tuple[Any, list[Any]]:
        """The value, and what in it must be confirmed first."""
        session = UnpickleSession(sender.id)
        return unpack(payload, self.pickling, session), session.received


class FakeInvocation:
    """A request being served."""

    def __init__(self, agent: FakeAgent, caller: WorkerId, message: Any) -> None:
        self.agent = agent
        self.caller = caller
        self.message = message
        self.answers: list[Any] = []
        self.then: Any = None
        self.is_parked = False
        self.is_discarded = False

    def discard(self) -> None:
        self.is_discarded = True

    def run(self, then) -> None:
        self.then = then

    def park(self) -> None:
        self.is_parked = True

    def conclude(self, then, value: object, error: BaseException | None) -> None:
        then(value, error)
        self.agent.running_requests.end(self)

    def answer(self, value: object, error: BaseException | None) -> None:
        self.answers.append(value if error is None else error)

    def reply(self, value: object) -> None:
        self.answers.append(value)

    def fail(self, error: BaseException) -> None:
        self.answers.append(error)


class Wire:
    """Several workers, and the control messages between them."""

    def __init__(self, size: int = 3) -> None:
        self.workers = [FakeWorker(rank) for rank in range(size)]

    def __enter__(self) -> list[FakeWorker]:
        return self.workers

    def __exit__(self, *_exception: object) -> None:
        for worker in self.workers:
            worker.agent.close()

    def deliver(self) -> list[str]:
        """Delivers until nothing is under way; the names of the messages, in order."""
        names = []
        while True:
            sender = next((each for each in self.workers if each.agent.sent), None)
            if sender is None:
                return names
            to, message = sender.agent.sent.pop(0)
            names.append(type(message).__name__)
            self.workers[to.rank].agent.handlers[type(message)](sender.id, message)
