"""Values as an agent packs them."""

from __future__ import annotations

import torch

from tests.unit.runtime.stage import Stage


def test_packed_values_can_be_unpacked() -> None:
    with Stage() as stage:
        value = stage.agent.values.unpack(stage.agent.values.pack({"t": torch.ones(2), "n": 1}))
        assert value["n"] == 1
        assert torch.equal(value["t"], torch.ones(2))
