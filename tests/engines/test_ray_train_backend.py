"""Ray Train over the backend of torch.distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engines.programs import run

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("ray", reason="needs the extra engines")
pytestmark = pytest.mark.slow

PROGRAM = """
import ray, torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

def make_backend_known():
    import lockstitch.c10d

def train():
    from ray.train.torch import prepare_model
    from torch import distributed

    assert distributed.get_backend() == "lockstitch"
    model = prepare_model(torch.nn.Linear(4, 1))
    model(torch.ones(3, 4) * (distributed.get_rank() + 1)).sum().backward()
    assert model.module.weight.grad[0, 0].item() == 4.5  # the mean of 3 and 6

ray.init(
    num_cpus=2,
    include_dashboard=False,
    runtime_env={"worker_process_setup_hook": make_backend_known},
)
trainer = TorchTrainer(
    train,
    torch_config=TorchConfig(backend="lockstitch"),
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=STORAGE),
)
assert trainer.fit().error is None
print("trained")
"""


def test_torch_trainer_of_ray_takes_the_backend_by_its_name(tmp_path: Path) -> None:
    storage = str(tmp_path / "results")
    assert "trained" in run(tmp_path, f"STORAGE = {storage!r}\n{PROGRAM}")
