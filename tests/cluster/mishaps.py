"""What the workers of the property tests run, and the mishaps that they meet."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lockstitch.testing.faults import Faults
from lockstitch.wire.messages import (
    ChildAccept,
    ForkAccept,
    ForkRequest,
    ForksDeleted,
    ReleaseContext,
)

if TYPE_CHECKING:
    import torch

    from lockstitch import rpc

RAN: Counter[int] = Counter()
"""How often `count` has run, by its argument."""
RETRIED = (ForkRequest, ForkAccept, ChildAccept, ForksDeleted, ReleaseContext)
"""Messages that are sent again until they are answered."""


def count(number: int) -> int:
    RAN[number] += 1
    return number


def double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


def sum_of(reference: rpc.RRef[torch.Tensor]) -> float:
    return float(reference.to_here().sum())


def script(mishaps: list[tuple[str, type, int]]) -> Faults:
    """Each mishap is what happens, to which kind of message, and to which one of it; of `die`, who
    dies: worker `n % 3`, after `1 + n // 3` of them."""
    faults = Faults()
    for what, kind, nth in mishaps:
        if what == "drop":
            faults.drop(kind, nth=nth)
        elif what == "delay":
            faults.delay(kind, by=0.02, nth=nth)
        elif what == "reorder":
            faults.reorder(kind, nth=nth)
        elif what == "die":
            faults.kill(f"worker{nth % 3}", after=kind, nth=1 + nth // 3)
        else:
            assert what == "repeat"
            faults.repeat(kind, nth=nth, copies=2)
    return faults
