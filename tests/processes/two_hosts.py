"""Two hosts: network namespaces with a name of their own each, a wire between them, and a hosts
file as Debian writes it, in which the own name leads to 127.0.1.1.

Needs root and the commands `ip` and `unshare`. All that is made goes with the context.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[2]
ADDRESSES = ("10.213.77.1", "10.213.77.2")
IPV6_ADDRESSES = ("fd00:213:77::1", "fd00:213:77::2")
NAMES = ("alpha", "beta")

# What would tell a program where it is.
_OF_LAUNCHERS = ("MASTER_", "HOROVOD_", "SLURM_", "GLOO_", "LOCKSTITCH_", "RANK", "WORLD_", "OMPI_")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class TwoHosts:
    """A context manager."""

    names = NAMES

    def __init__(self) -> None:
        self._networks = [f"lockstitch-{os.getpid()}-{name}" for name in self.names]
        self._stack = ExitStack()

    def __enter__(self) -> TwoHosts:
        if os.geteuid() or not shutil.which("ip") or not shutil.which("unshare"):
            pytest.skip("hosts of their own need root, and the commands `ip` and `unshare`")
        try:
            self._make()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def _make(self) -> None:
        for network in self._networks:
            self._add(network)
        first, second = self._networks
        end = ("peer", "wire", "netns", second)
        ip("-n", first, "link", "add", "wire", "type", "veth", *end)
        for host, network in enumerate(self._networks):
            for address in (f"{ADDRESSES[host]}/24", f"{IPV6_ADDRESSES[host]}/64"):
                ip("-n", network, "address", "add", address, "dev", "wire", *_at_once(address))
            self._set_up(network)
            self._write_hosts_file(host, network)

    def _add(self, network: str) -> None:
        try:
            ip("netns", "add", network)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode()}")
        self._stack.callback(ip, "netns", "delete", network)

    def _set_up(self, network: str) -> None:
        for link in ("wire", "lo"):
            ip("-n", network, "link", "set", link, "up")

    def _write_hosts_file(self, host: int, network: str) -> None:
        folder = Path("/etc/netns", network)
        folder.mkdir(parents=True)
        self._stack.callback(shutil.rmtree, folder)
        lines = [
            "127.0.0.1 localhost",
            f"127.0.1.1 {NAMES[host]}",
            f"{ADDRESSES[1 - host]} {NAMES[1 - host]}",
        ]
        Path(folder, "hosts").write_text("\n".join(lines) + "\n")

    def command(self, host: int, words: Sequence[str]) -> list[str]:
        """What runs `words` on a host."""
        named = f'hostname {self.names[host]} && exec "$@"'
        there = ["ip", "netns", "exec", self._networks[host], "unshare", "--uts"]
        return [*there, "sh", "-c", named, "-", *words]

    def start(
        self, host: int, words: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        """Starts a program on a host, which is told nothing but `environment`; it is killed in the
        end."""
        bare = {name: it for name, it in os.environ.items() if not name.startswith(_OF_LAUNCHERS)}
        process = subprocess.Popen(
            self.command(host, words),
            cwd=ROOT,
            env={**bare, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process

    def python(
        self, host: int, program: str, environment: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        """Likewise a text in Python."""
        return self.start(host, [sys.executable, "-c", program], environment)

    def cut(self) -> None:
        """Nothing goes over the wire any more, and nobody is told: it loses every packet."""
        for network in self._networks:
            lose = ("qdisc", "replace", "dev", "wire", "root", "netem", "loss", "100%")
            done = subprocess.run(["tc", "-n", network, *lose], check=False, capture_output=True)
            if done.returncode:
                self._drop(network, "-I")

    def heal(self) -> None:
        """Ends a `cut`."""
        for network in self._networks:
            gone = subprocess.run(
                ["tc", "-n", network, "qdisc", "del", "dev", "wire", "root"],
                check=False,
                capture_output=True,
            )
            if gone.returncode:
                self._drop(network, "-D")

    def _drop(self, network: str, insert_or_delete: str) -> None:
        self.rule(network, insert_or_delete, "INPUT", "-i", "wire")
        self.rule(network, insert_or_delete, "OUTPUT", "-o", "wire")

    def close_ports(self, host: int, open_ports: str, *, is_told: bool = False) -> None:
        """A firewall of that host lets nobody connect from outside, but at these ports; others it
        drops, or refuses."""
        network = self._networks[host]
        begins = ("-A", "INPUT", "-i", "wire", "-p", "tcp", "--syn", "!", "--dport", open_ports)
        self.rule(network, *begins, then="REJECT" if is_told else "DROP")

    def rule(self, network: str, *words: str, then: str = "DROP") -> None:
        if not shutil.which("iptables"):
            pytest.skip("needs the command `iptables`")
        command = ["ip", "netns", "exec", network, "iptables", *words, "-j", then]
        subprocess.run(command, check=True, capture_output=True)

    def take_down(self) -> None:
        """The link is down: the hosts have no network in common."""
        ip("-n", self._networks[0], "link", "set", "wire", "down")


def _at_once(address: str) -> tuple[str, ...]:
    """An address of IPv6 is looked for on the wire first, which takes a second."""
    return ("nodad",) if ":" in address else ()


def outputs(processes: Sequence[subprocess.Popen[str]], seconds: float = 100.0) -> list[str]:
    """What each prints until it ends."""
    return [process.communicate(timeout=seconds)[0] for process in processes]


def next_line(process: subprocess.Popen[str]) -> str:
    """What it prints next, but for what torch's store says of names that lead nowhere; empty at the
    end."""
    while True:
        line = process.stdout.readline() if process.stdout is not None else ""
        if "[c10d]" not in line:
            return line
