"""torch.distributed.monitored_barrier asks groups of ours, and torch for all others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from torch import distributed
from torch.distributed import distributed_c10d

from lockstitch.c10d import monitored_barrier


class Group:
    def __init__(self) -> None:
        self.asked: list[tuple[timedelta, bool]] = []

    def monitored_barrier(self, timeout: timedelta, *, wait_all_ranks: bool) -> None:
        self.asked.append((timeout, wait_all_ranks))


@pytest.fixture
def of_torch(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Torch's own, in whose place ours stands then."""
    asked: list[Any] = []
    for module in (distributed, distributed_c10d):
        monkeypatch.setattr(module, "monitored_barrier", lambda *given: asked.append(given))
    monitored_barrier.install(Group)
    monitored_barrier.install(Group)
    return asked


def test_groups_of_ours_are_asked_themselves(of_torch: list[Any]) -> None:
    group: Any = Group()
    distributed.monitored_barrier(group, timedelta(seconds=3), wait_all_ranks=True)
    distributed.monitored_barrier(group)
    with pytest.warns(UserWarning, match="timedelta"):
        distributed_c10d.monitored_barrier(group, 0.5)
    seconds = [each.total_seconds() for each, _ in group.asked]
    assert seconds == [3.0, -0.001, 0.5]
    assert [wait_all for _, wait_all in group.asked] == [True, False, False]
    assert of_torch == []
    with pytest.raises(TypeError, match="must be a timedelta"):
        distributed.monitored_barrier(group, "soon")  # type: ignore[arg-type]


def test_others_are_handed_on_once(of_torch: list[Any]) -> None:
    other: Any = object()
    distributed.monitored_barrier(other, None, True)
    assert of_torch == [(other, None, True)]
