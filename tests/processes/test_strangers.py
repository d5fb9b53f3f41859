"""Strangers with real sockets: on the same host, on the way between two workers, and in another
network namespace. None of them joins, calls or reads, and the workers go on."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.link.greetings import Hello, encode
from lockstitch.runtime.agent import AgentOptions
from lockstitch.runtime.worker import Worker
from lockstitch.testing.time_limits import ActiveTimeLimit
from lockstitch.transport.tcp import TcpTransport
from lockstitch.trust import Secret
from lockstitch.wire.encoding import encode as encode_frame
from lockstitch.wire.encodings import MARSHAL
from lockstitch.wire.messages import Call, Payload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lockstitch.transport.base import Connection

SECRET = Secret(bytes(range(32)))
INFOS = [WorkerInfo("one", 0), WorkerInfo("two", 1)]
PATIENCE_SECONDS = 60.0

ran: list[str] = []


def note(word: str) -> str:
    ran.append(word)
    return word


class Pair:
    """Two workers in this process, over TCP; as the directory of each."""

    is_fixed = True

    def __init__(self, host: str = "127.0.0.1") -> None:
        ran.clear()
        self.transport = TcpTransport(host)
        self.addresses: dict[int, str] = {}
        self.workers = []
        for info in INFOS:
            worker = Worker(info, self, self.transport, options=AgentOptions(secret=SECRET))
            listener = self.transport.listen()
            self.addresses[info.id] = listener.address
            worker.agent.accept_at(listener)
            worker.start()
            self.workers.append(worker)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_exception: object) -> None:
        for worker in self.workers:
            worker.close()

    def call(self, word: str, seconds: float = PATIENCE_SECONDS) -> Any:
        return self.workers[0].agent.outgoing.call(INFOS[1].worker, note, (word,), None, seconds)

    @property
    def place(self) -> tuple[str, int]:
        host, _, port = self.addresses[1].removeprefix("tcp:").rpartition(":")
        return host, int(port)

    def strangers(self) -> dict[str, int]:
        return dict(self.workers[1].agent.statistics().strangers)

    def wait_for_strangers(self, count: int) -> None:
        pause, time_limit = threading.Event(), ActiveTimeLimit(PATIENCE_SECONDS)
        while sum(self.strangers().values()) < count:
            assert not time_limit.is_over(), self.strangers()
            pause.wait(0.005)

    # the directory:

    def find(self, key: str | int | WorkerId) -> WorkerInfo | None:
        return next((each for each in INFOS if key in (each.name, each.id, each.worker)), None)

    def members(self) -> Sequence[WorkerInfo]:
        return INFOS

    def connect(self, peer: WorkerInfo, timeout_seconds: float) -> Connection:
        return self.transport.connect(self.addresses[peer.id], timeout_seconds)

    def elsewhere(self, _worker: WorkerId) -> str:
        return ""


def forged_call() -> bytes:
    body = Payload(MARSHAL, b"\xa9\x01\xda\x06forged", ())
    return encode_frame(Call(1, -1, f"{__name__}:note".encode(), None, None, body))[0]


def hello(*, proves: bool) -> bytes:
    return encode(Hello(proves, bytes(32), WorkerId(1, 0), "one", WorkerId(0, 0), "3.11", "2.13"))


def test_storms_on_the_same_host_are_survived() -> None:
    with Pair() as pair:
        for _ in range(150):
            socket.create_connection(pair.place, PATIENCE_SECONDS).close()
        silent = [socket.create_connection(pair.place, PATIENCE_SECONDS) for _ in range(20)]
        for words in (b"\xff" * 8, forged_call(), hello(proves=False) + forged_call(), bytes(600)):
            with socket.create_connection(pair.place, PATIENCE_SECONDS) as stranger:
                stranger.sendall(words)
                with contextlib.suppress(ConnectionError):
                    while stranger.recv(1 << 16):
                        pass
        pair.wait_for_strangers(154)
        assert pair.call("true") == "true"
        for each in silent:
            each.close()
    assert ran == ["true"]


class Middle:
    """Somebody through whom the first worker's calls to the second one go."""

    def __init__(self, pair: Pair, alter: Any) -> None:
        self.said: list[bytes] = []
        self._alter = alter
        self._target = pair.place
        self._listener = socket.create_server(("127.0.0.1", 0))
        pair.addresses[1] = f"tcp:127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    def _carry(self) -> None:
        near, _ = self._listener.accept()
        self._listener.close()  # it carries one connection
        with near, socket.create_connection(self._target) as far:
            back = threading.Thread(target=self._pass_on, args=(far, near, lambda data: data))
            back.start()
            self._pass_on(near, far, self._alter)
            back.join()

    def _pass_on(self, source: socket.socket, target: socket.socket, alter: Any) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if source is not target and alter is self._alter:
                    self.said.append(data)
                target.sendall(alter(data))
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._thread.join(PATIENCE_SECONDS)


