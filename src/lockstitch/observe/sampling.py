"""Who holds up a job that goes on, but slowly: looked at many times, who was waited for how often,
and where it was then. No I/O.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.observe.explanation import Explanation
    from lockstitch.observe.participants import Participant

_MOST_PLACES: Final = 3
_MOST_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class Holdup:
    """Somebody who was waited for, and waited for nobody, in a `share` of the looks. `waiters`:
    those who waited for it; `places`: where it was then, with the share of those looks in which it
    was there, the most frequent first."""

    participant: str
    share: float
    waiters: tuple[str, ...]
    places: tuple[tuple[str, float], ...]


def holdups(looks: Sequence[Explanation]) -> list[Holdup]:
    """Returns who was waited for in some of the looks, the most frequent first. Each look has what
    was waited for however shortly (`explain` with no patience)."""
    counts: Counter[str] = Counter()
    waiters: dict[str, Counter[str]] = {}
    places: dict[str, Counter[str]] = {}
    for look in looks:
        by_name = {each.name: each for each in look.participants}
        for culprit in look.culprits:
            name = culprit.participant
            counts[name] += 1
            waiters.setdefault(name, Counter()).update({each.waiter for each in culprit.waits})
            places.setdefault(name, Counter())[_place_of(by_name.get(name))] += 1
    return [
        Holdup(
            name,
            count / len(looks),
            tuple(each for each, _ in waiters[name].most_common()),
            tuple((where, n / count) for where, n in places[name].most_common(_MOST_PLACES)),
        )
        for name, count in counts.most_common()
    ]


def holdup_lines(found: Sequence[Holdup], looks: int, seconds: float) -> list[str]:
    """Returns it as text."""
    lines = [f"looked {looks} times in {seconds:.1f} s:"]
    for each in found[:_MOST_SHOWN]:
        whom = ", ".join(each.waiters[:_MOST_SHOWN])
        rest = len(each.waiters) - _MOST_SHOWN
        more = f" and {rest} more" if rest > 0 else ""
        lines.append(f"  {each.participant} was waited for in {each.share:.0%}, by {whom}{more}")
        lines += [f"    {share:.0%} of these at {where}" for where, share in each.places if where]
    if not found:
        lines.append("  nobody waited for another one of them")
    return lines


def _place_of(one: Participant | None) -> str:
    """The line at which somebody serves the oldest call, or else its main thread is."""
    if one is None:
        return ""
    served = max(one.serving, key=lambda each: each.seconds, default=None)
    main = one.main_thread
    at = served.at if served is not None and served.at is not None else main.at if main else None
    if at is None:
        return ""
    return f"{at}: {at.text}" if at.text else f"{at}"
