"""A process that is killed while a checkpoint is written: the former one is whole."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch import checkpoint, rpc
from lockstitch.checkpoint import operations
from lockstitch.errors import PeerDiedError
from lockstitch.testing.processes import ProcessCluster

if TYPE_CHECKING:
    from pathlib import Path


def make_weight() -> torch.Tensor:
    return torch.full((3,), 7.0, requires_grad=True)


def be_killed_before_writing() -> None:
    operations.write_shard = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment,return-value]


def save_twice(folder: Path) -> str:
    """Saves, and once more while one of two owners is killed between its copy and its file."""
    steps = {"n": 1}
    checkpoint.register("steps", steps)
    for name in ("ps1", "ps2"):
        checkpoint.register(name, rpc.remote(name, make_weight))
    checkpoint.save(folder)
    before = sorted(folder.iterdir())
    steps["n"] = 2
    rpc.rpc_sync("ps1", be_killed_before_writing)
    saving = checkpoint.save_async(folder)  # all have copied
    with pytest.raises(PeerDiedError) as caught:
        saving.wait()
    assert sorted(folder.iterdir()) == before  # what the others had written is gone
    return str(caught.value)


@pytest.mark.slow
def test_an_owner_killed_between_copy_and_file_leaves_the_former_checkpoint(tmp_path: Path) -> None:
    with ProcessCluster(["trainer", "ps1", "ps2"]) as cluster:
        assert "ps1" in cluster.run("trainer", save_twice, tmp_path)
        cluster.kill("ps1")  # it is dead; now the cluster knows
    states = checkpoint.read(tmp_path)
    assert states["steps"] == {"n": 1}
    assert torch.equal(states["ps1"], make_weight())
