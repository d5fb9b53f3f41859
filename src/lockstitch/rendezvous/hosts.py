"""Which machine a worker runs on, and by which of its addresses another one reaches it.

Unix sockets need the same kernel *and* the same network namespace: two containers on one machine
may share the former, yet have neither sockets nor files in common.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import platform
import socket
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK_NAMESPACE = "/proc/self/ns/net"
_UNIX = "unix:"

LOOPBACK = "127.0.0.1"


@functools.cache
def host_identity() -> str:
    """Returns a text that is equal for two processes exactly when they share a running kernel and a
    network namespace."""
    try:
        return f"{_BOOT_ID.read_text().strip()}/{os.readlink(_NETWORK_NAMESPACE)}"
    except OSError:  # no /proc: name and network card tell machines apart well enough
        return f"{platform.node()}/{uuid.getnode():x}"


def address_towards(host: str) -> str:
    """Returns the address of this host from which the network leads to that one. Nothing is sent.
    Raises `OSError` where no network does."""
    family, *_, place = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def is_loopback(host: str) -> bool:
    """Whether that address leads back to the host that uses it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def choose_address(addresses: Sequence[str], is_same_host: bool) -> str:
    """Returns the first of a worker's `addresses` that can be reached: unix ones on the same host
    only.

    Workers list their addresses with the best first. Raises `ConnectionError` when none will do.
    """
    for address in addresses:
        if is_same_host or not address.startswith(_UNIX):
            return address
    where = "on this host" if is_same_host else "from another host"
    raise ConnectionError(f"none of the addresses {list(addresses)} can be reached {where}")
