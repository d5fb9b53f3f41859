"""Where programs of the original look for `HostDiscovery`, from which they derive."""

from __future__ import annotations

__all__ = ["HostDiscovery"]


class HostDiscovery:
    """What finds the hosts of an elastic job: `settings.discovery` of an executor, with
    `override_discovery=False`. Anything else with this method does as well."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Returns how many ranks fit on each host, by its address."""
        raise NotImplementedError
