"""Where programs of the original look for `HostDiscovery`, from which they derive, and for
`FixedHosts`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HostDiscovery", "FixedHosts"]


class HostDiscovery:
    """What finds the hosts of an elastic job: `settings.discovery` of an executor, with
    `override_discovery=False`. Anything else with this method does as well."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Returns how many ranks fit on each host, by its address."""
        raise NotImplementedError


class FixedHosts(HostDiscovery):
    """Finds the hosts that it is told: `available_hosts`, with their slots; later, by `set`,
    others."""

    def __init__(self, available_hosts: Mapping[str, int]) -> None:
        self._available = dict(available_hosts)

    def __repr__(self) -> str:
        return f"<FixedHosts {self._available}>"

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Returns them."""
        return self._available

    def set(self, available_hosts: Mapping[str, int]) -> None:
        """Finds these from now on."""
        self._available = dict(available_hosts)
