"""Clocks of hosts are aligned by what went between them, within the error that is told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstitch.observe.clocks import HostClock, align


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.integers(0, 10**9), st.sampled_from("abc"),
            st.integers(0, 10**6),
        ),
        max_size=30,
    ),
    st.integers(-(10**9), 10**9),
    st.integers(-(10**9), 10**9),
)  # fmt: skip
def test_the_true_offset_lies_within_the_error(
    sent: list[tuple[str, int, str, int]], of_b: int, of_c: int
) -> None:
    ahead = {"a": 0, "b": of_b, "c": of_c}  # of each clock
    messages = [
        (one, at + ahead[one], other, at + took + ahead[other]) for one, at, other, took in sent
    ]
    for clock in align({"a": 0, "b": 5, "c": 7}, messages):
        if clock.error_nanoseconds is not None:
            wrong = abs(clock.offset_nanoseconds + ahead[clock.host])
            assert wrong <= clock.error_nanoseconds + 1  # rounded


def test_messages_there_and_back_leave_half_of_what_they_took() -> None:
    there, back = ("a", 100, "b", 1160), ("b", 1170, "a", 210)
    assert align({"a": 0, "b": 0}, [there, back])[1] == HostClock("b", -1010, 50)


def test_a_third_host_helps_and_without_messages_the_time_of_day_counts() -> None:
    messages = [("a", 0, "b", 10), ("b", 10, "a", 20), ("b", 0, "c", 10), ("c", 10, "b", 20)]
    clocks = align({"a": 3, "b": 0, "c": 0, "d": 10}, messages)
    assert clocks[2] == HostClock("c", 0, 20)
    assert clocks[3] == HostClock("d", 7, None)
