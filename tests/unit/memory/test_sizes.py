"""Sizes are rounded up, to few different ones, and little is wasted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstitch.memory.sizes import ALIGNMENT, PAGE_BYTES, aligned, fits, rounded


@given(st.integers(0, 1 << 42), st.sampled_from([ALIGNMENT, PAGE_BYTES]))
def test_aligned_is_the_next_multiple(nbytes: int, step: int) -> None:
    assert aligned(nbytes, step) % step == 0
    assert 0 <= aligned(nbytes, step) - nbytes < step


@given(st.integers(1, 1 << 42), st.sampled_from([64, PAGE_BYTES]))
def test_sizes_are_multiples_and_waste_little(nbytes: int, step: int) -> None:
    size = rounded(nbytes, step)
    assert size >= nbytes
    assert size % step == 0
    assert size <= max(nbytes * 9 / 8 + 1, nbytes + step)
    assert rounded(size, step) == size
    assert fits(rounded(nbytes), nbytes)


def test_sizes_that_differ_little_are_rounded_alike() -> None:
    assert len({rounded(nbytes) for nbytes in range(1 << 20, 1 << 21, 999)}) == 9
