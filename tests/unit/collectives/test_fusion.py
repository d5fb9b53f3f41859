"""Layouts, chunks and buckets: arithmetic on sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstitch.collectives.fusion import Layout, buckets, chunks
from lockstitch.memory.sizes import ALIGNMENT, aligned

CHUNK = 1024
tensors = st.lists(st.tuples(st.integers(0, 3000), st.sampled_from([1, 2, 4, 8, 16])), max_size=8)


def test_layout_aligns_every_tensor() -> None:
    assert Layout.of([4, 100, 0, 64]) == Layout((0, 64, 192, 192), 256)
    assert aligned(ALIGNMENT) == ALIGNMENT


@given(tensors)
def test_chunks_hold_every_element_once_in_order_and_within_bounds(
    given_tensors: list[tuple[int, int]],
) -> None:
    counts = [count for count, _ in given_tensors]
    sizes = [size for _, size in given_tensors]
    cut = chunks(counts, sizes, CHUNK)
    reached = [0] * len(counts)
    for chunk in cut:
        end = 0
        for piece in chunk:
            assert piece.offset == end
            assert piece.offset % ALIGNMENT == 0
            assert piece.begin == reached[piece.tensor] < piece.end
            reached[piece.tensor] = piece.end
            end = piece.offset + aligned((piece.end - piece.begin) * sizes[piece.tensor])
        assert 0 < end <= CHUNK
    assert reached == counts


def test_small_tensors_share_a_chunk() -> None:
    assert len(chunks([4, 4, 4], [4, 4, 4], CHUNK)) == 1


def test_buckets_join_what_is_alike_up_to_the_limit() -> None:
    items = [("a", 4), ("b", 4), ("a", 4), ("a", 4), ("c", 99), ("a", 1)]
    made = buckets(items, lambda item: item[0], lambda item: item[1], 8)
    assert made == [[("a", 4), ("a", 4)], [("b", 4)], [("a", 4), ("a", 1)], [("c", 99)]]


def test_what_has_no_key_stays_alone() -> None:
    assert buckets([1, 2], lambda _: None, lambda _: 1, 10) == [[1], [2]]
