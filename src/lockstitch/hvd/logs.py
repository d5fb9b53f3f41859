"""What `HOROVOD_LOG_LEVEL` asks for: the messages of this package on stderr, with the rank.

Where the program has set up `logging` for itself its own handlers show them, and only the level is
set. `HOROVOD_LOG_HIDE_TIME=1` leaves out the time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

LEVELS: Final = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}

_log = logging.getLogger("lockstitch")


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """Ours, among those of the program."""


def begin_logs(environment: Mapping[str, str], rank: int) -> None:
    """Begins to show messages; harmless when repeated. Raises `ValueError` for a level that does
    not exist."""
    name = environment.get("HOROVOD_LOG_LEVEL")
    if not name:
        return
    if name.lower() not in LEVELS:
        raise ValueError(f"HOROVOD_LOG_LEVEL={name!r} is none of {', '.join(LEVELS)}")
    end_logs()
    _log.setLevel(LEVELS[name.lower()])
    if not _log.hasHandlers():
        handler = _Handler()
        is_hidden = environment.get("HOROVOD_LOG_HIDE_TIME", "0") not in ("", "0")
        time = "" if is_hidden else "%(asctime)s "
        handler.setFormatter(logging.Formatter(f"[{time}rank {rank}] %(levelname)s: %(message)s"))
        _log.addHandler(handler)


def end_logs() -> None:
    """Shows nothing any more; harmless where nothing was shown. The level stays."""
    for handler in list(_log.handlers):
        if isinstance(handler, _Handler):
            _log.removeHandler(handler)
