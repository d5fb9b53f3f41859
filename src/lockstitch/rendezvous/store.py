"""The key-value store through which workers find each other: torch's own, under our own prefix.

**Not authenticated**: whoever reaches the store can read and write it. It serves discovery only.

Whoever waits in the store hears nothing where its host is cut off. So our connections to it end
when that host has been silent for as long as any other may be (`link.pulse`).

A file store is opened without a number of users, for with one it deletes its file when the last of
them is gone, while a process group or our own next life may be about to use it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from torch.distributed import (  # not in its __all__
    DistNetworkError,
    FileStore,
    TCPStore,
)
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from lockstitch.attach.presence import PRESENCE, meeting_key
from lockstitch.launcher_link.client import ADDRESS
from lockstitch.launcher_link.process import JOB
from lockstitch.link.addresses import LOOPBACK, host_and_port
from lockstitch.link.pulse import SILENT_SHARE, heartbeat_seconds
from lockstitch.link.sockets import silence_bounded
from lockstitch.rendezvous.launcher_store import LauncherStore
from lockstitch.rendezvous.launchers import meeting_url
from lockstitch.rendezvous.reaching import NOTICE_SECONDS, Address, say, wait_for_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lockstitch.launcher_link import LauncherClient

_PREFIX = "lockstitch"
# torch's word for "any number".
_ANY = -1


def open_store(
    init_method: str | Store,
    rank: int,
    world_size: int | None,
    timeout_seconds: float = 300.0,
) -> Store:
    """Opens the store that `init_method` names, or takes the given one.

    `env://`, `tcp://host:port` and `file://path` go through `torch.distributed.rendezvous`, to
    whose errors ("environment variable RANK expected, but not set", "No rendezvous handler") is
    added what to do; a file whose folder does not exist is a ValueError too. With `tcp://` and `env://`
    rank 0 hosts the store for as long as it keeps it; under `lockstitch run`, `env://` means a file
    of the launcher's or, where workers come and go, the store that it keeps for them: either
    outlives every worker. Where MASTER_ADDR and MASTER_PORT are not set, `env://` means what
    another launcher says (`launchers`).
    `world_size` None or 0 means a group that ranks join and leave; `rank` -1 means "not given".
    `timeout_seconds` is for reaching the store and for reading what should be there; torch's
    `DistError` tells that nobody was reached.
    """
    PRESENCE.meet_at(_key_of(init_method))
    timeout = timedelta(seconds=timeout_seconds)
    if isinstance(init_method, Store):
        store = init_method
    elif init_method.startswith("env://") and (path := _launchers_file()) is not None:
        store = FileStore(path, _ANY)
        store.set_timeout(timeout)
    elif init_method.startswith("env://") and (link := _link_to_launcher()) is not None:
        return LauncherStore(link, timeout_seconds)
    else:
        if init_method == "env://":
            init_method = meeting_url(os.environ) or init_method
        _check_folder(init_method)
        url = _with_members(init_method, rank, world_size)
        try:
            store = _open_by_torch(url, rank, timeout_seconds)
        except (ValueError, RuntimeError) as error:
            advised = _advised(error, init_method, rank)
            if advised is None:
                raise
            raise advised from None
        store.set_timeout(timeout)
    return PrefixStore(_PREFIX, store)


def another_client(store: Store) -> Store:
    """Returns another client of the same store, for what waits there: a store that waits for one
    thread answers no other."""
    with silence_bounded(_silence_seconds()):
        client: Store = store.clone()  # type: ignore[attr-defined]  # torch's stubs lack it
    return client


def _silence_seconds() -> float:
    return SILENT_SHARE * heartbeat_seconds(None, os.environ)


def _key_of(init_method: str | Store) -> str:
    """Returns what tells those who meet in a store from those who meet in another one, beside the
    environment."""
    if isinstance(init_method, str):
        parts = urlsplit(init_method)
        if parts.scheme == "env":
            return ""  # the environment says it all
        if parts.scheme == "tcp" and parts.hostname:
            return meeting_key(parts.hostname, parts.port or 0)
        return f"meeting {parts.path}"
    store = init_method
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, TCPStore):
        return meeting_key(store.host, store.port)
    if isinstance(store, FileStore):
        return f"meeting {store.path}"  # type: ignore[attr-defined]  # torch's stubs lack it
    return f"meeting {os.getpid()}"


def _open_by_torch(url: str, rank: int, timeout_seconds: float) -> Store:
    """Returns the store that torch's own handler opens, once there is one to reach."""
    timeout = timedelta(seconds=timeout_seconds)
    address, is_agents = _address_of(url)
    rank = rank if rank >= 0 or address is None else int(os.environ["RANK"])
    if address is not None and (rank != 0 or is_agents):
        wait_for_store(address, rank, timeout_seconds)
    elif address is not None:
        if stray := address.why_not_here():
            say(f"rank {rank} hosts the meeting, but others may not find it at {address}: {stray}")
        # torch would look for itself at a stray address until the time is over; and under torchrun
        # it takes every address for that of torchrun's store, so that nobody would host this one.
        if stray or _agent_hosts_stores():
            return _hosted("localhost" if stray else address.host, address.port, timeout)
    with silence_bounded(_silence_seconds()):
        store: Store = next(rendezvous(url, timeout=timeout))[0]
    return store


