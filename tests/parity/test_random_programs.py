"""Random distributed programs against the same program in one process."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstitch.errors import DistAutogradError
from tests.parity.programs import assert_same, programs, run_distributed, run_plain, thrifty
from tests.unit.autograd.post_office import PostOffice


@given(programs(), st.none() | st.integers(0, 2**32))
def test_gradients_and_calls_equal_those_of_one_process_in_whatever_order_messages_come(
    program, seed
):
    with PostOffice(program.size, seed) as office:
        assert_same(run_distributed(program, office), run_plain(program))


@given(programs(), st.integers(0, 2**32))
def test_fast_equals_one_process_where_everything_sent_takes_part(program, seed):
    program = thrifty(program)
    with PostOffice(program.size, seed) as office:
        assert_same(run_distributed(program, office, mode="fast"), run_plain(program))


@settings(max_examples=15)
@given(programs(), st.integers(0, 2**32))
def test_fast_is_right_or_says_that_it_is_not_but_never_hangs(program, seed):
    with PostOffice(program.size, seed) as office:
        try:
            distributed = run_distributed(program, office, mode="fast")
        except DistAutogradError as error:
            words = str(error)
        else:
            assert_same(distributed, run_plain(program))
            return
    assert "no gradient can come for these stitches: number" in words


@given(programs(), st.integers(0, 2**32))
def test_a_retained_graph_gives_the_same_again(program, seed):
    with PostOffice(program.size, seed) as office:
        assert_same(run_distributed(program, office, passes=3), run_plain(program, passes=3))
