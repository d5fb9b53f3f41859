"""Waiting ends with what is waited for, with the time, or when it is in vain."""

from __future__ import annotations

import pytest

from lockstitch.errors import RpcTimeoutError
from lockstitch.ids import WorkerInfo
from lockstitch.rpc.membership import Membership
from lockstitch.testing.cluster import LocalCluster


class Scripted(Membership):
    """Who is in, look by look."""

    is_static = False

    def __init__(self, worker, *looks: list[str]) -> None:
        super().__init__(worker)
        self._looks = list(looks)

    def present(self) -> list[WorkerInfo]:
        names = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        self._wake()  # something has changed, as it were
        return [WorkerInfo(name.rstrip("'"), 0, name.count("'")) for name in names]


@pytest.fixture
def worker():
    with LocalCluster(1) as cluster:
        yield cluster[0]


def test_waiting_ends_with_an_arrival(worker) -> None:
    assert Scripted(worker, ["a"], ["a"], ["a", "b"]).wait_for("b", 60).name == "b"


def test_waiting_for_another_life_passes_over_the_former(worker) -> None:
    former = WorkerInfo("a", 0, 0)
    found = Scripted(worker, ["a"], ["a"], [], ["a'"]).wait_for("a", 60, former)
    assert found.generation == 1


def test_waiting_in_vain_says_who_is_here(worker) -> None:
    with pytest.raises(RpcTimeoutError, match="'c' did not come within 0.01 s: .* sees a, b"):
        Scripted(worker, ["a", "b"]).wait_for("c", 0.01)
