"""Saving and loading with all workers of the group: one asks, each does its own part.

Save: each worker writes what it has registered; when all have, the manifest says so.
Load: each reads and checks what it has registered; when all have, each puts it in place.

So a failure in the first half leaves everything as it was, on the disk as in the workers.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lockstitch.checkpoint.registry import CheckpointRegistry
from lockstitch.checkpoint.shards import (
    Shard,
    read_manifest,
    read_shard,
    remove_files,
    write_manifest,
    write_shard,
)
from lockstitch.errors import LockstitchError, SerializationError
from lockstitch.optim.update_lock import UpdateLock
from lockstitch.rpc import get_worker_infos, rpc_async
from lockstitch.rpc.constants import UNSET_RPC_TIMEOUT
from lockstitch.runtime.worker import current_worker
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from lockstitch.ids import WorkerInfo

T = TypeVar("T")


class CheckpointError(LockstitchError):
    """A checkpoint cannot be saved, or does not fit what is registered."""


def save(path: str | os.PathLike[str], *, timeout: float = UNSET_RPC_TIMEOUT) -> None:
    """Saves what all workers of the group have registered into the folder `path`, in place of the
    checkpoint that it may hold.

    Each worker's part is what it was when that worker wrote it, between two optimizer steps: if all
    shall be of one moment, call this when nobody trains. One worker saves at a time. `timeout`:
    seconds for each worker, 0 for none, by default that of calls. Raises `CheckpointError` when
    nothing is registered, or one name on several workers; otherwise what went wrong first: a worker
    that died, a disk that is full, a `TypeError` that names what cannot be saved. The former
    checkpoint is then still there, whole.
    """
    folder = Path(path).absolute()
    owners = _owners(timeout)
    if not owners:
        raise CheckpointError("there is nothing to save: no worker has registered anything")
    folder.mkdir(parents=True, exist_ok=True)
    attempt = uuid.uuid4().hex
    workers = _by_worker(owners)
    try:
        shards = _on_each(workers, _write, lambda _: (str(folder), attempt), timeout)
        write_manifest(folder, [Shard(*shard) for shard in shards.values()])
    except BaseException:
        remove_files(folder, save=attempt)
        raise


def load(
    path: str | os.PathLike[str], *, strict: bool = True, timeout: float = UNSET_RPC_TIMEOUT
) -> None:
    """Gives what all workers have registered the states that were saved under the same names,
    whichever workers those were on.

    `strict`: what is registered and what was saved must be the same; else what only one of them has
    is left alone. `timeout` as in `save`. Raises `FileNotFoundError` where there is no checkpoint;
    `CheckpointError` for names that are missing or too many; `ValueError` for damaged files and
    shapes that do not fit; nothing has then been changed. What a `load_state_dict` raises after
    that is raised too, with a note of the worker.
    """
    folder = Path(path).absolute()
    shards = read_manifest(folder)
    saved = {name: shard for shard in shards for name in shard.names}
    owners = _owners(timeout)
    if strict:
        _check_same(saved, owners)
    workers = _by_worker({name: owner for name, owner in owners.items() if name in saved})
    attempt = uuid.uuid4().hex

    def parts(info: WorkerInfo) -> tuple[str, str, list[tuple[Any, ...]]]:
        mine = workers[info]
        files = {saved[name].file: saved[name] for name in mine}
        wanted = [
            (*_fields(shard), tuple(name for name in mine if saved[name] is shard))
            for shard in files.values()
        ]
        return str(folder), attempt, wanted

    try:
        _on_each(workers, _read, parts, timeout)
        _on_each(workers, _put_back, lambda _: (attempt,), timeout)
    except BaseException:
        _on_each(workers, _forget, lambda _: (attempt,), timeout, raises=False)
        raise


def names(path: str | os.PathLike[str]) -> dict[str, str]:
    """Returns what a checkpoint holds: each name, with the worker that owned it. Needs no group.
    Raises `FileNotFoundError`, or `ValueError` for what is no checkpoint."""
    shards = read_manifest(Path(path))
    return {name: shard.worker for shard in shards for name in shard.names}


# ---------------------------------------------------------------- who has what


def _owners(timeout: float) -> dict[str, WorkerInfo]:
    """Asks all workers; returns who has registered each name."""
    members = {info: [] for info in get_worker_infos()}  # type: ignore[var-annotated]
    owners: dict[str, WorkerInfo] = {}
    for info, registered in _on_each(members, _names, lambda _: (), timeout).items():
        for name in registered:
            if name in owners:
                both = f"{owners[name].name!r} and {info.name!r}"
                raise CheckpointError(f"{name!r} is registered on two workers, {both}")
            owners[name] = info
    return owners


def _by_worker(owners: Mapping[str, WorkerInfo]) -> dict[WorkerInfo, list[str]]:
    workers: dict[WorkerInfo, list[str]] = {}
    for name, info in owners.items():
        workers.setdefault(info, []).append(name)
    return workers


def _check_same(saved: Mapping[str, Shard], owners: Mapping[str, WorkerInfo]) -> None:
    missing = [f"{name!r} ({owners[name].name})" for name in owners if name not in saved]
    excess = [f"{name!r} (of {saved[name].worker})" for name in saved if name not in owners]
    if missing or excess:
        raise CheckpointError(
            "the checkpoint does not fit what is registered"
            + ("" if not missing else f"; it lacks {', '.join(missing)}")
            + ("" if not excess else f"; nobody has registered {', '.join(excess)}")
            + ". With strict=False what both have is loaded"
        )


def _fields(shard: Shard) -> tuple[str, int, str, str, tuple[str, ...]]:
    """Returns the shard as plain values, which cross in a group with a registry, too."""
    return shard.file, shard.bytes, shard.sha256, shard.worker, shard.names


def _on_each(
    workers: Mapping[WorkerInfo, list[str]],
    function: Callable[..., T],
    arguments: Callable[[WorkerInfo], tuple[Any, ...]],
    timeout: float,
    *,
    raises: bool = True,
) -> dict[WorkerInfo, T]:
    """Runs a function on each of the workers, all at once; raises the first error after all have
    ended."""
    futures = {info: rpc_async(info, function, arguments(info), None, timeout) for info in workers}
    results: dict[WorkerInfo, T] = {}
    first: Exception | None = None
    for info, future in futures.items():
        try:
            results[info] = future.wait()
        except Exception as error:  # noqa: BLE001 - raised below, after the others have ended
            first = first or error
    if first is not None and raises:
        raise first
    return results


# ---------------------------------------------------------------- on each worker


@needed
def _names() -> list[str]:
    return CheckpointRegistry.of(current_worker()).names()


@needed
def _write(folder: str, attempt: str) -> tuple[Any, ...]:
    worker = current_worker()
    _check_allowed(save, "write")
    states = CheckpointRegistry.of(worker).states()
    # Copied while no optimizer steps on this worker.
    shard = write_shard(Path(folder), attempt, worker.name, states, UpdateLock.of(worker))
    return _fields(shard)


@needed
def _read(folder: str, attempt: str, wanted: list[tuple[Any, ...]]) -> None:
    _check_allowed(load, "read")
    registry = CheckpointRegistry.of(current_worker())
    states: dict[str, Any] = {}
    for *fields, mine in wanted:
        states.update(read_shard(Path(folder), Shard(*fields), mine))
    registry.check_fit(states)
    registry.pending[attempt] = states


def _check_allowed(function: Callable[..., object], verb: str) -> None:
    """Raises `SerializationError` where peers may not have this worker use files of their choice:
    where a registry is, and does not hold `save` or `load`."""
    allowed = current_worker().agent.allowed
    if allowed is not None and not allowed.holds(function):
        raise SerializationError(
            f"peers may not have this worker {verb} files (registry=True): allow it there by "
            f"lockstitch.rpc.register(lockstitch.checkpoint.{function.__name__})"
        )


@needed
def _put_back(attempt: str) -> None:
    registry = CheckpointRegistry.of(current_worker())
    registry.put_back(registry.pending.pop(attempt))


@needed
def _forget(attempt: str) -> None:
    CheckpointRegistry.of(current_worker()).pending.pop(attempt, None)
