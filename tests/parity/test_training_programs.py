"""A training loop over many workers does what it does in one process, bit for bit."""

from __future__ import annotations

import pytest
from torch import optim

from lockstitch.testing.cluster import LocalCluster
from tests.parity.training.choices import OPTIMIZERS, SCHEDULERS
from tests.parity.training.comparing import assert_trains_alike
from tests.parity.training.drawing import drawn
from tests.parity.training.program import OWNERS, Part, Program, Stepper
from tests.parity.training.settling import settled
from tests.parity.training.shrinking import smallest


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(OWNERS) as cluster, cluster["trainer"].active():
        yield cluster


PARTS = Part("ps1"), Part("ps2"), Part("trainer")
GROUPED = Stepper((0, 1, 2), groups=((1,), (0, 2)), group_options=({"weight_decay": 0.1}, {}))


def place_of(kind: type[optim.Optimizer]) -> int:
    return next(place for place, (each, _) in enumerate(OPTIMIZERS) if each is kind)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_scheduler_of_torch_sets_the_options_of_all_owners(cluster, scheduler) -> None:
    stepper = Stepper(
        (0, 1, 2), 1, scheduler, groups=((0, 1), (2,)), group_options=({}, {"lr": 0.01})
    )
    assert_trains_alike(Program(PARTS, (stepper,)))


@pytest.mark.parametrize("number", range(len(OPTIMIZERS)))
def test_every_optimizer_takes_groups_and_a_scheduler(cluster, number) -> None:
    stepper = Stepper(
        (0, 1, 2), number, "OneCycleLR", groups=((1,), (0, 2)), group_options=({"lr": 0.1}, {})
    )
    assert_trains_alike(settled(Program(PARTS, (stepper,), reload_at=2)))


def test_fifty_steps_with_scheduler_clipping_and_accumulation(cluster) -> None:
    stepper = Stepper((0, 1, 2), place_of(optim.AdamW), "OneCycleLR", GROUPED.groups, ({}, {}))
    assert_trains_alike(
        Program(PARTS, (stepper,), steps=50, contexts=(0, 0), clip=(2.0, 0.05), clip_options={})
    )


@pytest.mark.parametrize("seed", range(16))
def test_random_programs(cluster, seed) -> None:
    assert_trains_alike(drawn(seed))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_many_random_programs(cluster, block) -> None:
    for seed in range(100 + 50 * block, 150 + 50 * block):
        assert_trains_alike(drawn(seed))


def test_a_program_that_fails_is_made_as_small_as_can_be() -> None:
    """With what made it fail, and nothing else."""
    program = next(
        each for each in map(drawn, range(1000)) if each.reload_at and len(each.parts) > 2
    )
    found = smallest(program, lambda each: each.reload_at is not None)
    expected = Program((Part(found.parts[0].owner),), (), 1, found.seed, reload_at=found.reload_at)
    assert found == settled(expected)
