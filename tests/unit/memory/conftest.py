"""What several tests of shared memory use: the fixtures of the transports that lend it."""

from __future__ import annotations

from tests.unit.transport.conftest import pair

__all__ = ["pair"]
