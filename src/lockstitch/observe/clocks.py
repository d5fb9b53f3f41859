"""How far the clocks of hosts are apart, found from messages that went between them.

Processes of one host have one clock. Between two hosts each message says something: it cannot have
arrived before it left. Messages there and back bound the difference from both sides; the tightest
bounds, also by way of third hosts, leave an interval. Its middle is taken, and half of its width is
the remaining error. Where no messages went both ways, the hosts' own time of day is taken, with an
error that nobody knows. Functions of values; times are in nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_UNKNOWN = float("inf")


@dataclass(frozen=True, slots=True)
class HostClock:
    """What is to be added to the monotonic times of a host for those of the first one, and the
    greatest error of that; None where it is not known."""

    host: str
    offset_nanoseconds: int
    error_nanoseconds: int | None


def align(
    epochs: Mapping[str, int], messages: Iterable[tuple[str, int, str, int]]
) -> list[HostClock]:
    """Returns the clocks of hosts, the first one's first.

    `epochs`: for each host, what its time of day says is to be added to its monotonic clock.
    `messages`: from which host each went and when, to which it came and when.
    """
    hosts = list(epochs)
    most = {(one, other): 0.0 if one == other else _UNKNOWN for one in hosts for other in hosts}
    for sender, left, receiver, arrived in messages:
        if sender != receiver:  # left + offset(sender) ≤ arrived + offset(receiver)
            pair = (sender, receiver)
            most[pair] = min(most[pair], arrived - left)
    for by in hosts:
        for one in hosts:
            for other in hosts:
                most[one, other] = min(most[one, other], most[one, by] + most[by, other])
    first = hosts[0]
    return [_clock(host, first, epochs, most) for host in hosts]


def _clock(
    host: str, first: str, epochs: Mapping[str, int], most: Mapping[tuple[str, str], float]
) -> HostClock:
    if host == first:
        return HostClock(host, 0, 0)
    highest, lowest = most[host, first], -most[first, host]
    if _UNKNOWN in (highest, -lowest):
        return HostClock(host, epochs[host] - epochs[first], None)
    error = max(0, round((highest - lowest) / 2))
    return HostClock(host, round((highest + lowest) / 2), error)
