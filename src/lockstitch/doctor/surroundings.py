"""What surrounds a worker: variables, address, secret, limits, memory, clock.

Without torch: each of these can be looked at before anything heavy is imported.
"""

from __future__ import annotations

import difflib
import os
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lockstitch.doctor.findings import Finding, good, note, wrong
from lockstitch.link.addresses import interface_addresses, is_loopback, own_address
from lockstitch.replacement import VARIABLE as REPLACE
from lockstitch.replacement import parse_names
from lockstitch.trust.secret import FILE_VARIABLE, VARIABLE, find_secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

KNOWN: Final = frozenset(
    "LOCKSTITCH_" + name
    for name in (
        "ADDRESS ATTACH ATTACH_PORT BOARD "
        "BUFFER_POOL_BYTES CURVES HEARTBEAT_TIMEOUT IFNAME INSECURE "
        "INVITATION JOB JOIN_TIMEOUT METRICS_TOKEN PORT_RANGE REACHED_AT REPLACE RUNTIME_DIR "
        "SECRET SECRET_FILE SEGMENT_POOL_BYTES SPARK_GPUS STORE SWITCH_INTERVAL TENSORBOARD TLS "
        "TRANSPORTS WORKER"
    ).split()
)
"""Every variable of ours; docs/reference/environment.md explains them."""

_HOOK: Final = "lockstitch_replace.pth"
"""The file that obeys LOCKSTITCH_REPLACE when Python starts."""
_FEW_DESCRIPTORS: Final = 1024
_LITTLE_SHARED_MEMORY: Final = 256 << 20
_EARLIEST: Final = 1_735_689_600  # 2025: no clock that is right says less


def look_around(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Makes all checks of this module."""
    yield from check_variables(environment)
    yield check_address(environment)
    yield check_secret(environment)
    yield check_replacement(environment)
    yield check_descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield from check_cpus(os.cpu_count() or 1, _usable_cpus(), environment)
    yield check_shared_memory(Path("/dev/shm"))
    yield check_clock(time.time())


def check_variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Lists our variables that are set; a name that is not known is probably misspelt."""
    for name in sorted(it for it in environment if it.startswith("LOCKSTITCH_")):
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, 1)
            guess = f"did you mean {near[0]}?" if near else "docs/reference/environment.md has all"
            yield wrong("variables", f"nothing reads {name}", guess)
        elif name not in (VARIABLE, REPLACE):
            yield note("variables", f"{name}={environment[name]}")


def check_address(environment: Mapping[str, str]) -> Finding:
    """Checks where workers of other hosts would reach this one."""
    remedy = "set LOCKSTITCH_ADDRESS or LOCKSTITCH_IFNAME to an address or interface of this host"
    try:
        address = own_address(environment.get("MASTER_ADDR"), environment=environment)
    except ValueError as error:
        return wrong("address", str(error), remedy)
    if is_loopback(address):
        return note("address", f"workers would listen at {address}: this host only", remedy)
    own = [each for _, each in interface_addresses()]
    if own and address not in own:  # right where something in between forwards it, as of containers
        return note("address", f"no interface of this host has the address {address}", remedy)
    return good("address", f"workers of other hosts reach this one at {address}")


def check_secret(environment: Mapping[str, str]) -> Finding:
    """Checks the secret of a job that another launcher starts."""
    try:
        secret = find_secret(None, None, environment)
    except (OSError, ValueError) as error:
        return wrong("secret", str(error), f"make one: lockstitch secret -o FILE, {FILE_VARIABLE}")
    if secret is not None:
        return good("secret", "there is one, and it is kept from others")
    if environment.get("LOCKSTITCH_INSECURE", "0") not in ("", "0"):
        return note(
            "secret",
            "LOCKSTITCH_INSECURE is set: whoever reaches a worker can run anything there",
            "unset it, and give the job a secret",
        )
    return good("secret", "none is set: lockstitch run makes one for each job")


def check_replacement(environment: Mapping[str, str]) -> Finding:
    """Checks what Lockstitch stands in for, in whatever starts here."""
    asked = environment.get(REPLACE, "")
    try:
        names = parse_names(asked)
    except ValueError as error:
        return wrong("replacement", f"{REPLACE}={asked!r}: {error}", "unset it, or correct it")
    is_installed = any(Path(folder, _HOOK).is_file() for folder in sys.path)
    if names and not is_installed:
        return wrong(
            "replacement",
            f"{REPLACE} is set, but {_HOOK} is not installed, so nothing obeys it",
            "install Lockstitch with pip, or call lockstitch.replace() in the program",
        )
    return good("replacement", f"in force: {', '.join(names)}" if names else "none is in force")


def check_descriptors(limit: int) -> Finding:
    """Checks the limit of open files: a worker has two or three for each peer."""
    if 0 <= limit < _FEW_DESCRIPTORS:
        says = f"a process may have {limit} open files: a worker needs three for each peer"
        return wrong("limits", says, "raise it: ulimit -n 65536")
    return good("limits", f"a process may have {limit} open files")


def check_cpus(total: int, usable: float, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Checks how many cores this process may use, and how many threads it would compute on."""
    if usable < total:
        yield note("cores", f"{usable:g} of {total} may be used here (affinity, or a container)")
    else:
        yield good("cores", f"{total}")
    threads = environment.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads) > usable:
        yield wrong(
            "cores",
            f"OMP_NUM_THREADS={threads} is more than the {usable:g} cores there are",
            "unset it, or divide the cores by the workers of this host",
        )


def _usable_cpus() -> float:
    usable: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    with_quota = _quota(Path("/sys/fs/cgroup/cpu.max"))
    return min(usable, with_quota) if with_quota else usable


def _quota(path: Path) -> float | None:
    try:
        quota, period = path.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # there is no control group, or it has no limit ("max")
        return None


def check_shared_memory(folder: Path) -> Finding:
    """Checks the shared memory that torch's data loaders and NCCL need. Lockstitch needs none."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return note("shared memory", f"there is no {folder}: torch's data loaders need it")
    size = f"{folder} has {usage.total >> 20:,} MB, {usage.free >> 20:,} MB free"
    if usage.free < _LITTLE_SHARED_MEMORY:
        remedy = "in a container: docker run --shm-size=8g (Lockstitch itself needs none of it)"
        return note("shared memory", f"{size}: little for data loaders and NCCL", remedy)
    return good("shared memory", size)


def check_clock(now: float) -> Finding:
    """Checks the clock: certificates are valid for a time."""
    if now < _EARLIEST:
        says = f"it says {time.strftime('%Y-%m-%d', time.gmtime(now))}"
        return wrong("clock", says, "set it: certificates of TLS would not be valid yet")
    return good("clock", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now)))
