"""Ranks whose large tensors pass through rings in short chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstitch.collectives.shared_memory import performing
from tests.cluster.collectives.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_BYTES = 1 << 16
SIZES = [2, 3, 4]


@pytest.fixture(scope="module")
def short_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(performing, "chunk_bytes_for", lambda *_: CHUNK_BYTES)
        yield


@pytest.fixture(scope="module", params=SIZES)
def ranks(request: pytest.FixtureRequest, short_chunks: None) -> Iterator[Ranks]:
    with Ranks(request.param, "shared_memory") as running:
        yield running
