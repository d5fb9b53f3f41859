"""Who the peers are, connecting to them once, and losing them once."""

from __future__ import annotations

import errno
import threading
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lockstitch.errors import (
    ConnectionLostError,
    NotInitializedError,
    PeerDiedError,
    PeerLeftError,
    RpcError,
    RpcTimeoutError,
)
from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.testing.clock import ManualClock
from lockstitch.wire.messages import Leave
from tests.unit.runtime.stage import Background, Stage, wait_until

if TYPE_CHECKING:
    from lockstitch.transport.base import Connection

PEER = WorkerId(1, 0)


def test_workers_are_found_by_name_rank_and_info() -> None:
    with Stage(peers=2) as stage:
        for key in ("peer2", 2, WorkerInfo("peer2", 2)):
            assert stage.agent.resolve(key) == WorkerInfo("peer2", 2)
        with pytest.raises(RpcError, match=r"could not find destination 'x': the workers are 'wor"):
            stage.agent.resolve("x")
        with pytest.raises(ValueError, match=r"named by str, int or WorkerInfo, not by 1\.5"):
            stage.agent.resolve(1.5)  # type: ignore[arg-type]
        assert stage.agent.info_of(PEER).name == "peer1"
        assert stage.agent.info_of(WorkerId(9, 1)).id == 9


def test_connection_is_made_on_first_use_and_once_for_many_threads() -> None:
    with Stage() as stage:
        assert len(stage.agent.peers.channels()) == 1  # the one to oneself
        start = threading.Barrier(6)

        def first_use() -> object:
            start.wait(10)
            return stage.agent.peers.channel(PEER)

        channels = {id(each.result()) for each in [Background(first_use) for _ in range(6)]}
        assert len(channels) == 1


@pytest.mark.parametrize("is_async", [True, False])
def test_a_call_ends_at_its_timeout_while_its_peer_is_being_connected_to(is_async: bool) -> None:
    clock = ManualClock()
    with Stage(clock=clock) as stage:
        connect, may_connect, times = stage.connect, threading.Event(), []

        def connect_late(peer: WorkerInfo, timeout_seconds: float) -> Connection:
            times.append(timeout_seconds)
            assert may_connect.wait(60)
            return connect(peer, timeout_seconds)

        stage.connect = connect_late  # type: ignore[method-assign]
        call = (
            (lambda: stage.call_async(timeout=5).wait())
            if is_async
            else partial(stage.call, timeout=5)
        )
        callers = [Background(call) for _ in range(3)]
        wait_until(lambda: times)
        clock.advance(5)
        for caller in callers:
            with pytest.raises(RpcTimeoutError, match="'peer1' has not taken up the connection"):
                caller.result()
        assert not stage.agent.peers.is_lost(PEER)
        assert len(times) == 1
        again = Background(lambda: stage.call("again", timeout=5))
        may_connect.set()
        stage.peer.reply(stage.peer.receive_call(), "fine")
        assert again.result() == "fine"
        assert len(times) == 1


def test_a_call_with_a_timeout_hears_why_its_peer_cannot_be_reached() -> None:
    with Stage() as stage:
        stage.peer.end()
        for _ in range(2):
            with pytest.raises(PeerDiedError, match="cannot be reached"):
                stage.call(timeout=5)


def test_unreachable_peer_is_lost() -> None:
    with Stage() as stage:
        lost: list[WorkerId] = []
        stage.agent.on_peer_lost(lambda worker, error: lost.append(worker))

        def connect(peer: WorkerInfo, timeout_seconds: float) -> None:
            raise TimeoutError("nobody there")

        stage.connect = connect  # type: ignore[assignment, method-assign]
        for _ in range(2):
            with pytest.raises(
                PeerDiedError, match=r"cannot be reached \(nobody there, on host beta\)"
            ):
                stage.agent.peers.channel(PEER)
        wait_until(lambda: lost == [PEER])
        assert stage.agent.peers.is_lost(PEER)


def test_peer_that_listens_no_more_may_have_ended_too_early() -> None:
    with Stage() as stage:

        def connect(peer: WorkerInfo, timeout_seconds: float) -> None:
            raise ConnectionError("cannot connect") from FileNotFoundError("no such file")

        stage.connect = connect  # type: ignore[assignment, method-assign]
        with pytest.raises(PeerDiedError, match="ended without waiting in shutdown"):
            stage.agent.peers.channel(PEER)


def test_caller_that_goes_away_is_lost() -> None:
    with Stage() as stage:
        caller = stage.caller()
        caller.close()
        wait_until(lambda: stage.agent.peers.is_lost(PEER))
        with pytest.raises(PeerDiedError):
            stage.call()


def test_caller_that_leaves_says_so() -> None:
    with Stage() as stage:
        stage.caller().send(Leave(PEER))
        wait_until(lambda: stage.agent.peers.is_lost(PEER))
        with pytest.raises(PeerDiedError, match="it has shut down"):
            stage.call()


