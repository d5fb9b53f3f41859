from __future__ import annotations

import pytest

from lockstitch.hvd.runner.elastic.discovery import FixedHosts, HostDiscovery


def test_what_finds_hosts_is_to_say_which() -> None:
    with pytest.raises(NotImplementedError):
        HostDiscovery().find_available_hosts_and_slots()


def test_hosts_are_those_that_were_told_last() -> None:
    found = FixedHosts({"10.0.0.1": 2})
    assert found.find_available_hosts_and_slots() == {"10.0.0.1": 2}
    found.set({"10.0.0.1": 2, "10.0.0.2": 1})
    assert found.find_available_hosts_and_slots() == {"10.0.0.1": 2, "10.0.0.2": 1}
    assert repr(found) == "<FixedHosts {'10.0.0.1': 2, '10.0.0.2': 1}>"
