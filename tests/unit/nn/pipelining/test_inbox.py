"""What a worker waits for in a step of a pipeline."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from lockstitch.attach.values import OtherWait
from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.ids import GlobalId, WorkerId
from lockstitch.nn.pipelining.inbox import Inbox, Port

if TYPE_CHECKING:
    from lockstitch.runtime.arrival import Arrival


class _Agent:
    def wait_for(self, arrival: Arrival) -> None:
        arrival.sleep()

    def bring(self, arrival: Arrival) -> None:
        arrival.finish()


class _Worker:
    agent = _Agent()
    clock = SYSTEM_CLOCK


@pytest.mark.parametrize(
    ("port", "what", "ranks"),
    [
        (("F", 1, 3, 0, 0), "the input of micro-batch 3 from stage 0", (4,)),
        (("B", 0, 3, 0, 0), "gradients of micro-batch 3 from stage 1", (5,)),
        (("S", 0, 3, 7, 1), "gradients of micro-batch 3 from stage 1", (5,)),
    ],
)
def test_it_is_told_from_which_worker_what_is_waited_for_comes(
    port: Port, what: str, ranks: tuple[int, ...]
) -> None:
    inbox = Inbox(cast("Any", _Worker()), GlobalId(0, 0, 1))
    inbox.stages = [WorkerId(4, 0), WorkerId(5, 0)]
    assert inbox.wait() is None
    taking = threading.Thread(target=inbox.take, args=(port,))
    taking.start()
    while (told := inbox.wait()) is None:
        pass
    assert told == OtherWait(f"stage {port[1]} of a pipeline waits for {what}", ranks=ranks)
    inbox.put(port, None)
    taking.join()
    assert inbox.wait() is None
