"""Which workers are meant: by name, pattern, rank or info. Values in, values out."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from lockstitch.ids import WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

Selector: TypeAlias = str | int | WorkerInfo
Workers: TypeAlias = Selector | Iterable[Selector]

_WILDCARDS = frozenset("*?[")
_MOST_NAMES = 32


def select(present: Sequence[WorkerInfo], workers: Workers | None) -> tuple[WorkerInfo, ...]:
    """Those of the workers `present` that `workers` names, by rank; None: all.

    Raises `ValueError` where it names none, one that is not there, or one twice; `TypeError` for
    anything but names, patterns, ranks and infos.
    """
    if workers is None:
        return in_order(present)
    selectors: list[Selector] = (
        [workers] if isinstance(workers, (str, int, WorkerInfo)) else _listed(workers)
    )
    found: dict[WorkerInfo, Selector] = {}
    for selector in selectors:
        for info in _meant_by(selector, present):
            if info in found:
                raise ValueError(
                    f"worker {info.name!r} is in the group twice: by {found[info]!r} and by "
                    f"{selector!r}; name each worker once"
                )
            found[info] = selector
    if not found:
        raise ValueError(f"a group has at least one worker, and none is named; {_there(present)}")
    return in_order(found)


def in_order(workers: Iterable[WorkerInfo]) -> tuple[WorkerInfo, ...]:
    """The workers by rank."""
    return tuple(sorted(workers, key=lambda info: info.worker))


def _listed(workers: Iterable[Selector]) -> list[Selector]:
    try:
        return list(workers)
    except TypeError:
        raise TypeError(
            "a group is made of names, patterns, ranks or infos of workers, one or several, not of "
            f"{workers!r}"
        ) from None


def _meant_by(selector: object, present: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    if isinstance(selector, WorkerInfo):
        found = [each for each in present if each.worker == selector.worker]
        if not found:
            raise ValueError(
                f"worker {selector.name!r} is not in the group of workers any more, or this is "
                f"another life of it; {_there(present)}"
            )
    elif isinstance(selector, int) and not isinstance(selector, bool):
        found = [each for each in present if each.id == selector]
        if not found:
            raise ValueError(f"no worker has rank {selector}; {_there(present)}")
    elif isinstance(selector, str):
        if _WILDCARDS.isdisjoint(selector):
            found = [each for each in present if each.name == selector]
        else:
            found = [each for each in present if fnmatch.fnmatchcase(each.name, selector)]
        if not found:
            kind = "is named" if _WILDCARDS.isdisjoint(selector) else "has a name like"
            raise ValueError(f"no worker {kind} {selector!r}; {_there(present)}")
    else:
        raise TypeError(
            "a group is made of names, patterns, ranks or infos of workers, not of "
            f"{selector!r}, a {type(selector).__name__}"
        )
    return found


def _there(present: Sequence[WorkerInfo]) -> str:
    names = [repr(each.name) for each in in_order(present)]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"there are {', '.join(names[:_MOST_NAMES])}{more}"