def _hosted(host: str, port: int, timeout: timedelta) -> Store:
    return TCPStore(
        host, port, is_master=True, timeout=timeout, wait_for_workers=False, multi_tenant=True
    )


def _address_of(url: str) -> tuple[Address | None, bool]:
    """Returns where the store is, and whether it is the one that torchrun hosts; None where torch
    has to say first what is missing."""
    told = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    parts = urlsplit(url)
    if parts.scheme == "env":
        host, port = told
        for name in ("rank", "world_size"):
            if f"{name}=" not in parts.query and not os.environ.get(name.upper(), "").isdecimal():
                return None, False
    elif parts.scheme == "tcp" and "rank=" in parts.query:
        host, port = parts.hostname or "", str(parts.port or "")
    else:
        return None, False
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        return None, False
    return Address(host, int(port)), _agent_hosts_stores() and (host, port) == told


def _agent_hosts_stores() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _advised(error: Exception, init_method: str, rank: int) -> Exception | None:
    """Returns an error of torch's with what to do about it; None where nothing is known."""
    if isinstance(error, DistNetworkError):
        if "EADDRINUSE" not in str(error):
            return None
        return type(error)(
            f"rank {rank} cannot host the meeting at {init_method}: another program listens at "
            f"that port. Choose another one, or end that program ({error})"
        )
    advice = _advice(init_method, str(error))
    return None if advice is None else type(error)(f"{error}. {advice}")


def _advice(init_method: str, text: str) -> str | None:
    """Returns what to do where torch says `text`; None where nothing is known."""
    if "environment variable" in text:
        return (
            "It is set by launchers: start the program by lockstitch run -n N, or by torchrun. "
            "Without one, give each worker its rank, world_size and a place to meet, such as "
            "init_method='tcp://127.0.0.1:29500'"
        )
    if "invalid literal for int()" in text:
        return "RANK, WORLD_SIZE and MASTER_PORT are numbers"
    if "No rendezvous handler" in text:
        return f"init_method is tcp://host:port, file:///path or env://, not {init_method!r}"
    return None


