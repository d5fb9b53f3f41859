"""Pipelines made by chance give the gradients, losses and statistics of one process."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from lockstitch.testing.cluster import LocalCluster
from tests.cluster.nn.pipelining.pipelines import WORKERS, Program, check, programs


def test_random_pipelines_equal_one_process():
    with LocalCluster(WORKERS) as cluster:

        @settings(max_examples=25, deadline=None, derandomize=True)
        @given(programs())
        def try_one(program: Program) -> None:
            check(program, cluster)

        try_one()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_random_pipelines_equal_one_process():
    with LocalCluster(WORKERS) as cluster:

        @given(programs())
        def try_one(program: Program) -> None:
            check(program, cluster)

        try_one()
