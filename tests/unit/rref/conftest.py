"""What several tests of references use."""

from __future__ import annotations

import pytest

from tests.unit.rref.fakes import FakeWorker


@pytest.fixture
def worker():
    worker = FakeWorker()
    yield worker
    worker.agent.close()
