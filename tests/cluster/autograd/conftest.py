"""A cluster of three workers for the tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstitch.testing.cluster import LocalCluster
from tests.cluster.autograd.comparison import OWNED

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as running:
        yield running
    OWNED.clear()
