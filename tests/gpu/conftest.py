"""What holds for every test on an accelerator: CUDA is there before anything is counted."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _cuda_is_initialised() -> None:
    """CUDA opens descriptors and starts threads of its own when it is first used, and keeps them as
    long as the process lives: no test leaves those behind. A session's fixtures come before those
    of a test, hence before the inventory of what is there."""
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            torch.ones(1, device=f"cuda:{index}").add_(1).cpu()
            torch.cuda.synchronize(index)
