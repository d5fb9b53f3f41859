"""What a rank sends of an allreduce before rank 0 has ordered it.

Between the word to rank 0 that a tensor is ready and the order the network would stand idle. So the
first parts of the vector leave at once, where rank 0 has said the last time that the operation is
likely to be ordered alone. Each rank numbers what it sends ahead, and names the number with its
submission. Where all have sent ahead, and nobody has joined, the order names all these numbers, and
the parts count as the first of the exchange. In any other case the order names none, and they are
passed over where they come: nothing follows from them but that some bytes went in vain.

The thread that performs orders sends, between two exchanges, and only as much as there is room for;
the rest goes before the frames of the next exchange over that connection. Nobody reads before the
next exchange either. A rank sends ahead for one operation at a time, so of what comes ahead from
another rank only the latest can still be wanted. No I/O here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstitch.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    import torch

MOST_RANKS: Final = 16
"""To so many ranks at most parts go ahead: it is a call of the system for each."""
_RELUCTANCE: Final = 8
"""So often is an operation not sent ahead where it was in vain."""
_MOST_KNOWN: Final = 1 << 16


class Claims:
    """For which operation of one rank something goes ahead: of those of which rank 0 has said so,
    one at a time. Operations go by the rank's own numbers for them."""

    def __init__(self) -> None:
        self._likely: set[int] = set()
        self._claimed: int | None = None
        self._count = 0

    def claim(self, operation: int) -> int:
        """Returns the number of what goes ahead for an operation that is submitted now; 0 if
        nothing does."""
        if self._claimed is not None or operation not in self._likely:
            return 0
        self._claimed = operation
        self._count += 1
        return self._count

    def release(self, operation: int) -> None:
        """An operation is ordered, or refused."""
        if self._claimed == operation:
            self._claimed = None

    def learn(self, operation: int, *, is_likely: bool) -> None:
        """Takes in whether an operation is likely to be ordered alone the next time."""
        if is_likely:
            self._likely.add(operation)
        else:
            self._likely.discard(operation)


class Foresight:
    """What rank 0 says of the next time of an operation, so that all ranks do alike then."""

    def __init__(self) -> None:
        self._reluctant: dict[Hashable, int] = {}

    def is_likely(self, operation: Hashable, sent: Sequence[int], *, is_alone: bool) -> bool:
        """Returns whether an operation that is ordered now shall go ahead the next time. `sent`:
        the numbers of what the ranks have sent ahead now, 0 for nothing; `is_alone`: nothing else
        was ready or waiting."""
        if any(sent) and not all(sent):
            if len(self._reluctant) >= _MOST_KNOWN:
                self._reluctant.clear()
            self._reluctant[operation] = _RELUCTANCE
            return False
        if not is_alone:
            return False
        left = self._reluctant.pop(operation, 0)
        if left:
            self._reluctant[operation] = left - 1
        return not left


class AheadOnLine:
    """What has gone ahead over one connection: ours that has not left yet, and the other's that has
    come before its exchange."""

    def __init__(self) -> None:
        self.unsent: list[memoryview] = []
        self._number = 0
        self._content: torch.Tensor | None = None

    def keep(self, number: int, content: torch.Tensor) -> None:
        """Takes in the bytes that the other rank has sent ahead under this number. Raises
        `ProtocolError` where the numbers do not ascend."""
        if number <= self._number:
            raise ProtocolError(f"number {number} ahead of an exchange, after {self._number}")
        self._number, self._content = number, content

    def take(self, number: int) -> torch.Tensor | None:
        """Returns the bytes that came under this number; None where they are still to come. Raises
        `ProtocolError` where they never will."""
        if number > self._number:
            return None
        content, self._content = self._content, None
        if number < self._number or content is None:
            raise ProtocolError(f"number {number} ahead of an exchange, where {self._number} came")
        return content
