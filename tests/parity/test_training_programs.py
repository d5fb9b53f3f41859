"""A training loop over many workers does what it does in one process, bit for bit."""

from __future__ import annotations

import pytest
from torch import optim

from lockstitch.testing.cluster import LocalCluster
from tests.parity.training_programs import (
    OPTIMIZERS,
    OWNERS,
    SCHEDULERS,
    Program,
    assert_trains_alike,
)


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(OWNERS) as cluster, cluster["trainer"].active():
        yield cluster


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_scheduler_of_torch_sets_the_options_of_all_owners(cluster, scheduler) -> None:
    program = Program(["ps1", "ps2", "trainer"], (optim.SGD, {"lr": 0.05, "momentum": 0.9}))
    program.scheduler, program.groups = scheduler, [[0, 1], [2]]
    program.group_options = [{}, {"lr": 0.01}]
    assert_trains_alike(program)


@pytest.mark.parametrize("number", range(len(OPTIMIZERS)))
def test_every_optimizer_takes_groups_and_a_scheduler(cluster, number) -> None:
    program = Program(["ps1", "ps2", "ps1"], OPTIMIZERS[number], "OneCycleLR")
    program.groups, program.group_options = [[1], [0, 2]], [{"weight_decay": 0.1}, {}]
    program.reload_at = 2
    assert_trains_alike(program)


def test_fifty_steps_with_scheduler_clipping_and_accumulation(cluster) -> None:
    program = Program(["ps1", "ps2", "trainer", "ps1"], (optim.AdamW, {"lr": 0.01}), "OneCycleLR")
    program.steps, program.passes, program.clip = 50, 2, (2.0, 0.05)
    program.groups, program.group_options = [[3, 0], [1, 2]], [{"weight_decay": 0.0}, {}]
    assert_trains_alike(program)


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(cluster, seed) -> None:
    assert_trains_alike(Program.random(seed))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_random_programs(cluster, block) -> None:
    for seed in range(100 + 50 * block, 150 + 50 * block):
        assert_trains_alike(Program.random(seed))
