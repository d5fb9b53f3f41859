"""The environment variables by which `lockstitch run` passes options to the programs it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lockstitch.replacement.table import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _bytes(megabytes: float) -> int:
    return int(megabytes * (1 << 20))


def _unset(is_set: bool) -> int:
    return int(not is_set)


def _seconds(seconds: float) -> int:
    return max(1, round(seconds))


_VARIABLES: Final[tuple[tuple[str, str, Callable[[Any], object]], ...]] = (
    ("fusion_megabytes", "HOROVOD_FUSION_THRESHOLD", _bytes),
    ("timeline", "HOROVOD_TIMELINE", str),
    ("mark_cycles", "HOROVOD_TIMELINE_MARK_CYCLES", int),
    ("stall_check", "HOROVOD_STALL_CHECK_DISABLE", _unset),
    ("stall_warning", "HOROVOD_STALL_CHECK_TIME_SECONDS", int),
    ("stall_shutdown", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", int),
    ("start_timeout", "HOROVOD_GLOO_TIMEOUT_SECONDS", _seconds),
    ("meeting_seconds", "HOROVOD_GLOO_TIMEOUT_SECONDS", _seconds),
    ("log_level", "HOROVOD_LOG_LEVEL", str),
    ("replace", VARIABLE, str),
    ("log_timestamp", "HOROVOD_LOG_HIDE_TIME", _unset),
)
"""A parameter of `run`, the variable, and the value's form. Of two parameters for one variable the
later overrules."""


def variables_of(given: Mapping[str, Any]) -> dict[str, str]:
    """Returns the variables for the parameters of `run` that were given (are not None)."""
    return {
        variable: str(form(given[name]))
        for name, variable, form in _VARIABLES
        if given[name] is not None
    }
