"""One real worker, and peers that do only what the test says: they answer when it wants, in the
order it wants, or never. Nothing here sleeps."""

from __future__ import annotations

import itertools
import pickle
import platform
import threading
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.clock import SYSTEM_CLOCK, Clock
from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.link import greetings
from lockstitch.link.greetings import GreetingReader, Hello, Welcome
from lockstitch.runtime import remote_errors
from lockstitch.runtime.worker import Worker
from lockstitch.testing.time_limits import ActiveTimeLimit
from lockstitch.transport.memory import MemoryNetwork
from lockstitch.wire.decoding import FrameDecoder
from lockstitch.wire.encoding import encode
from lockstitch.wire.encodings import PICKLE, PicklingRegistry
from lockstitch.wire.messages import Call, Cancel, Failure, Message, Payload, Reply
from lockstitch.wire.pickling import pack, pack_flat
from lockstitch.wire.unpickling import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.runtime.agent import AgentOptions
    from lockstitch.transport.base import Connection
    from lockstitch.transport.memory import MemoryTransport

PATIENCE_SECONDS = 60.0


class Background:
    """A function running on a thread of its own."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(function, args), name=f"background-{function}", daemon=True
        )
        self._thread.start()

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            self._result = function(*args)
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
            self._error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def result(self, hint: str = "") -> Any:
        time_limit = ActiveTimeLimit(PATIENCE_SECONDS)
        while self._thread.is_alive():
            if time_limit.is_over():
                raise AssertionError(f"{self._thread.name} hangs {hint}")
            self._thread.join(0.5)
        if self._error is not None:
            raise self._error
        return self._result


def wait_until(condition: Callable[[], object], what: str = "") -> None:
    """Looks again and again; only for what offers nothing to wait on."""
    pause, turns = threading.Event(), int(PATIENCE_SECONDS / 0.001)
    for _ in range(turns):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError(f"never came true: {what or condition}")


class Peer:
    """The far ends of what the worker connects to."""

    def __init__(self, network: MemoryNetwork, info: WorkerInfo) -> None:
        self.info = info
        self._listener = network.transport(info.name).listen()
        self._connection: Connection | None = None
        self._is_connected = threading.Event()
        self._is_greeted = False
        self._decoder = FrameDecoder()

    def connect(self, transport: MemoryTransport) -> Connection:
        near = transport.connect(self._listener.address, 0)
        self._connection = self._listener.accept()
        self._is_connected.set()
        welcome = Welcome("", self.info.name, self.info.worker)
        self._connection.send([greetings.encode(welcome)])
        return near

    @property
    def _far(self) -> Connection:
        assert self._is_connected.wait(PATIENCE_SECONDS), "nobody connects"
        assert self._connection is not None
        return self._connection

    def send(self, message: Message) -> None:
        self._far.send(encode(message))

    def receive(self) -> Message:
        """The next message that the worker sent, its greeting aside."""
        decoder = self._decoder
        if not self._is_greeted:
            self._is_greeted = True
            assert receive_greeting(self._far) is not None
        while not decoder.messages:
            self._far.receive_into(decoder.space(), decoder.counts, PATIENCE_SECONDS)
            assert 0 not in decoder.counts, "the worker closed the connection"
            decoder.absorb()
        return decoder.messages.popleft()

    def receive_call(self) -> Call:
        """The next call; that nobody waits for an earlier one any more is passed over."""
        message = self.receive()
        while isinstance(message, Cancel):
            message = self.receive()
        assert isinstance(message, Call)
        return message

    def reply(self, call: Call, value: object) -> None:
        self.send(Reply(call.request, None, pack(value, PicklingRegistry())[0]))

    def fail(self, call: Call, error: BaseException) -> None:
        described = remote_errors.describe(error, self.info.name)
        self.send(Failure(call.request, Payload(PICKLE, pickle.dumps(described, 5), ())))

    def reply_until_stopped(self, value: object) -> None:
        """Answers every call with `value`, that with the argument "stop" last."""
        while True:
            call = self.receive_call()
            self.reply(call, value)
            if "stop" in (unpack(call.body, PicklingRegistry()) or ()):
                return

    def vanish(self) -> None:
        """Its process ends."""
        self.end()
        self._far.close()

    def end(self) -> None:
        """Nobody can connect any more."""
        self._listener.close()


class Stage:
    """A context manager: `worker` is real, `peers` are played by the test."""

    is_fixed = True

    def __init__(
        self,
        peers: int = 1,
        *,
        clock: Clock = SYSTEM_CLOCK,
        options: AgentOptions | None = None,
    ) -> None:
        # The network keeps real time, so that a peer may wait for what the worker sends.
        self.network = MemoryNetwork()
        self.transport = self.network.transport("worker")
        self.peers = [
            Peer(self.network, WorkerInfo(f"peer{rank}", rank)) for rank in range(1, peers + 1)
        ]
        info = WorkerInfo("worker", 0)
        self.worker = Worker(info, self, self.transport, clock=clock, options=options)
        self.agent = self.worker.agent
        listener = self.transport.listen()
        self.address = listener.address
        self.agent.accept_at(listener)

    def __enter__(self) -> Stage:
        self.worker.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        remaining = self.worker.close()
        assert remaining == [], "threads that still run"

    @staticmethod
    def versions() -> tuple[str, str]:
        return platform.python_version(), str(torch.__version__)

    @property
    def peer(self) -> Peer:
        return self.peers[0]

    def caller(self, rank: int = 1) -> Caller:
        """Somebody who has connected, and was welcomed."""
        caller = Caller(self, WorkerInfo(f"peer{rank}", rank))
        welcome = caller.receive_welcome()
        assert welcome is not None
        assert not welcome.refusal
        return caller

    def call(self, *args: Any, to: int = 1, timeout: float = 0) -> Any:
        return self.agent.outgoing.call(WorkerId(to, 0), echo, args, None, timeout)

    def call_async(self, *args: Any, to: int = 1, timeout: float = 0) -> Any:
        return self.agent.outgoing.call_async(WorkerId(to, 0), echo, args, None, timeout)

    # As the worker's directory:

    def find(self, key: str | int | WorkerId) -> WorkerInfo | None:
        for info in self.members():
            if key in (info.name, info.id) or key == info.worker:
                return info
        return None

    def members(self) -> Sequence[WorkerInfo]:
        return [WorkerInfo("worker", 0), *(peer.info for peer in self.peers)]

    def connect(self, peer: WorkerInfo, timeout_seconds: float) -> Connection:
        return self.peers[peer.id - 1].connect(self.transport)

    def elsewhere(self, _worker: WorkerId) -> str:
        return ", on host beta"


def echo(*args: Any) -> Any:
    return args


def receive_greeting(connection: Connection) -> bytes | None:
    """What the worker says first; None when it has closed the connection."""
    reader, greeting = GreetingReader(), None
    while greeting is None:
        counts: list[int] = []
        connection.receive_into(reader.space(), counts, PATIENCE_SECONDS)
        if not counts[0]:
            return None
        greeting = reader.absorb(counts[0])
    return greeting


class Caller:
    """A peer that calls the worker, message by message."""

    def __init__(self, stage: Stage, info: WorkerInfo, hello: bytes | None = None) -> None:
        self.connection = stage.network.transport(info.name).connect(stage.address, 0)
        self._stage, self._info = stage, info
        self._decoder = FrameDecoder()
        self._numbers = itertools.count(1)
        self._pickling = stage.worker.pickling
        said = Hello(False, bytes(32), WorkerId(0, 0), info.name, info.worker, *Stage.versions())
        self.send_bytes(greetings.encode(said) if hello is None else hello)

    def send(self, *messages: Message) -> None:
        """All in one piece."""
        self.send_bytes(b"".join(b"".join(encode(message)) for message in messages))

    def send_bytes(self, data: bytes) -> None:
        self.connection.send([data])

    def call(
        self, qualified: str, *args: Any, function: int = -1, timeout: float | None = None
    ) -> Call:
        """A call that spells its function out, unless `qualified` is empty."""
        body = pack_flat(args) or pack((args, {}), self._pickling)[0]
        definition = qualified.encode() or None
        return Call(next(self._numbers), function, definition, timeout, None, body)

    def receive_welcome(self) -> Welcome | None:
        """The worker's answer to the greeting; None when it has closed the connection."""
        greeting = receive_greeting(self.connection)
        if greeting is None:
            return None
        welcome = greetings.decode(greeting)
        assert isinstance(welcome, Welcome)
        return welcome

    def receive(self) -> Message | None:
        """The next message of the worker; None when it has closed the connection."""
        decoder = self._decoder
        while not decoder.messages:
            self.connection.receive_into(decoder.space(), decoder.counts, PATIENCE_SECONDS)
            if 0 in decoder.counts:
                return None
            decoder.absorb()
        return decoder.messages.popleft()

    def answer(self) -> Any:
        """The value of the next reply, or the exception of the next failure."""
        message = self.receive()
        if isinstance(message, Failure):
            return remote_errors.from_payload(message.body)
        assert isinstance(message, Reply), message
        return unpack(message.body, PicklingRegistry())

    def close(self) -> None:
        """Its process ends."""
        for peer in self._stage.peers:
            if peer.info == self._info:
                peer.end()
        self.connection.close()
