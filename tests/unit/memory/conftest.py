"""What several tests of transports use."""

from __future__ import annotations

import pytest

from tests.unit.transport.pairs import Pair


@pytest.fixture
def pair():
    pair = Pair()
    yield pair
    pair.close()
