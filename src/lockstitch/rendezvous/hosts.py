"""By which of its addresses a worker is reached from another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch.link.addresses import host_and_port, is_loopback
from lockstitch.link.machine import host_identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.rendezvous.roster import Member
    from lockstitch.transport import Connection, Transport

_UNIX = "unix:"


def choose_address(addresses: Sequence[str], is_same_host: bool) -> str:
    """Returns the first of a worker's `addresses` that can be reached: unix ones on the same host
    only.

    Workers list their addresses with the best first. Raises `ConnectionError` when none will do.
    """
    for address in addresses:
        if is_same_host or not address.startswith(_UNIX):
            return address
    where = "on this host" if is_same_host else "from another host"
    remedy = "" if is_same_host else f": {_remedy(addresses)}"
    raise ConnectionError(f"none of the addresses {list(addresses)} can be reached {where}{remedy}")


def reach(member: Member, transport: Transport, timeout_seconds: float) -> Connection:
    """Connects to a worker. Raises what `Transport.connect` does, with the name of its host where
    that is another one."""
    is_same_host = member.host == host_identity()
    address = choose_address(member.addresses, is_same_host)
    try:
        return transport.connect(address, timeout_seconds)
    except (ConnectionError, TimeoutError) as error:
        if is_same_host:
            raise
        raise type(error)(f"on {member.place}: {error}") from error.__cause__


def elsewhere(member: Member | None) -> str:
    """Returns where a worker is, as the end of what is said of it; empty where that is this host,
    or not known."""
    is_here = member is None or member.host == host_identity()
    return "" if member is None or is_here else f", on {member.place}"


def why_apart(members: Sequence[Member]) -> str:
    """Returns why some of these workers, which are on different hosts, cannot be called from other
    hosts; empty where all can, or all are on one host."""
    if len({member.host for member in members}) < 2:
        return ""
    apart = [member for member in members if not leads_here(member.addresses)]
    if not apart:
        return ""
    first = apart[0]
    away = next(member for member in members if member.host != first.host)
    return (
        f"worker {away.info.name!r} is on {away.place}, but {_all(apart)} {first.place} "
        f"can be reached from there only: {_remedy(first.addresses)}"
    )


def _all(apart: Sequence[Member]) -> str:
    name, more = repr(apart[0].info.name), len(apart) - 1
    return f"worker {name} on" if not more else f"worker {name} (and {more} more like it) on"


def leads_here(addresses: Sequence[str]) -> bool:
    """Returns whether one of these addresses leads here from another host."""
    elsewhere = [address for address in addresses if not address.startswith(_UNIX)]
    return any(
        not is_loopback(host_and_port(address.partition(":")[2])[0]) for address in elsewhere
    )


def host_reached_at(addresses: Sequence[str]) -> str | None:
    """Returns the host in the first of these addresses that is no unix socket; None without one."""
    elsewhere = (address for address in addresses if not address.startswith(_UNIX))
    first = next(elsewhere, None)
    return None if first is None else host_and_port(first.partition(":")[2])[0]


def _remedy(addresses: Sequence[str]) -> str:
    if all(address.startswith(_UNIX) for address in addresses):
        return (
            "it listens on unix sockets alone, as one does that was given no secret. Let "
            "`lockstitch secret` make one, and give its file to the workers of all hosts in "
            "LOCKSTITCH_SECRET_FILE (or the secret itself in LOCKSTITCH_SECRET). Where it has one, "
            'its transports leave out "tcp", or all meet at an address of loopback (MASTER_ADDR, '
            "LOCKSTITCH_IFNAME)"
        )
    return (
        f"it listens at {list(addresses)}, which lead to its own host. LOCKSTITCH_ADDRESS and "
        "MASTER_ADDR have to be addresses or names that other hosts reach, or leave out the former"
    )
