"""Lists of nodes and counts as Slurm writes them into variables: `gpu[07-08,11],login1` and
`2(x3),1`.

They are read here, without `scontrol show hostnames`: that command needs a configuration of Slurm,
which a container in an allocation often lacks, and a process for what is a matter of text.
"""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENTRY = r"(?:[A-Za-z0-9_.-]|\[[0-9,-]+\])+"
_LIST = re.compile(rf"{_ENTRY}(?:,{_ENTRY})*")
_PIECE = re.compile(r"([^\[\]]+)|\[([^\]]+)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def node_names(nodes: str, variable: str) -> Iterator[str]:
    """Yields the names in a list of nodes, in its order. Raises `ValueError`, naming the variable
    that had it, for what is none."""
    if _LIST.fullmatch(nodes) is None:
        raise ValueError(f"{variable}={nodes!r} is no list of nodes")
    for entry in re.findall(_ENTRY, nodes):
        choices = [
            [plain] if plain else list(_numbers(ranges, nodes, variable))
            for plain, ranges in _PIECE.findall(entry)
        ]
        yield from map("".join, product(*choices))


def counts(text: str, variable: str) -> list[int]:
    """Returns the numbers of a list in which `2(x3)` stands for three times 2: one for each node.
    Raises `ValueError` for what is none."""
    found = [_COUNT.fullmatch(part) for part in text.split(",")]
    made: list[int] = []
    for match in found:
        if match is None:
            raise ValueError(f"{variable}={text!r} is no list of counts such as 2(x3),1")
        made += [int(match[1])] * int(match[2] or 1)
    return made


def _numbers(ranges: str, nodes: str, variable: str) -> Iterator[str]:
    """Yields what `07-08,11` stands for: numbers as wide as the first of their range."""
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"{variable}={nodes!r} is no list of nodes: see [{ranges}]")
        first, last = match[1], match[2] or match[1]
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}}"
