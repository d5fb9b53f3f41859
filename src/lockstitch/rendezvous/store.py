"""The key-value store through which workers find each other: torch's own, under our own prefix.

**Not authenticated**: whoever reaches the store can read and write it. It serves discovery only.

A file store is opened without a number of users, for with one it deletes its file when the last of
them is gone, while a process group or our own next life may be about to use it.
"""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from torch.distributed import DistError, FileStore  # type: ignore[attr-defined]  # not in its __all__
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    of the launcher's, which outlives every worker.
    `world_size` None or 0 means a group that ranks join and leave; `rank` -1 means "not given".
    `timeout_seconds` is for reaching the store and for reading what should be there; torch's
    `DistError` tells that nobody was reached.
    """
    timeout = timedelta(seconds=timeout_seconds)
    if isinstance(init_method, Store):
        store = init_method
    elif init_method.startswith("env://") and (path := _launchers_file()) is not None:
        store = FileStore(path, _ANY)
        store.set_timeout(timeout)
    else:
        _check_folder(init_method)
        url = _with_members(init_method, rank, world_size)
        try:
            store, _, _ = next(rendezvous(url, timeout=timeout))
        except DistError as error:
            raise type(error)(
                f"rank {rank} did not meet the others at {init_method} ({error}). Has each been "
                "started, and all with the same address?"
            ) from error
        except (ValueError, RuntimeError) as error:
            advice = _advice(init_method, str(error))
            if advice is None:
                raise
            raise type(error)(f"{error}. {advice}") from None
        store.set_timeout(timeout)
    return PrefixStore(_PREFIX, store)


def _advice(init_method: str, text: str) -> str | None:
    """What to do where torch says `text`."""
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


def missing_keys(store: Store, keys: Sequence[str], timeout_seconds: float) -> list[str]:
    """Waits until all `keys` are set; returns those that are not when the time is over."""
    if _wait(store, keys, timeout_seconds):
        return []
    return [key for key in keys if not store.check([key])]


def read_all(store: Store, keys: Sequence[str]) -> list[bytes]:
    """The values of `keys`, all of which are set, in one request."""
    return list(store.multi_get(list(keys))) if keys else []


def _wait(store: Store, keys: Sequence[str], timeout_seconds: float) -> bool:
    # A store waits inside C++, lets no Ctrl-C through, and lets nobody else use it meanwhile. So
    # a thread waits, with a client of its own, and we wait for the thread. After an interrupt it is
    # left to its own timeout.
    outcome: list[bool] = []
    is_over = threading.Event()
    client = store.clone()  # type: ignore[attr-defined]  # torch's stubs lack it

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
    is_over.wait()
    thread.join()
    return bool(outcome) and outcome[0]


def _launchers_file() -> str | None:
    """The file of `lockstitch run`, unless somebody has named another place to meet since: it bears
    the number of MASTER_PORT."""
    path = os.environ.get("LOCKSTITCH_STORE")
    is_ours = path is not None and os.path.basename(path) == os.environ.get("MASTER_PORT")
    return path if is_ours else None


def _check_folder(url: str) -> None:
    """PyTorch would try again and again to open the file until its time is over."""
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
