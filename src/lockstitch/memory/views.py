"""Tensors that lie in one piece of memory, at places that are told; kept, since the same are wanted
again and again.

They are used in whatever mode is on by then, so they are none of inference mode, which must not be
written to in another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    _Key = tuple[int, torch.dtype, Sequence[int], Sequence[int] | None]


class Views:
    """Views of the memory of `content`, a tensor of bytes; `most_kept` of them are kept."""

    def __init__(self, content: torch.Tensor, most_kept: int) -> None:
        self.bytes = content
        self.address = content.data_ptr()
        self._typed = {torch.uint8: content}
        self._kept: dict[_Key, torch.Tensor] = {}
        self._most_kept = most_kept

    def tensor(
        self,
        begin: int,
        dtype: torch.dtype,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """A tensor at byte `begin`, contiguous unless there are strides; all share one storage."""
        with torch.inference_mode(mode=False):
            typed = self._typed.get(dtype)
            if typed is None:
                whole = len(self.bytes) // dtype.itemsize * dtype.itemsize
                typed = self._typed.setdefault(dtype, self.bytes[:whole].view(dtype))
            return typed.as_strided(shape, strides or _contiguous(shape), begin // dtype.itemsize)

    def kept(
        self,
        begin: int,
        dtype: torch.dtype,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Like `tensor`, and kept; `shape` and `strides` are tuples."""
        key = (begin, dtype, shape, strides)
        view = self._kept.get(key)
        if view is None:
            if len(self._kept) >= self._most_kept:
                self._kept.clear()
            view = self._kept[key] = self.tensor(begin, dtype, shape, strides)
        return view


def _contiguous(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return strides[::-1]
