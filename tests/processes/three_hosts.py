"""Three hosts on one switch, of which two may be cut from each other and not from the third.

Needs root and the commands `ip` and `iptables`. All that is made goes with the context.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.processes.two_hosts import TwoHosts, ip

ADDRESSES = ("10.213.79.1", "10.213.79.2", "10.213.79.3")


class ThreeHosts(TwoHosts):
    """A context manager."""

    names = ("alpha", "beta", "gamma")

    def __enter__(self) -> ThreeHosts:
        if not shutil.which("iptables"):
            pytest.skip("a cut between two of three hosts needs the command `iptables`")
        super().__enter__()
        return self

    def _make(self) -> None:
        switch = f"lockstitch-{os.getpid()}-switch"
        for network in (*self._networks, switch):
            self._add(network)
        try:
            ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no bridge can be made here: {error.stderr.decode()}")
        ip("-n", switch, "link", "set", "bridge", "up")
        for number, host in enumerate(self._networks):
            port = f"port{number}"
            end = ("peer", "name", port, "netns", switch)
            ip("-n", host, "link", "add", "wire", "type", "veth", *end)
            ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            ip("-n", host, "address", "add", f"{ADDRESSES[number]}/24", "dev", "wire")
            self._set_up(host)

    def cut_between(self, one: int, other: int) -> None:
        """Nothing goes between these two any more, and nobody is told."""
        for here, there in ((one, other), (other, one)):
            network, address = self._networks[here], ADDRESSES[there]
            self.rule(network, "-I", "INPUT", "-s", address)
            self.rule(network, "-I", "OUTPUT", "-d", address)
