"""Addresses: how they are written, and which of this host's own others can use.

A host has several addresses, and its own name often leads to one of loopback (Debian writes
`127.0.1.1` into /etc/hosts). What others can use is the address from which the network leads to
where all meet, since they come there too. Where that place is on this host, the way out of it is
taken: that of the default route, or else of an interface that is up. Nothing is sent for any of
this.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LOOPBACK: Final = "127.0.0.1"
AUTO: Final = "auto"
"""In the place of an address: the one that `own_address` finds."""
ADDRESS_VARIABLE: Final = "LOCKSTITCH_ADDRESS"
INTERFACE_VARIABLES: Final = ("LOCKSTITCH_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Environment variables that name network interfaces; the first that is set counts."""

# Addresses that are kept for documentation: asking for the way there tells the default route.
_FAR_AWAY: Final = ("192.0.2.1", "2001:db8::1")
_OF_CONTAINERS: Final = ("docker", "veth", "br-", "virbr", "cni", "flannel", "podman")
_IPV6: Final = Path("/proc/net/if_inet6")
_SIOCGIFADDR, _SIOCGIFFLAGS, _IFF_UP = 0x8915, 0x8913, 1
_GLOBAL_SCOPE: Final = 0


def is_loopback(host: str) -> bool:
    """Whether that address leads back to the host that uses it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def with_port(host: str, port: int | str) -> str:
    """Returns `host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def host_and_port(text: str) -> tuple[str, int]:
    """Returns the parts of what `with_port` makes. Raises `ValueError` for anything else."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 1 << 16:
        raise ValueError(f"{text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def address_towards(place: str) -> str:
    """Returns the address of this host from which the network leads to the host `place`, a name or
    an address. Nothing is sent. Raises `OSError` where no network leads there."""
    failure = OSError(f"{place!r} has no address")
    for family, *_, target in socket.getaddrinfo(place, 1, type=socket.SOCK_DGRAM):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0])
        except OSError as error:
            failure = error
    raise failure


def own_address(
    place: str | None, given: str | None = None, environment: Mapping[str, str] = os.environ
) -> str:
    """Returns the address of this host at which workers of other hosts reach it.

    `place`: the host where all meet, None where it is no host (a file). `given`: what the program
    says, a name, an address or an interface; None: what LOCKSTITCH_ADDRESS says. Where that is
    "auto", or nothing was said, the first of `INTERFACE_VARIABLES` counts, and then the way to
    `place`. Loopback, where `place` is loopback itself or this host has nothing else. Raises
    `ValueError` where what was said is not here.
    """
    said = environment.get(ADDRESS_VARIABLE) if given is None else given
    if said and said != AUTO:
        return _address_of_given(said)
    for variable in INTERFACE_VARIABLES:
        if environment.get(variable):
            found = address_of_interface(environment[variable])
            if found is not None:
                return found
            if variable == INTERFACE_VARIABLES[0]:  # the others are not for us in the first place
                raise ValueError(
                    f"{variable}={environment[variable]!r} fits no interface of "
                    f"{socket.gethostname()} that is up and has an address; it has {_described()}"
                )
    if place is not None and is_loopback(place):
        return LOOPBACK
    if place is not None:
        with contextlib.suppress(OSError):  # a name that nobody knows, say
            towards = address_towards(place)
            if not is_loopback(towards):
                return towards
    return outward_address()


def outward_address() -> str:
    """Returns the address of this host on the way out of it: of the default route, or else of the
    first interface that is up; loopback, where there is nothing else."""
    for far in _FAR_AWAY:
        with contextlib.suppress(OSError):
            return address_towards(far)
    found = [
        address
        for name, address in interface_addresses()
        if not is_loopback(address) and not name.startswith(_OF_CONTAINERS)
    ]
    return next(iter(found), LOOPBACK)


def interface_addresses() -> list[tuple[str, str]]:
    """Returns the names and addresses of the interfaces that are up: those of IPv4 first, and of
    IPv6 only such that lead beyond one wire. Empty where the system does not tell."""
    return [*_of_ipv4(), *_of_ipv6()]


def hint(address: str) -> str:
    """Returns what to look at where nobody answers at `address` on another host."""
    return (
        f"see whether {socket.gethostname()} and the host of {address} share a network and whether "
        "a firewall closes that port (LOCKSTITCH_PORT_RANGE names the ports that are open, "
        "LOCKSTITCH_IFNAME or LOCKSTITCH_ADDRESS the interface or the address to use)"
    )


def _address_of_given(given: str) -> str:
    """Returns the address of an interface, or that of a name, or the address itself. A name that
    leads to loopback here may lead to this host from elsewhere."""
    known = [address for name, address in interface_addresses() if name == given]
    if known:
        return known[0]
    host = given.strip("[]")
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, None)]
    except OSError as error:
        raise ValueError(
            f"{ADDRESS_VARIABLE} or address={given!r} is neither a name, nor an address, nor an "
            f"interface of {socket.gethostname()} ({error.strerror}), which has {_described()}"
        ) from error
    if host == "localhost":
        return LOOPBACK
    return next((each for each in found if not is_loopback(each)), None) or outward_address()


def address_of_interface(names: str) -> str | None:
    """Returns the address of the first interface that fits `names`, in NCCL's syntax: beginnings
    of names with commas between; `=` before them: whole names; `^`: all but these."""
    is_excluding, rest = names.startswith("^"), names.removeprefix("^")
    is_exact, rest = rest.startswith("="), rest.removeprefix("=")
    wanted = tuple(name for name in rest.split(",") if name)
    for name, address in interface_addresses():
        fits = name in wanted if is_exact else name.startswith(wanted)
        if fits is not is_excluding and not (is_excluding and is_loopback(address)):
            return address
    return None


def _described() -> str:
    return ", ".join(f"{name} ({address})" for name, address in interface_addresses()) or "none"


def _of_ipv4() -> Iterator[tuple[str, str]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # it has no such address, or the system is another
                flags = fcntl.ioctl(asked.fileno(), _SIOCGIFFLAGS, request)[16:18]
                if struct.unpack("H", flags)[0] & _IFF_UP:
                    answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, request)
                    yield name, socket.inet_ntoa(answer[20:24])


def _of_ipv6() -> Iterator[tuple[str, str]]:
    try:
        lines = _IPV6.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        digits, _, _, scope, _, name = line.split()
        if int(scope, 16) == _GLOBAL_SCOPE:
            yield name, str(ipaddress.ip_address(bytes.fromhex(digits)))