def test_a_peer_that_leaves_says_so_where_it_answers_too() -> None:
    """Else it would be chance which of its two connections is seen to end first."""
    with Stage() as stage:
        future = stage.call_async()
        call = stage.peer.receive_call()
        waiter = Background(stage.call)
        stage.peer.receive_call()
        stage.peer.reply(call, "before")
        stage.peer.send(Leave(PEER))
        stage.peer.vanish()
        with pytest.raises(PeerDiedError, match="it has shut down"):
            waiter.result()
        assert future.wait() == "before"
        with pytest.raises(PeerDiedError, match="it has shut down"):
            stage.call()


def test_a_peer_that_leaves_is_heard_out_by_who_finds_its_connection_closed() -> None:
    with Stage() as stage:
        channel = stage.agent.peers.channel(PEER)
        channel.serve = lambda: None  # type: ignore[attr-defined]  # the pool comes too late
        stage.peer.send(Leave(PEER))
        stage.peer.vanish()
        with pytest.raises(PeerLeftError, match="it has shut down"):
            stage.call()


def test_second_connection_of_a_peer_takes_the_place_of_the_first() -> None:
    with Stage() as stage:
        first, second = stage.caller(), stage.caller()
        first.close()
        wait_until(lambda: len(stage.agent.peers._incoming) == 1)
        second.send(second.call("builtins:abs", -1))
        assert second.answer() == 1
        assert not stage.agent.peers.is_lost(PEER)


def test_closing_says_goodbye_to_those_we_called() -> None:
    with Stage(peers=2) as stage:
        stage.agent.peers.channel(PEER)
        stage.worker.close()
        assert stage.peer.receive() == Leave(WorkerId(0, 0))
        with pytest.raises((NotInitializedError, PeerDiedError), match="shut down"):
            stage.call(to=2)


def test_closing_says_goodbye_to_those_who_called_us() -> None:
    with Stage() as stage:
        caller = stage.caller()
        stage.worker.close()
        assert [caller.receive(), caller.receive()] == [Leave(WorkerId(0, 0)), None]


def test_a_name_that_is_almost_right_is_guessed_and_a_long_list_is_cut() -> None:
    with Stage(peers=20) as stage:
        with pytest.raises(RpcError, match=r"and 5 others; did you mean 'peer17' or ") as caught:
            stage.agent.resolve("per17")
        assert "'peer14'" in str(caught.value)
        assert "'peer18'" not in str(caught.value).partition(";")[0]
        with pytest.raises(RpcError) as caught:
            stage.agent.resolve("quite different")
        assert "did you mean" not in str(caught.value)


def test_a_name_that_differs_in_its_number_only_is_no_guess() -> None:
    with Stage(peers=2) as stage:
        with pytest.raises(RpcError, match="the workers are .*'peer1', 'peer2'$"):
            stage.agent.resolve("peer3")
        with pytest.raises(RpcError, match=r"did you mean 'peer2' or 'peer1'\?$"):
            stage.agent.resolve("perr")


def test_who_is_not_in_a_dynamic_group_may_still_come_and_how_to_wait_is_said() -> None:
    with Stage(peers=1) as stage:
        stage.is_fixed = False
        with pytest.raises(RpcError, match="could not find destination 'peer9'") as caught:
            stage.agent.resolve("peer9")
        text = str(caught.value)
        assert "dynamic, since init_rpc was given no world_size" in text
        assert text.endswith("The workers now are 'worker', 'peer1'")
        assert "rpc.wait_for_worker('peer9')" in text
        with pytest.raises(RpcError, match=r"could not find destination 9: .*_worker\(name\)"):
            stage.agent.resolve(9)


@pytest.mark.parametrize("timeout", [0, 5])
def test_that_a_peer_is_gone_is_said_once_without_what_was_tried(timeout: float) -> None:
    with Stage() as stage:
        stage.peer.end()
        with pytest.raises(PeerDiedError) as caught:
            stage.call(timeout=timeout)
        text = "".join(traceback.format_exception(caught.value))
        assert text.count("Traceback (most recent call last)") == 1


def test_what_keeps_us_from_connecting_says_nothing_of_the_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_arguments: object) -> None:
        try:
            raise OSError(errno.EMFILE, "Too many open files")
        except OSError as error:
            raise ConnectionError(f"cannot connect: {error}") from error

    with Stage() as stage:
        with monkeypatch.context() as patched:
            patched.setattr(stage, "connect", fail)
            with pytest.raises(ConnectionLostError, match="'peer1'.*Too many open files"):
                stage.call()
        assert not stage.agent.is_lost(PEER)
        future = stage.call_async("later")
        stage.peer.reply(stage.peer.receive_call(), "answered")
        assert future.wait() == "answered"


def test_a_first_connection_that_breaks_in_the_greeting_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Stage() as stage:
        connect, made = stage.connect, []

        def connect_and_break(*arguments: Any) -> Any:
            made.append(connect(*arguments))
            if len(made) == 1:
                made[0].close()
            return made[-1]

        monkeypatch.setattr(stage, "connect", connect_and_break)
        future = stage.call_async("hello")
        stage.peer.reply(stage.peer.receive_call(), "answered")
        assert future.wait() == "answered"
