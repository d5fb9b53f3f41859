"""What the tests of contexts, passes and stitches begin with."""

from __future__ import annotations

import pytest

from tests.unit.autograd.post_office import PostOffice


@pytest.fixture
def office():
    with PostOffice(3) as opened:
        yield opened
