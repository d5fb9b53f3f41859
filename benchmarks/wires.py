"""Hosts of their own for a benchmark: network namespaces, and between them wires of a given speed.

    host 0 ── up, 1 Gb/s ──▶ router ──▶ down, 1 Gb/s ── delay, loss ──▶ host 0
    host 1 ── up, 1 Gb/s ──▶        ──▶ down, 1 Gb/s ── delay, loss ──▶ host 1

The kernel limits the rates (`tbf`). Not every kernel can delay and lose packets, so that is done by
a process for each host, through which all passes that comes in. It costs processor time which a
real wire does not. Needs root and the commands `ip` and `tc`.
"""

from __future__ import annotations

import collections
import ctypes
import fcntl
import multiprocessing
import os
import random
import select
import struct
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_TUN, _NO_PACKET_INFORMATION, _VNET_HEADER = 0x0001, 0x1000, 0x4000
_CHECKSUMS, _SEGMENTATION_V4, _SEGMENTATION_V6 = 1, 2, 4
_PR_SET_TIMERSLACK = 29
_MOST_BYTES = 1 << 17
_SUBNET = "10.213.79"


@dataclass(frozen=True)
class Wire:
    """What one host's connection is like. `most_segments`: so many packets of 1,500 bytes go
    through as one, as with the network cards of today; a loss takes all of them."""

    bits_per_second: float = 1e9
    delay_seconds: float = 0.2e-3
    loss: float = 0.0
    most_segments: int = 44


class Hosts:
    """A context manager of hosts that reach each other over wires; over the kernel's own links,
    as quick as it can, without a `wire`."""

    def __init__(self, count: int, wire: Wire | None = None) -> None:
        self._count = count
        self._wire = wire
        self._prefix = f"lockstitch-{os.getpid()}"
        self._stack = ExitStack()

    def __enter__(self) -> Hosts:
        try:
            self._make_namespace("router")
            router = self._name("router")
            _run("ip", "netns", "exec", router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
            for host in range(self._count):
                self._make_host(host)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def address(self, host: int) -> str:
        """Where the others reach a host."""
        return f"{_SUBNET}.{4 * host + 1}"

    def enter(self, host: int) -> None:
        """Moves this thread, and those that it will start, to a host."""
        _enter(self._name(host))

    def __reduce__(self) -> tuple[object, ...]:
        """A copy in another process finds the same hosts, and does not end them."""
        return _known_as, (self._prefix,)

    def _name(self, place: object) -> str:
        return f"{self._prefix}-{place}"

    def _make_namespace(self, place: object) -> None:
        _run("ip", "netns", "add", self._name(place))
        self._stack.callback(_run, "ip", "netns", "delete", self._name(place))

    def _make_host(self, host: int) -> None:
        self._make_namespace(host)
        here, router, address = self._name(host), self._name("router"), self.address(host)
        far = ("peer", "name", f"up{host}", "netns", router)
        _run("ip", "-n", here, "link", "add", "wire", "type", "veth", *far)
        gateway = f"{_SUBNET}.{4 * host + 2}"
        _run("ip", "-n", here, "address", "add", f"{address}/30", "dev", "wire")
        _run("ip", "-n", router, "address", "add", f"{gateway}/30", "dev", f"up{host}")
        for namespace, link in ((here, "wire"), (here, "lo"), (router, f"up{host}")):
            _run("ip", "-n", namespace, "link", "set", link, "up")
        _run("ip", "-n", here, "route", "add", "default", "via", gateway)
        if self._wire is None:
            return
        segments = ("gso_max_segs", str(self._wire.most_segments))
        _run("ip", "-n", here, "link", "set", "wire", *segments)
        self._limit(here, "wire")
        begin, end = multiprocessing.get_context("spawn").Pipe()
        delay = multiprocessing.get_context("spawn").Process(
            target=_delay, args=(router, here, f"down{host}", self._wire, end), daemon=True
        )
        delay.start()
        self._stack.callback(delay.join)
        self._stack.callback(delay.kill)
        begin.recv()
        _run("ip", "-n", router, "link", "set", f"down{host}", *segments, "up")
        _run("ip", "-n", here, "link", "set", f"down{host}", "up")
        self._limit(router, f"down{host}")
        _run("ip", "-n", router, "route", "add", address, "dev", f"down{host}")

    def _limit(self, namespace: str, device: str) -> None:
        assert self._wire is not None
        rate = ("rate", f"{self._wire.bits_per_second:.0f}bit", "burst", "96kb", "limit", "4mb")
        _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *rate)


def _known_as(prefix: str) -> Hosts:
    hosts = Hosts(0)
    hosts._prefix = prefix
    return hosts


def _run(*words: str) -> None:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


def _enter(namespace: str) -> None:
    with open(f"/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {namespace}")


def _open_tunnel(namespace: str, name: str) -> int:
    """Makes a network device there; what is sent over it is read from the descriptor."""
    _enter(namespace)
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _TUN | _NO_PACKET_INFORMATION | _VNET_HEADER
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    offload = _CHECKSUMS | _SEGMENTATION_V4 | _SEGMENTATION_V6
    fcntl.ioctl(descriptor, _TUNSETOFFLOAD, offload)
    return descriptor


def _delay(router: str, host: str, name: str, wire: Wire, started: Any) -> None:
    """The process that hands packets on, each after the delay, unless it loses it."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)  # wakes up in time
    source, sink = _open_tunnel(router, name), _open_tunnel(host, name)
    started.send("")
    chance = random.Random(1)
    under_way: collections.deque[tuple[float, bytes]] = collections.deque()
    while True:
        left = None if not under_way else max(0.0, under_way[0][0] - time.perf_counter())
        readable, _, _ = select.select([source], [], [], left)
        now = time.perf_counter()
        while readable:
            try:
                packet = os.read(source, _MOST_BYTES)
            except BlockingIOError:
                break
            if chance.random() >= wire.loss:
                under_way.append((now + wire.delay_seconds, packet))
        while under_way and under_way[0][0] <= now:
            try:
                os.write(sink, under_way.popleft()[1])
            except OSError:  # what is no packet for the kernel is lost
                continue
