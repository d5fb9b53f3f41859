"""Who reads a connection next, decided from values alone; `runtime.reading_right` acts on it.

Answers come in over one connection, and several threads may want to read it. One at a time has the
*reading right*. A thread that waits for an answer takes the right and reads for itself, so nobody
need be woken; if another thread has the right it sleeps as a *follower*. Whoever gives the right
back decides who comes next (`successor`):

    a follower sleeps ─────────────────────────────▶ FOLLOWER   it is woken, and takes the right
    the connection is closed ──────────────────────▶ NOBODY
    something was received and not delivered yet ──▶ POOL_NOW   the pool's reader comes at once
    otherwise ─────────────────────────────────────▶ POOL_LATER as the diagram says

While no thread waits, the pool's reader has to hear of what comes, and the connection is in one of
three states (`Watch`). It is told of answers that somebody expects some time (`Event.EXPECT`), or
as soon as they come (`Event.DEMAND`); `ACTIONS` says what is done then.

              EXPECT: ASK_LATER                   EXPECT: ASK_LATER, from a check
            ┌───────────────────▶ SCHEDULED ──────┐ (`due`: the caller is busy)
            │                      │  ▲           │
           IDLE                    │  └───────────┘
            │ ▲      DEMAND: ARM   │ DEMAND: ARM, from whoever wants the answer or from a check
            │ │                    ▼
            └─┼─────────────────▶ ARMED
              └─────────────────────┘ the pool's reader begins to read

A caller that sends many requests, perhaps to several workers, and then waits for one answer after
the other reads them all itself. If the pool's reader read them meanwhile, the two would compete for
the GIL. Hence SCHEDULED: the pool's monitor asks a few times whether the caller is still busy with
that (`due`) before the poller is armed.

Nothing is done while nothing is expected. Nothing is done while somebody reads, either: whoever
reads gives the right back later than that, and decides then. Steps of other threads may come
between any two steps; the tests go through all orders of them.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


class Successor(enum.Enum):
    """Who reads after a thread has given the reading right back."""

    FOLLOWER = enum.auto()
    NOBODY = enum.auto()
    POOL_NOW = enum.auto()
    POOL_LATER = enum.auto()


class Watch(enum.IntEnum):
    """How the pool's reader will hear of what comes."""

    IDLE = 0
    """It will not."""
    SCHEDULED = 1
    """The pool's monitor is going to ask whether the time has come to arm the poller."""
    ARMED = 2
    """The poller tells it."""


class Event(enum.IntEnum):
    """What somebody wants who does not read."""

    EXPECT = 0
    """Answers are to be read some time, also where no thread waits for them."""
    DEMAND = 1
    """They are to be read as soon as they come."""


class Action(enum.Enum):
    """What is to be done about it."""

    NOTHING = enum.auto()
    ASK_LATER = enum.auto()
    ARM = enum.auto()


# Named once: to find a member in its enumeration takes longer than all the rest.
_FOLLOWER, _NOBODY, _POOL_NOW, _POOL_LATER = Successor
_NOTHING, _ASK_LATER, _ARM = Action

ACTIONS: Final = (
    # IDLE      SCHEDULED  ARMED
    (_ASK_LATER, _NOTHING, _NOTHING),  # EXPECT
    (_ARM, _ARM, _NOTHING),  # DEMAND
)
"""By `Event`, then by `Watch`: every asynchronous call looks here."""


def successor(
    *, has_follower: bool, is_closed: bool, is_left_over: Callable[[], bool]
) -> Successor:
    """Who reads next. `is_left_over` is only asked if that matters: to ask a connection announces
    that its reader goes to sleep."""
    if has_follower:
        return _FOLLOWER
    if is_closed:
        return _NOBODY
    return _POOL_NOW if is_left_over() else _POOL_LATER


def due(*, is_busy: bool, deferrals_left: int) -> Event:
    """What a check of the pool's monitor amounts to, where the caller has sent more requests since
    the last one, or waits for another answer since just now (`is_busy`), and may do so for some
    more checks."""
    return Event.EXPECT if is_busy and deferrals_left > 0 else Event.DEMAND
