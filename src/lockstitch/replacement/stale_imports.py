"""Warns of stale imports: names that modules have imported before they were replaced, and keep.

`from torch.distributed.rpc import rpc_sync` has copied a function into the module that says so, and
nothing can be done about it from outside; but it can be told.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAY_KEEP: Final = ("torch", "lockstitch", "_remote_module_non_scriptable")
"""Packages whose own modules may keep what they have: torch's (and one that it writes itself)."""

_MOST: Final = 8


def warn_of_stale_imports(name: str, originals: Mapping[int, str]) -> None:
    """Warns of the names that modules keep, if there are any.

    `originals`: what is being replaced, by identity, with its full name.
    """
    stale = list(_stale_imports(originals))
    if not stale:
        return
    listed = ", ".join(stale[:_MOST])
    more = f" and {len(stale) - _MOST} more" if len(stale) > _MOST else ""
    warnings.warn(
        f"Lockstitch replaces {name} from now on, but these names were imported before and keep "
        f"what they were: {listed}{more}. Replace it earlier (lockstitch run --replace {name}, or "
        f"LOCKSTITCH_REPLACE={name} in the environment), before these modules are imported",
        RuntimeWarning,
        stacklevel=6,  # whoever has called `replace`
    )


def _stale_imports(originals: Mapping[int, str]) -> Iterator[str]:
    # Once for each module, by the first of its names: `__main__` has two in a spawned process.
    modules = {id(module): (name, module) for name, module in reversed(list(sys.modules.items()))}
    for module_name, module in modules.values():
        if module_name.partition(".")[0] in _MAY_KEEP:
            continue
        for name, value in list(getattr(module, "__dict__", {}).items()):
            original = originals.get(id(value))
            if original is not None and not name.startswith("__"):
                yield f"{module_name}.{name} ({original})"
