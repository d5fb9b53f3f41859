"""Random programs on slots of several kinds, in every order, against the plain module."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstitch.testing import LocalCluster
from tests.parity.slot_programs import STEPS, check

EXAMPLES = settings.default.max_examples

programs = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 19)), max_size=8).map(
    lambda steps: [("call", 1), *steps]
)


def mixtures(*kinds):
    return st.lists(st.sampled_from(kinds), min_size=2, max_size=3)


@settings(max_examples=EXAMPLES // 5)  # a process each
@given(programs, mixtures("thread", "fork"), st.booleans())
def test_a_program_does_on_slots_what_it_does_plainly(program, kinds, nests):
    check(program, kinds, nests=nests)


@settings(max_examples=EXAMPLES // 2)
@given(programs, mixtures("thread", "worker1", "worker2"))
def test_a_program_does_on_workers_what_it_does_plainly(program, kinds):
    with LocalCluster(3) as cluster, cluster["worker0"].active():
        check(program, kinds)
