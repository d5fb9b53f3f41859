"""Whether torch's store answers, and what is told while it does not."""

from __future__ import annotations

import errno
import socket
import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from torch.distributed import DistNetworkError, TCPStore

from lockstitch.rendezvous.reaching import Address, Problem, wait_for_store

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = "127.0.0.1"


@pytest.fixture(scope="module", autouse=True)
def _libuv_has_its_pipe() -> None:
    """It makes one at the first use of it in a process, and keeps it."""
    TCPStore(HERE, 0, is_master=True, use_libuv=True, wait_for_workers=False)


class Time:
    """A clock on which each wait takes a second."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def wait(self, _waiter: object, _timeout_seconds: float | None) -> bool:
        self.seconds += 1
        return False

    def wait_until(self, waiter: object, deadline: float | None) -> bool:
        raise AssertionError


@contextmanager
def listener(*, speaks: bytes | None = None) -> Iterator[Address]:
    """Something else; it says `speaks` to who comes, or nothing."""
    with socket.create_server((HERE, 0)) as server:

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.sendall(speaks or b"")
                while connection.recv(64):
                    pass

        answering = threading.Thread(target=answer)
        if speaks is not None:
            answering.start()
        yield Address(HERE, server.getsockname()[1])
        if speaks is not None:
            answering.join()


@pytest.mark.parametrize("use_libuv", [True, False])
def test_a_store_of_torchs_answers(use_libuv: bool) -> None:
    store = TCPStore(
        HERE, 0, None, True, timedelta(seconds=5), wait_for_workers=False, use_libuv=use_libuv
    )
    assert Address(HERE, store.port).problem() is None
    wait_for_store(Address(HERE, store.port), 1, 0.0)


def test_it_is_said_why_none_does() -> None:
    with socket.socket() as silent:
        silent.bind((HERE, 0))
        problem = Address(HERE, silent.getsockname()[1]).problem()
        assert problem == Problem("nobody listens there")
    assert "there is no host" in str(Address("no-such-host.invalid", 1).problem())
    with listener(speaks=b"HTTP/1.1 400\r\n\r\n") as other:
        assert "does not answer as a store" in str(other.problem())
    with listener() as mute:
        assert "does not answer as a store" in str(mute.problem())


def test_from_the_third_second_on_it_is_told_once_and_in_the_end_raised() -> None:
    told: list[tuple[float, str]] = []
    time = Time()
    with socket.socket() as silent:
        silent.bind((HERE, 0))
        address = Address(HERE, silent.getsockname()[1])
        with pytest.raises(DistNetworkError, match=f"{address} within 9 s: nobody listens there"):
            wait_for_store(
                address, 1, 9.0, clock=time, tell=lambda text: told.append((time.now(), text))
            )
    ((at, text),) = told
    assert at == 3
    assert text == (
        f"rank 1 waits for rank 0 to meet the others at {address}: nobody listens there. It gives "
        "up after 9 s"
    )


def test_where_no_network_leads_there_it_is_given_up_after_ten_seconds(monkeypatch) -> None:
    def unreachable(*_args: object) -> socket.socket:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    host, time, told = socket.gethostname(), Time(), list[str]()
    text = f"rank 1 did not meet the others .* within 10 s: Network is unreachable from host {host}"
    with pytest.raises(DistNetworkError, match=text):
        wait_for_store(Address("192.0.2.1", 1), 1, 60.0, clock=time, tell=told.append)
    assert time.now() == 10
    assert [each.endswith("gives up after 10 s") for each in told] == [True]


def test_a_host_that_is_another_one_is_known() -> None:
    assert Address(HERE, 1).why_not_here() == ""
    assert Address("localhost", 1).why_not_here() == ""
    assert "no address of this host" in Address("192.0.2.1", 1).why_not_here()
    assert "there is no host" in Address("no-such-host.invalid", 1).why_not_here()
