"""Derivatives up to the third order of random programs on three workers, against one process."""

from __future__ import annotations

import pytest

from lockstitch import autograd
from lockstitch.testing import LocalCluster
from tests.parity.derivatives import (
    InOneProcess,
    Remotely,
    assert_same,
    draw,
    perform,
    thrifty,
)


def check(programs, mode="smart"):
    with LocalCluster(3) as cluster:
        for program in programs:
            plain = perform(program, InOneProcess())
            with cluster[0].active(), autograd.context() as context:
                remote = perform(program, Remotely(cluster, context, mode))
            assert_same(remote, plain, program)


def test_third_order_equals_one_process():
    check(map(draw, range(40)))


def test_fast_equals_one_process_where_everything_sent_takes_part():
    check((thrifty(draw(seed)) for seed in range(12)), "fast")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_third_order_of_thousands_of_programs_equals_one_process(part):
    check(map(draw, range(1000 + 200 * part, 1200 + 200 * part)))


@pytest.mark.slow
def test_fast_and_smart_equal_one_process_in_many_thrifty_programs():
    for mode in ("fast", "smart"):
        check((thrifty(draw(seed)) for seed in range(100, 250)), mode)


@pytest.mark.slow
def test_fifth_order_equals_one_process():
    check(draw(seed, order=5) for seed in range(100))
