"""Hosts and how many workers each takes, as people write them: `-H`, a file, a script's output."""

from __future__ import annotations

import re
import socket

Slots = tuple[tuple[str, int], ...]

_HOST = r"[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:]+\]"
_WITH_COLON = re.compile(rf"({_HOST})(?::([0-9]+))?")
_IN_FILE = re.compile(
    rf"({_HOST})(?:\s+slots\s*=\s*([0-9]+)|:([0-9]+))?(?:\s+max[-_]slots\s*=\s*[0-9]+)?"
)


def parse_hosts(text: str) -> Slots:
    """Reads `h1:2,h2:4`; a host without a number has one slot. Raises `ValueError` for anything
    else."""
    return _added_up([_matched(_WITH_COLON, part.strip()) for part in text.split(",")])


def parse_hostfile(text: str) -> Slots:
    """Reads one host a line: `h1 slots=2`, `h1:2` or `h1`; `#` begins a comment, `max_slots` has no
    effect. Raises `ValueError` for anything else."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return _added_up([_matched(_IN_FILE, line, form="host slots=2") for line in lines if line])


def parse_discovered(text: str, default_slots: int) -> Slots:
    """Reads what a discovery script prints: one host a line, `h1:2`, or `h1` for `default_slots`.
    Raises `ValueError` for anything else."""
    lines = [line.strip() for line in text.splitlines()]
    return _added_up([_matched(_WITH_COLON, line, default_slots) for line in lines if line])


def is_here(host: str) -> bool:
    """Whether a name means this machine."""
    return host in ("localhost", "127.0.0.1", "[::1]", socket.gethostname())


def _matched(
    pattern: re.Pattern[str], text: str, default: int = 1, form: str = "host:slots"
) -> tuple[str, int]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no host: write host or {form}")
    count = next((group for group in match.groups()[1:] if group), None)
    return match[1], default if count is None else int(count)


def _added_up(found: list[tuple[str, int]]) -> Slots:
    """Adds up the slots of hosts that are named more than once."""
    slots: dict[str, int] = {}
    for host, count in found:
        slots[host] = slots.get(host, 0) + count
    return tuple(slots.items())
