"""What the first worker does while messages are counted, and the count of it all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

import lockstitch.autograd as dist_autograd
from lockstitch import rpc

if TYPE_CHECKING:
    from lockstitch.testing import Traffic

WARM_UP_TIMES = 2
"""After which functions have numbers and all connections are there."""
_MAYBE_LATE = "ContextReleased"
"""Nobody waits for it: it may come when the next thing is counted."""


@dataclass(frozen=True)
class Counts:
    """Of a world of some size. A call and a backward pass are of the first worker and the last, the
    rest is of all together; a start is what the store is asked."""

    call_messages: int
    call_bytes: int
    backward_messages: int
    backward_bytes: int
    find_messages: int
    start_requests: int
    start_bytes: int
    shutdown_messages: int
    shutdown_bytes: int


def counted(sent: Traffic) -> tuple[int, int]:
    """Messages and bytes of what was done once."""
    in_time = sent.without(_MAYBE_LATE)
    return in_time.messages, in_time.bytes


def call(to: str) -> None:
    """A call with a tensor, which comes back changed."""
    rpc.rpc_sync(to, _double, args=(torch.ones(4),))


def run_backward(to: str) -> None:
    """A backward pass over this worker and that one, with the call before it and the end of the
    context."""
    leaf = torch.ones(4, requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(to, _double, args=(leaf,)).sum()
        dist_autograd.backward(context_id, [loss])


def find(names: list[str]) -> None:
    """Looks up each of them."""
    for name in names:
        assert rpc.get_worker_info(name).name == name


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2
