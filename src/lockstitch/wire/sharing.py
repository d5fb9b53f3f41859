"""Which tensors of one message share memory, and which bytes are sent of it.

Where tensors overlap, their memory is sent once and they overlap at the receiver as well; where
they do not, each brings what it views, however large the storage is that they come from.

A tensor that is part of a stitch never overlaps another one at the receiver: it gets a copy. Torch
knows which of two overlapping tensors a gradient belongs to only where it has seen both being made,
and the receiver's has not; so a write to one of them would give the other a wrong gradient.

Overlaps are found by intervals of addresses, and within these by *windows*: tensors that are cut
into rows by the same step occupy a range of each row, and where these ranges are apart, so are the
tensors (columns of a table, tiles of an image). What cannot be told apart so counts as overlapping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from lockstitch.devices.kinds import is_on_host
from lockstitch.wire.tensors import COMPACT_ABOVE_BYTES, COMPACT_FACTOR, Memory, Part, span

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

# The size of the largest element.
_ALIGNMENT: Final = 16
_MOST_STEPS: Final = 8


class _View(NamedTuple):
    """One tensor as bytes from `low` to before `high`; `dims` are (count, step in bytes)."""

    low: int
    high: int
    item: int
    dims: tuple[tuple[int, int], ...]
    tensor: torch.Tensor

    @property
    def nbytes(self) -> int:
        """How many bytes it views, if it does not overlap itself."""
        count = self.tensor.element_size()
        for size, _ in self.dims:
            count *= size
        return count


class _Rows(NamedTuple):
    """Bytes from `start` on, cut into rows of `step` bytes."""

    start: int
    step: int

    def window(self, view: _View) -> tuple[int, int] | None:
        """The range of each row that `view` keeps to; None where it goes beyond the end of one."""
        low = (view.low - self.start) % self.step
        high = low + view.tensor.element_size()
        high += sum([(count - 1) * step for count, step in view.dims if step % self.step])
        return (low, high) if high <= self.step else None

    def extent(self, view: _View) -> tuple[int, int]:
        """The first of the rows that it occupies, and the one after the last."""
        first = (view.low - self.start) // self.step
        further = [(n - 1) * (step // self.step) for n, step in view.dims if not step % self.step]
        return first, first + sum(further) + 1


def find_shared(items: Sequence[object], stitched: Collection[int] = ()) -> dict[int, Part]:
    """The items that lie in a memory together with others: item → its part. `stitched` are the
    items that take part in a stitch."""
    storages: dict[int, list[int]] = {}
    has_several = False
    for index, item in enumerate(items):
        if (
            isinstance(item, torch.Tensor)
            and item.layout is torch.strided
            and is_on_host(item)
            and item.numel()
        ):
            sharing = storages.setdefault(item.untyped_storage().data_ptr(), [])
            has_several = has_several or bool(sharing)
            sharing.append(index)
    parts: dict[int, Part] = {}
    if has_several:
        for address, indices in storages.items():
            if len(indices) > 1:
                views = [_view(items[index], index) for index in indices]
                _share(_without_copied(views, stitched, address), address, parts)
    return parts


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Returns whether two elements of a strided tensor may be one in memory."""
    extent = 1
    for step, count in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if count > 1:
            if step < extent:
                return True
            extent += (count - 1) * step
    return False


def _view(tensor: object, index: int) -> _View:
    assert isinstance(tensor, torch.Tensor)
    size, low = tensor.element_size(), tensor.data_ptr()
    high = low + span(tensor.shape, tensor.stride()) * size
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    dims = tuple([(count, step * size) for count, step in pairs if count > 1 and step])
    return _View(low, high, index, dims, tensor)


def _without_copied(views: list[_View], stitched: Collection[int], address: int) -> list[_View]:
    """All but those that are in a stitch and overlap others."""
    if not any(view.item in stitched for view in views):
        return views
    kept = []
    for group in _apart(views, address):
        kept += [view for view in group if len(group) == 1 or view.item not in stitched]
    return kept


