"""The ports at which this process may listen: any that is free, or those that a firewall leaves
open."""

from __future__ import annotations

import errno
import re
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VARIABLE: Final = "LOCKSTITCH_PORT_RANGE"

_WRITTEN = re.compile(r"(\d+)(?:\s*[-:]\s*(\d+))?")
_ANY: Final = range(1)


def find_ports(given: Sequence[int] | None, environment: Mapping[str, str]) -> range | None:
    """Returns the ports that the program gives, as the first and the last, or else those of
    LOCKSTITCH_PORT_RANGE (`20000-20009`); None where neither says anything. Raises `ValueError` for
    what is no range of ports."""
    text: object = given
    if given is None:
        text = environment.get(VARIABLE)
        if not text:
            return None
        match = _WRITTEN.fullmatch(environment[VARIABLE].strip())
        given = () if match is None else (int(match[1]), int(match[2] or match[1]))
    try:
        first, last = given
    except (TypeError, ValueError):
        first, last = 0, -1
    if not 0 < first <= last < 1 << 16:
        raise ValueError(
            f"port_range (or {VARIABLE}) is a first and a last port, such as (20000, 20009) or "
            f"20000-20009, not {text!r}"
        )
    return range(first, last + 1)


def listen(host: str, ports: range | None, backlog: int) -> socket.socket:
    """Returns a socket that listens at the first of these ports of `host` that is free; at any,
    where there are none. Raises `OSError`, which says what is wrong."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports = ports or _ANY
    for port in ports:
        try:
            return socket.create_server((host, port), family=family, backlog=backlog)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise OSError(error.errno, _not_here(host)) from error
            if error.errno != errno.EADDRINUSE or len(ports) == 1:
                raise
    raise OSError(
        errno.EADDRINUSE,
        f"no port from {ports[0]} to {ports[-1]} ({VARIABLE}) is free at {host}: each process that "
        "listens there needs one of its own",
    )


def _not_here(host: str) -> str:
    return (
        f"{host} is no address of {socket.gethostname()}, so nobody can listen there. Behind an "
        "address translation (NAT), as in a container with ports of its own, hosts reach each "
        "other only through a network that both are in: name an address or interface of that one"
    )
