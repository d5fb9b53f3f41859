"""How tensors are put together and cut apart: arithmetic on sizes, without tensors or I/O.

- A *layout* places several tensors one behind the other in one piece of memory.
- *Chunks* cut them into pieces of bounded size that travel one after the other; small tensors share
  a chunk.
- *Buckets* join operations that are ready together, so that many small ones travel as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from lockstitch.memory.sizes import aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each of several tensors begins, and how many bytes there are in all."""

    offsets: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, sizes: Iterable[int]) -> Layout:
        """Returns the layout of tensors of these many bytes."""
        offsets = []
        end = 0
        for size in sizes:
            offsets.append(end)
            end += aligned(size)
        return cls(tuple(offsets), end)


class Piece(NamedTuple):
    """Elements `begin` to `end` of tensor number `tensor`, at `offset` bytes of its chunk."""

    tensor: int
    begin: int
    end: int
    offset: int


def chunks(
    counts: Sequence[int], item_sizes: Sequence[int], chunk_bytes: int
) -> list[tuple[Piece, ...]]:
    """Cuts tensors of `counts` elements into chunks that each take at most `chunk_bytes`.

    Every element is in exactly one piece, in order.
    """
    finished: list[tuple[Piece, ...]] = []
    pieces: list[Piece] = []
    used = 0
    for index, (count, item_size) in enumerate(zip(counts, item_sizes, strict=True)):
        begin = 0
        while begin < count:
            room = (chunk_bytes - used) // item_size
            if not room:
                finished.append(tuple(pieces))
                pieces, used = [], 0
                continue
            end = min(count, begin + room)
            pieces.append(Piece(index, begin, end, used))
            used += aligned((end - begin) * item_size)
            begin = end
    if pieces:
        finished.append(tuple(pieces))
    return finished


def buckets(
    items: Iterable[T],
    key: Callable[[T], Hashable | None],
    size: Callable[[T], int],
    limit: int,
) -> list[list[T]]:
    """Joins items of the same key, in order, as long as their sizes stay within `limit` together.

    A key of None keeps an item alone; so does a size beyond the limit. Buckets come in the order of
    their first items.
    """
    made: list[list[T]] = []
    open_buckets: dict[Hashable, tuple[list[T], int]] = {}
    for item in items:
        kind = key(item)
        bucket, filled = open_buckets.get(kind, ([], 0))
        if kind is None or not bucket or filled + size(item) > limit:
            bucket, filled = [], 0
            made.append(bucket)
        bucket.append(item)
        open_buckets[kind] = (bucket, filled + size(item))
    return made