def host_of(store: Store) -> str | None:
    """Returns the host of a store, as it was named; None where it is on none (a file). Those who
    meet in a file of `lockstitch run`, or reach it by a unix socket, are on one host: then it is
    loopback."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, LauncherStore):
        kind, _, where = os.environ.get(ADDRESS, "").partition(":")
        return host_and_port(where)[0] if kind == "tcp" else LOOPBACK
    if isinstance(store, FileStore):
        # torch's stubs lack its path
        return LOOPBACK if store.path == _launchers_file() else None  # type: ignore[attr-defined]
    return store.host if isinstance(store, TCPStore) else None


def missing_keys(
    store: Store,
    keys: Sequence[str],
    timeout_seconds: float,
    notice: Callable[[list[str]], None] | None = None,
    *,
    notice_seconds: float = NOTICE_SECONDS,
    waiting: Store | None = None,
) -> list[str]:
    """Waits until all `keys` are set; returns those that are not when the time is over. After
    `notice_seconds`, `notice` is called once, with those that are not set yet. `waiting`: another
    client of the store that does nothing else, for who waits often; by default a new one. Raises
    torch's `DistNetworkError` where the store is lost meanwhile."""

    def missing() -> list[str]:
        return [key for key in keys if not store.check([key])]

    def tell() -> None:
        if notice is not None and (left := missing()):
            notice(left)

    # A store waits inside C++, lets no Ctrl-C through, and lets nobody else use it meanwhile.
    client = waiting or another_client(store)
    if _wait(client, keys, timeout_seconds, tell, notice_seconds):
        return []
    with losing_in_words():
        return missing()


@contextlib.contextmanager
def losing_in_words() -> Iterator[None]:
    """A context manager within which torch's error for a store that can be reached no more says so
    in words of ours."""
    try:
        yield
    except DistNetworkError as error:
        if isinstance(error.__cause__, DistNetworkError):  # it does already
            raise
        raise DistNetworkError(
            "the store where the ranks meet can be reached no more from host "
            f"{socket.gethostname()}: its host, mostly that of rank 0, is cut off, or whoever "
            f"holds it has ended ({str(error).partition(chr(10))[0]})"
        ) from error


def read_all(store: Store, keys: Sequence[str]) -> list[bytes]:
    """Returns the values of `keys`, all of which are set, by one request."""
    return list(store.multi_get(list(keys))) if keys else []


def _wait(
    client: Store,
    keys: Sequence[str],
    timeout_seconds: float,
    tell: Callable[[], None],
    tell_after_seconds: float,
) -> bool:
    # A thread waits, and we wait for the thread. After an interrupt it is left to its own timeout.
    outcome: list[bool] = []
    is_over = threading.Event()

    def wait() -> None:
        try:
            client.wait(list(keys), timedelta(seconds=timeout_seconds))
            outcome.append(True)
        except RuntimeError:  # of several types; whether it was the time, the caller looks
            outcome.append(False)
        finally:
            is_over.set()

    thread = threading.Thread(target=wait, name="lockstitch-rendezvous", daemon=True)
    thread.start()
    if not is_over.wait(tell_after_seconds):
        tell()
        is_over.wait()
    thread.join()
    return bool(outcome) and outcome[0]


def _launchers_file() -> str | None:
    """Returns the file of `lockstitch run`, unless somebody has named another store since: it bears
    the number of MASTER_PORT."""
    path = os.environ.get("LOCKSTITCH_STORE")
    is_ours = path is not None and os.path.basename(path) == os.environ.get("MASTER_PORT")
    return path if is_ours else None


def _link_to_launcher() -> LauncherClient | None:
    """Returns the link to a launcher that lets workers come and go, unless somebody has named
    another store since."""
    return None if "MASTER_ADDR" in os.environ else JOB.client()


def _check_folder(url: str) -> None:
    """Raises `ValueError` where the folder of a file store does not exist: torch would try again
    and again to open the file until its time is over."""
    parts = urlsplit(url)
    folder = os.path.dirname(parts.path)
    if parts.scheme == "file" and not parts.netloc and folder and not os.path.isdir(folder):
        raise ValueError(
            f"the workers cannot meet at {url}: there is no folder {folder!r}. The file is made by "
            "the first of them, its folder has to exist"
        )


def _with_members(url: str, rank: int, world_size: int | None) -> str:
    """Adds the rank to the URL, as `torch.distributed.rendezvous` does, and that the store is open
    to any number of ranks, which its public form cannot say.

    A store that counted its users would keep rank 0 waiting in C++ for those that do not come; who
    has to come is for `static_group` to say.
    """
    parts = urlsplit(url)
    members = {}
    if rank >= 0:
        members["rank"] = rank
    if parts.scheme != "env" or world_size:
        members["world_size"] = _ANY
    query = "&".join(filter(None, (parts.query, urlencode(members))))
    return parts._replace(query=query).geturl()
