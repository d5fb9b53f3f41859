"""Which processes belong to one job: those that have a key in common, directly or by way of others.

A process that another one has forked for a part of its work belongs to the job of its parent, and a
launcher to that of the workers that it has started.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from lockstitch.attach.values import Card


@dataclass(frozen=True, slots=True)
class Outline:
    """A job as the cards of its processes tell it, before any of them is asked."""

    name: str
    pid: int
    cards: tuple[Card, ...]


def outlines(cards: Sequence[Card]) -> list[Outline]:
    """Returns the jobs to which processes belong, the oldest first."""
    found = [outline_of(members) for members in _joined(cards)]
    return sorted(found, key=lambda each: (min(c.started_at for c in each.cards), each.pid))


def outline_of(cards: Sequence[Card]) -> Outline:
    """Returns the job of cards that belong to one."""
    first = min(cards, key=lambda each: (each.kind != "launcher", rank_of(each)))
    name = next((card.job for card in (first, *cards) if card.job), "")
    return Outline(name.partition("/")[0] or first.program, first.pid, tuple(cards))


def rank_of(card: Card) -> tuple[int, int]:
    """Returns a key by which workers are ordered: by rank, else by number."""
    return (int(card.rank), card.pid) if card.rank.isdecimal() else (1 << 62, card.pid)


# ---------------------------------------------------------------- inside


def _joined(cards: Sequence[Card]) -> list[list[Card]]:
    """Returns the cards in sets of those that belong together."""
    roots: dict[Hashable, Hashable] = {}

    def root(each: Hashable) -> Hashable:
        while (above := roots.setdefault(each, each)) != each:
            roots[each] = each = roots[above]  # the next way is half as long
        return each

    by_pid = {card.pid: card for card in cards}
    for card in cards:
        for key in card.keys:
            roots[root(key)] = root(card.pid)
        parent = by_pid.get(card.parent)
        if parent is not None and parent.job == card.job:
            roots[root(parent.pid)] = root(card.pid)
    joined: dict[Hashable, list[Card]] = {}
    for card in cards:
        joined.setdefault(root(card.pid), []).append(card)
    return list(joined.values())
