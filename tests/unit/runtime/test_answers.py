"""Answers, and who reads them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

from lockstitch.ids import GlobalId, WorkerId
from lockstitch.wire.messages import Reply, Stitch
from tests.unit.runtime.stage import Background, Stage, wait_until

if TYPE_CHECKING:
    from lockstitch.runtime.stream_channel import StreamChannel

PEER = WorkerId(1, 0)


class Readers:
    """An interceptor that notes which thread opened an answer, and whether it was to record it."""

    def __init__(self) -> None:
        self.seen: list[tuple[threading.Thread, bool]] = []

    def is_active(self) -> bool:
        return False

    def incoming(
        self, _sender: WorkerId, _stitch: Stitch, _items: list[Any], *, records: bool = True
    ) -> None:
        self.seen.append((threading.current_thread(), records))


@pytest.mark.parametrize("message", [None, GlobalId(1, 0, 5)], ids=["context alone", "tensors"])
@pytest.mark.parametrize("calls_with", [True, False])
@pytest.mark.parametrize("reads_with", [True, False])
def test_who_reads_the_answer_of_another_opens_it_as_if_it_had_made_the_call(
    message: GlobalId | None, calls_with: bool, reads_with: bool
) -> None:
    def wait_for_the_second() -> threading.Thread:
        with torch.set_grad_enabled(reads_with):
            second.wait()
        return threading.current_thread()

    with Stage() as stage:
        stage.agent.interceptor = readers = cast("Any", Readers())
        with torch.set_grad_enabled(calls_with):
            first = stage.call_async()
        second = stage.call_async()
        calls = [stage.peer.receive_call(), stage.peer.receive_call()]
        waiter = Background(wait_for_the_second)
        channel = cast("StreamChannel", stage.agent.peers.channel(PEER))
        wait_until(channel._right.lock.locked)
        stitch = Stitch(7, message, (0,) if message else (), ())
        stage.peer.send(Reply(calls[0].request, stitch, stage.agent.values.pack(torch.ones(2))))
        stage.peer.reply(calls[1], None)
        reader = waiter.result()
        first.wait()
        assert readers.seen == [(reader, calls_with)]


class EndsWhoReadsIt:
    """A value that raises what is no `Exception`."""

    def __setstate__(self, state: object) -> None:
        raise SystemExit("read")


def test_whatever_a_value_raises_in_the_thread_pool_is_raised_where_it_is_waited_for() -> None:
    with Stage() as stage:
        following = stage.call_async().then(lambda done: done.wait())
        value = EndsWhoReadsIt()
        value.state = 1  # type: ignore[attr-defined]
        stage.peer.reply(stage.peer.receive_call(), value)
        with pytest.raises(SystemExit, match="read"):
            Background(following.wait).result()