@pytest.mark.parametrize("how", ["flipped", "repeated", "left out"])
def test_what_is_altered_on_the_way_is_not_run(how: str) -> None:
    calls = []

    def alter(data: bytes) -> bytes:
        if b"second" not in data:
            return data
        calls.append(data)
        if how == "flipped":
            return data.replace(b"second", b"forged")
        return data + data if how == "repeated" else b""

    with Pair() as pair:
        middle = Middle(pair, alter)
        assert pair.call("first") == "first"
        with contextlib.suppress(ConnectionError, TimeoutError):
            pair.call("second", 1.0 if how == "left out" else PATIENCE_SECONDS)
        with pytest.raises(ConnectionError):
            pair.call("third")
        middle.close()
        assert ran.count("second") <= (how == "repeated")
        assert "forged" not in ran
        assert calls


def test_a_whole_conversation_said_again_is_worth_nothing() -> None:
    with Pair() as pair:
        place = pair.place
        middle = Middle(pair, lambda data: data)
        assert pair.call("once") == "once"
        with socket.create_connection(place, PATIENCE_SECONDS) as stranger:
            for piece in middle.said:
                with contextlib.suppress(ConnectionError):
                    stranger.sendall(piece)
            with contextlib.suppress(ConnectionError):
                while stranger.recv(1 << 16):
                    pass
        pair.wait_for_strangers(1)
        assert pair.strangers() == {"wrong proof": 1}
        assert pair.call("again") == "again"
        pair.workers[0].close()
        middle.close()
    assert ran == ["once", "again"]


# ---------------------------------------------------------------- another network namespace

STRANGER = """
import socket, sys
host, port, words = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3])
with socket.create_connection((host, port), 60) as stranger:
    stranger.sendall(words)
    heard = b""
    try:
        while data := stranger.recv(65536):
            heard += data
    except ConnectionError:
        pass
print(heard.hex())
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=PATIENCE_SECONDS)


@pytest.fixture
def namespace() -> Iterator[tuple[str, str]]:
    """A network namespace with a line to this one, and the address of this end."""
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` to make a network namespace with")
    name, number = f"ls{os.getpid()}", os.getpid() % 250 + 1
    here, there = f"198.18.{number}.1", f"198.18.{number}.2"
    try:
        ip("netns", "add", name)
        ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        ip("addr", "add", f"{here}/30", "dev", f"{name}a")
        ip("link", "set", f"{name}a", "up")
        ip("netns", "exec", name, "ip", "addr", "add", f"{there}/30", "dev", f"{name}b")
        ip("netns", "exec", name, "ip", "link", "set", f"{name}b", "up")
    except (subprocess.CalledProcessError, OSError) as error:
        with contextlib.suppress(subprocess.CalledProcessError, OSError):
            ip("netns", "del", name)
        pytest.skip(f"this user may not make a network namespace: {error}")
    yield name, here
    ip("netns", "del", name)


def test_stranger_in_another_network_namespace_gets_nowhere(namespace: tuple[str, str]) -> None:
    name, here = namespace
    with Pair(here) as pair:
        for words in (forged_call(), hello(proves=False) + forged_call(), hello(proves=True)):
            host, port = pair.place
            inside, said = ("ip", "netns", "exec", name), (words + bytes(600)).hex()
            heard = subprocess.run(
                [*inside, sys.executable, "-I", "-S", "-c", STRANGER, host, str(port), said],
                check=True,
                capture_output=True,
                timeout=PATIENCE_SECONDS,
            ).stdout
            assert b"two" not in bytes.fromhex(heard.decode())
        pair.wait_for_strangers(3)
        assert pair.call("true") == "true"
    assert ran == ["true"]
