"""Networks of their own for the workers of a round, so that the link of any of them can be cut.

    worker0 ── wire ─┐
    worker1 ── wire ─┼─ bridge        each in a namespace of its own, the bridge in one more
    worker2 ── wire ─┘

Needs root and the command `ip`. All that is made goes with `close`.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import subprocess
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

_CLONE_NEWNET = 0x40000000
_SUBNET = "10.213.78"


def ip(*words: str) -> None:
    """The command; raises `OSError` with what it says."""
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def why_not() -> str:
    """Why networks cannot be made here; empty if they can."""
    if os.geteuid() or not shutil.which("ip"):
        return "network namespaces need root, and the command `ip`"
    try:
        with Networks(1):
            return ""
    except OSError as error:
        return f"network namespaces cannot be made here: {error}"


class Networks:
    """A context manager of `size` networks that reach each other."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._prefix = f"lockstitch-{os.getpid()}"
        self._secret = secrets.token_hex(32)
        self._stack = ExitStack()

    def __enter__(self) -> Networks:
        try:
            self._make_namespace("hub")
            ip("-n", self._name("hub"), "link", "add", "bridge", "type", "bridge")
            ip("-n", self._name("hub"), "link", "set", "bridge", "up")
            for rank in range(self._size):
                self._make_network(rank)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _name(self, place: object) -> str:
        return f"{self._prefix}-{place}"

    def _make_namespace(self, place: object) -> None:
        ip("netns", "add", self._name(place))
        self._stack.callback(ip, "netns", "delete", self._name(place))

    def _make_network(self, rank: int) -> None:
        self._make_namespace(rank)
        here, hub = self._name(rank), self._name("hub")
        end = ("peer", "name", f"to{rank}", "netns", hub)
        ip("-n", here, "link", "add", "wire", "type", "veth", *end)
        ip("-n", here, "address", "add", f"{_SUBNET}.{rank + 1}/24", "dev", "wire")
        for link in ("wire", "lo"):
            ip("-n", here, "link", "set", link, "up")
        ip("-n", hub, "link", "set", f"to{rank}", "master", "bridge")
        self.heal(rank)

    def cut(self, rank: int) -> None:
        """Nothing goes to or from that worker any more; nobody is told."""
        ip("-n", self._name("hub"), "link", "set", f"to{rank}", "nomaster")

    def heal(self, rank: int) -> None:
        """Ends a `cut`."""
        ip("-n", self._name("hub"), "link", "set", f"to{rank}", "master", "bridge")
        ip("-n", self._name("hub"), "link", "set", f"to{rank}", "up")

    def enter(self, rank: int) -> None:
        """Moves this process, which has one thread only, into a network; its worker will find
        there where to listen, and the secret without which nobody listens to TCP."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{self._name(rank)}") as namespace:
            if libc.setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        os.environ["LOCKSTITCH_ADDRESS"] = f"{_SUBNET}.{rank + 1}"
        os.environ["LOCKSTITCH_SECRET"] = self._secret


def entering(networks: Networks | None) -> partial[None] | None:
    """What a `ProcessCluster` has its processes do first."""
    return None if networks is None else partial(networks.enter)
