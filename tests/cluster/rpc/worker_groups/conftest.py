"""Four workers in this process; the tests are code of the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstitch.testing.cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(4) as cluster, cluster[0].active():
        yield cluster