def _share(views: list[_View], address: int, parts: dict[int, Part]) -> None:
    """Gives a part to each of the views, of the storage at `address`, that is not alone."""
    for group in _by_interval(views, lambda view: (view.low, view.high), touching=True):
        if len(group) == 1:
            continue
        low = min(view.low for view in group)
        low -= (low - address) % _ALIGNMENT  # lest an element of another dtype begin at a fraction
        high = max(view.high for view in group)
        used = sum({(view.low, view.dims): view.nbytes for view in group}.values())
        if high - low > max(COMPACT_ABOVE_BYTES, COMPACT_FACTOR * used):
            apart = _apart(group, address)
            if len(apart) > 1:
                for each in apart:
                    _share(each, address, parts)
                continue
            if _share_windows(group, address, high - low, parts):
                continue
        memory = Memory(low, high - low, group[0].tensor)
        offsets = [(view, view.low - low, tuple(view.tensor.stride())) for view in group]
        _give(offsets, memory, parts)


def _share_windows(views: list[_View], address: int, size: int, parts: dict[int, Part]) -> bool:
    """Shares only the range of each row that the views keep to, where that is less by far than the
    `size` bytes that lie between them."""
    unit = max(view.tensor.element_size() for view in views)
    best, smallest = None, size // COMPACT_FACTOR
    for rows in _ways_to_cut(views, address):
        windows = [rows.window(view) for view in views]
        if None in windows:
            continue
        low = min(window[0] for window in windows if window)
        low -= low % unit
        width = max(window[1] for window in windows if window) - low
        width += -width % unit
        extents = [rows.extent(view) for view in views]
        first, end = min(extents)[0], max(end for _, end in extents)
        if (end - first) * width < smallest and not rows.step % unit:
            smallest, best = (end - first) * width, (rows, low, width, first, end - first)
    if best is None:
        return False
    rows, low, width, first, count = best
    start = rows.start + first * rows.step + low
    storage = views[0].tensor.untyped_storage()
    if start + (count - 1) * rows.step + width > address + storage.nbytes():
        return False
    whole = torch.empty(0, dtype=torch.uint8).set_(storage)
    compact = whole.as_strided((count, width), (rows.step, 1), start - address).contiguous()
    placed = []
    for view in views:
        row, column = divmod(view.low - rows.start, rows.step)
        size = view.tensor.element_size()
        strides = [
            step if step * size % rows.step else step * size // rows.step * width // size
            for step in view.tensor.stride()
        ]
        placed.append((view, (row - first) * width + column - low, tuple(strides)))
    _give(placed, Memory(compact.data_ptr(), compact.nbytes, compact), parts)
    return True


def _give(
    placed: list[tuple[_View, int, tuple[int, ...]]], memory: Memory, parts: dict[int, Part]
) -> None:
    first = min(view.item for view, _, _ in placed)
    for view, offset, stride in placed:
        brought = memory if view.item == first else None
        parts[view.item] = Part(first, offset, stride, brought)


def _apart(views: list[_View], address: int) -> list[list[_View]]:
    """The views in groups that share no byte with one another."""
    found: list[list[_View]] = []
    waiting = [views]
    while waiting:
        group = waiting.pop()
        pieces = _by_interval(group, lambda view: (view.low, view.high))
        if len(pieces) == 1 and len(group) > 1:
            pieces = _by_window(group, address)
        if len(pieces) == 1:
            found.append(group)
        else:
            waiting += pieces
    return found


def _by_window(views: list[_View], address: int) -> list[list[_View]]:
    for rows in _ways_to_cut(views, address):
        windows = {view.item: rows.window(view) for view in views}
        if None not in windows.values():
            pieces = _by_interval(views, lambda view, of=windows: of[view.item])  # type: ignore[misc]
            if len(pieces) > 1:
                return pieces
    return [views]


def _ways_to_cut(views: list[_View], address: int) -> Iterable[_Rows]:
    steps = sorted({step for view in views for _, step in view.dims}, reverse=True)
    lowest = min(view.low for view in views)
    starts = {address, lowest - (lowest - address) % _ALIGNMENT}
    return [_Rows(start, step) for step in steps[:_MOST_STEPS] for start in sorted(starts)]


def _by_interval(
    views: list[_View],
    interval: Callable[[_View], tuple[int, int]],
    *,
    touching: bool = False,
) -> list[list[_View]]:
    """The views in groups whose intervals are apart, or do not even touch."""
    groups: list[list[_View]] = []
    reached = -1
    for (low, high), view in sorted([(interval(view), view) for view in views], key=_start):
        if groups and (low < reached or (touching and low == reached)):
            groups[-1].append(view)
        else:
            groups.append([view])
        reached = max(reached, high)
    return groups


def _start(pair: tuple[tuple[int, int], _View]) -> int:
    return pair[0][0]
