"""When a component runs: the whole policy of a backward pass, as one function of plain values.

A component with one entry runs when its gradient arrives: the arrival itself proves that it takes
part. One with several must not run before they are all settled, or its nodes would run on a partial
sum. Some may never come, and in SMART mode only the initiator's answer (`parts`) tells which.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstitch.autograd.discovery import Parts
    from lockstitch.autograd.graph import Component, Entry, Gradients
    from lockstitch.ids import GlobalId


class Decision(enum.Enum):
    """What to do with a component now."""

    RUN = "run it: all of its gradients are there"
    BLOCK = "run it, and let it wait inside for the gradients that are missing"
    ASK = "ask the initiator which of its entries take part"
    IDLE = "nothing to run: none of its entries takes part"
    WAIT = "wait for further gradients"


def decide(
    component: Component,
    arrived: Mapping[GlobalId | None, Gradients | None],
    parts: Parts | None,
    fast: bool,
) -> Decision:
    """Decides about a component that has not run yet.

    `arrived` maps entries to their gradients (None: a null token); the roots arrive at the start.
    `parts` says which sends take part, once that is known; in `fast` mode all do.
    """
    if len(component.entries) == 1:
        return Decision.RUN if arrived else Decision.WAIT
    if parts is None and not fast:
        return _decide_unknowing(component, arrived)
    expected = _expected(component, parts, fast)
    if not expected:
        return Decision.IDLE
    if all(entry.message in arrived for entry in expected):
        return Decision.RUN
    # What a receive of this component hands out may come back to it: then it must run to receive.
    # It might as well wait for the first gradient outside, but waits for several in any case, and
    # what it takes to begin is done by the time that one comes.
    if component.receives and len(expected) > 1:
        return Decision.BLOCK
    return Decision.WAIT


def may_block(component: Component, parts: Parts | None, fast: bool) -> bool:
    """Returns whether it is known that a component will have to wait for several entries, and may
    have to do so inside."""
    if not component.receives or (parts is None and not fast):
        return False
    return len(_expected(component, parts, fast)) > 1


def _expected(component: Component, parts: Parts | None, fast: bool) -> tuple[Entry, ...]:
    entries = component.entries
    if fast or parts is None:
        return entries
    return tuple([each for each in entries if each.message is None or each.message in parts])


def _decide_unknowing(
    component: Component, arrived: Mapping[GlobalId | None, Gradients | None]
) -> Decision:
    """SMART, while nobody needed to know which entries take part."""
    if all(entry.message in arrived for entry in component.entries):
        return Decision.RUN
    if not arrived:
        return Decision.WAIT
    first = component.entries[0]
    if component.is_covered and component.receives and _is_whole(first, arrived):
        return Decision.BLOCK
    return Decision.ASK


def _is_whole(entry: Entry, arrived: Mapping[GlobalId | None, Gradients | None]) -> bool:
    """Returns whether the gradients of all its tensors are there, so that all that it reaches will
    run."""
    gradients = arrived.get(entry.message)
    return gradients is not None and all(gradient is not None for gradient in gradients)
