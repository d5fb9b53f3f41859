"""What Lockstitch logs, under `logging.getLogger("lockstitch")`: starts, joins, deaths and ends at
level INFO, calls at level DEBUG. Each record has the attributes `worker` and `rank`, for formats
such as `%(asctime)s %(worker)s: %(message)s`.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from lockstitch.attach.presence import rank_of
from lockstitch.attach.sources import SOURCES

if TYPE_CHECKING:
    from collections.abc import MutableMapping


class ProcessLog(logging.LoggerAdapter):  # type: ignore[type-arg]
    """A logger whose records say which worker, and which rank, this process is."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Adds who this process is; called for records that somebody wants, and for no others."""
        rank = rank_of(os.environ)
        worker = ", ".join(SOURCES.all_names()) or (f"rank {rank}" if rank else str(os.getpid()))
        kwargs["extra"] = {"worker": worker, "rank": rank, **kwargs.get("extra", {})}
        return msg, kwargs
