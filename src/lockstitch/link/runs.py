"""Texts in a row of which many are the same, written once each: what all are told of all."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Runs:
    """A row of texts, as records of a `Codec` can hold it."""

    texts: tuple[str | None, ...]
    """Those that differ."""
    runs: tuple[tuple[int, int], ...]
    """Pairs of a count and a place in `texts`: so often that text comes next."""

    @classmethod
    def of(cls, row: Sequence[str | None]) -> Runs:
        """Makes the runs of a row."""
        places = {text: place for place, text in enumerate(dict.fromkeys(row))}
        runs = ((len(list(alike)), places[text]) for text, alike in itertools.groupby(row))
        return cls(tuple(places), tuple(runs))

    def row(self) -> tuple[str | None, ...]:
        """Returns the row. Raises `ValueError` where the numbers cannot be."""
        counts = [count for count, _ in self.runs]
        if (
            not all(0 <= place < len(self.texts) for _, place in self.runs)
            or not all(count > 0 for count in counts)
            or sum(counts) > _MOST
        ):
            raise ValueError("these are no runs")
        return tuple(
            itertools.chain.from_iterable(
                itertools.repeat(self.texts[place], count) for count, place in self.runs
            )
        )
