"""Two workers for the tests of this folder, and an open gate when they are over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstitch.testing.clock import ManualClock
from lockstitch.testing.cluster import LocalCluster
from tests.cluster.runtime.programs import Gate

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _gate() -> Iterator[None]:
    Gate.reset()
    yield
    Gate.opened.set()


@pytest.fixture
def cluster(_gate: None) -> Iterator[LocalCluster]:
    with LocalCluster(2) as running:
        yield running
        Gate.opened.set()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timed(clock: ManualClock, _gate: None) -> Iterator[LocalCluster]:
    """Two workers in the time of `clock`."""
    with LocalCluster(2, clock=clock) as running:
        yield running
        Gate.opened.set()
