"""Saving and loading with all workers of the group: one asks, each does its own part.

Save: each worker copies what it has registered, and writes the copy; when all have, the manifest
says so.
Load: each reads and checks what it has registered; when all have, each puts it in place.

So a failure in the first half leaves everything as it was, on the disk as in the workers.
"""

from __future__ import annotations

import contextlib
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from lockstitch.checkpoint.parts import (
    copy_parts,
    is_in_parts,
    owners_of,
    put_parts_back,
    read_parts,
)
from lockstitch.checkpoint.registry import (
    CheckpointError,
    CheckpointRegistry,
    register_here_or_there,
    state_of,
    unregister,
)
from lockstitch.checkpoint.shards import (
    Shard,
    fetch,
    read_manifest,
    read_shard,
    remove_failed,
    write_manifest,
    write_shard,
)
from lockstitch.checkpoint.storage import open_folder
from lockstitch.checkpoint.structure import copy_states
from lockstitch.errors import SerializationError, add_note
from lockstitch.optim.owners import ask_each
from lockstitch.rpc import get_worker_info, get_worker_infos, rpc_async
from lockstitch.rpc.constants import UNSET_RPC_TIMEOUT
from lockstitch.runtime.worker import current_worker
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from lockstitch.checkpoint.storage import Folder
    from lockstitch.ids import WorkerInfo
    from lockstitch.optim.local import LocalOptimizer
    from lockstitch.rpc import RRef
    from lockstitch.runtime.pending import Future

T = TypeVar("T")
Wanted = tuple[Shard, tuple[str, ...]]
"""A file, and the names of what is to be read of it."""


def save(
    path: str | os.PathLike[str],
    things: Mapping[str, object] | None = None,
    *,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> None:
    """Saves what all workers of the group have registered into the folder `path`, in place of the
    checkpoint that it may hold.

    `things`: only these, by name, which need not be registered: `{"model": model, "optimizer":
    optimizer, "scheduler": scheduler}`. `path` may be an address that `fsspec` reaches, such as
    "s3://bucket/folder". Each worker's part is what it was when that worker copied it, between two
    optimizer steps: if all shall be of one moment, call this when nobody trains. `timeout`: seconds
    for each worker, 0 for none, by default that of calls.

    Raises `CheckpointError` when there is nothing to save, one name is on several workers, or a
    save into that folder is under way; what `register` raises; otherwise what went wrong first: a
    worker that died, a disk that is full, a `TypeError` that names what cannot be saved. There is
    then a whole checkpoint all the same: the former one, unless the new one was there already.
    """
    _finish(*_begin(path, things, timeout))


def save_async(
    path: str | os.PathLike[str],
    things: Mapping[str, object] | None = None,
    *,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> Future[None]:
    """As `save`, but returns as soon as each worker has copied its part in memory; it is written
    while the training goes on. The future is done when the checkpoint is there; its `wait` raises
    what went wrong."""
    begun = _begin(path, things, timeout)
    # A call to oneself: `shutdown` waits for it.
    return rpc_async(get_worker_info(), _finish_later, begun, None, 0)


def load(
    path: str | os.PathLike[str],
    things: Mapping[str, object] | None = None,
    *,
    strict: bool = True,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> None:
    """Gives what all workers have registered the states that were saved under the same names,
    whichever workers those were on.

    `things`: only these, as in `save`. `strict`: these and what was saved must be the same; else
    what only one of them has is left alone. `timeout` as in `save`. Raises `FileNotFoundError`
    where there is no checkpoint; `CheckpointError` for names that are missing or too many;
    `ValueError` for damaged files and shapes that do not fit; nothing has then been changed. What a
    `load_state_dict` raises after that is raised too, with a note of the worker.
    """
    folder = open_folder(path)
    shards = read_manifest(folder)
    saved = {name: shard for shard in shards for name in shard.names}
    with _registered(things):
        owners = _owners(things, timeout)
        if strict:
            _check_same(saved, owners)
        present = {name: owner for name, owner in owners.items() if name in saved}
        _read_and_put_back(folder, shards, _by_worker(present), timeout)


def _read_and_put_back(
    folder: Folder,
    shards: list[Shard],
    workers: Mapping[WorkerInfo, list[str]],
    timeout: float,
) -> None:
    attempt = uuid.uuid4().hex
    saved = {name: shard for shard in shards for name in shard.names}

    def parts(info: WorkerInfo) -> tuple[str, str, list[Wanted], list[Shard]]:
        mine = workers[info]
        files = {saved[name].file: saved[name] for name in mine}
        wanted = [
            (shard, tuple(name for name in mine if saved[name] is shard))
            for shard in files.values()
        ]
        return folder.address, attempt, wanted, shards

    try:
        _on_each(workers, _read, parts, timeout)
        _on_each(workers, _put_back, lambda _: (attempt,), timeout)
    except BaseException:
        _forget_everywhere(attempt, timeout)
        raise


def names(path: str | os.PathLike[str]) -> dict[str, str]:
    """Returns what a checkpoint holds: each name, with the worker that owned it. Needs no group.
    Raises `FileNotFoundError`, or `ValueError` for what is no checkpoint."""
    shards = read_manifest(open_folder(path))
    return {name: shard.worker for shard in shards for name in shard.names}


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns all states of a checkpoint by name, as `state_dict()` gave them, on the CPU. Needs no
    group: it is the way out of a checkpoint, into `torch.save`, say. Raises `FileNotFoundError`, or
    `ValueError` for what is damaged or no checkpoint."""
    folder = open_folder(path)
    states: dict[str, Any] = {}
    shards = read_manifest(folder)
    for shard in shards:
        states.update(read_shard(folder, shard, shard.names))
    found: dict[str, Any] = fetch(folder, shards, states)
    return found


def write(path: str | os.PathLike[str], states: Mapping[str, object]) -> None:
    """Makes a checkpoint of states by name, which `load` gives to whoever has registered these
    names. Needs no group: it is the way in. Raises `TypeError` for what a checkpoint cannot hold,
    `CheckpointError` where there is nothing; the former checkpoint is then still there."""
    if not states:
        raise CheckpointError("there is nothing to save: no states were given")
    folder = open_folder(path)
    copy = copy_states(states)
    folder.create()
    write_manifest(folder, [write_shard(folder, uuid.uuid4().hex, "nobody", copy)])


# ---------------------------------------------------------------- the halves of a save


Begun = tuple[str, str, list["WorkerInfo"], float]
"""A save whose states are copied: the folder's address, the attempt, the workers, the timeout."""


def _begin(
    path: str | os.PathLike[str], things: Mapping[str, object] | None, timeout: float
) -> Begun:
    """Has each worker copy its part."""
    folder, attempt = open_folder(path), uuid.uuid4().hex
    registry = CheckpointRegistry.of(current_worker())
    if not registry.begin_save(folder.address):
        raise CheckpointError(
            f"a save into {folder.address} is under way: wait for its future before the next"
        )
    try:
        with _registered(things):
            workers = _by_worker(_owners(things, timeout))
            if not workers:
                raise CheckpointError("there is nothing to save: no worker has registered anything")
            others = _on_each(workers, _copy, lambda info: (attempt, workers[info]), timeout)
    except BaseException:
        registry.end_save(folder.address)
        _forget_everywhere(attempt, timeout)
        raise
    writing = {info.name for info in workers}.union(*others.values())
    infos = [info for info in get_worker_infos() if info.name in writing]
    return folder.address, attempt, infos, timeout


@needed
def _finish_later(address: str, attempt: str, workers: list[WorkerInfo], timeout: float) -> None:
    _check_allowed(save, "write")
    try:
        _finish(address, attempt, workers, timeout)
    except Exception as error:
        add_note(error, f"while a checkpoint was being saved into {address}")
        raise


def _finish(address: str, attempt: str, workers: list[WorkerInfo], timeout: float) -> None:
    """Has each worker write what it has copied, and makes a checkpoint of that."""
    folder = open_folder(address)
    try:
        folder.create()
        shards = _on_each(workers, _write, lambda _: (address, attempt), timeout)
        write_manifest(folder, shards.values())
    except BaseException:
        _forget_everywhere(attempt, timeout)
        with contextlib.suppress(OSError):  # the next save removes them
            remove_failed(folder, attempt)
        raise
    finally:
        CheckpointRegistry.of(current_worker()).end_save(address)


@contextlib.contextmanager
def _registered(things: Mapping[str, object] | None) -> Iterator[None]:
    """Within, these are registered too."""
    added: list[str] = []
    try:
        for name, thing in (things or {}).items():
            if register_here_or_there(name, thing):
                added.append(name)
        yield
    finally:
        for name in added:
            unregister(name)


# ---------------------------------------------------------------- who has what


def _owners(only: Collection[str] | None, timeout: float) -> dict[str, WorkerInfo]:
    """Asks all workers; returns who has registered each name, of all or `only` some."""
    owners: dict[str, WorkerInfo] = {}
    answers = _on_each(get_worker_infos(), _names, lambda _: (), timeout)
    for info, registered in answers.items():
        for name in registered:
            if only is not None and name not in only:
                continue
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


def _on_each(
    workers: Iterable[WorkerInfo],
    function: Callable[..., T],
    arguments: Callable[[WorkerInfo], tuple[Any, ...]],
    timeout: float,
    *,
    raises: bool = True,
) -> dict[WorkerInfo, T]:
    """Runs a function on each of the workers, all at once; raises the first error after all have
    ended."""
    outcomes = ask_each(((info, function, arguments(info)) for info in workers), timeout)
    for outcome in outcomes:
        if outcome.error is not None and raises:
            raise outcome.error
    return {each.owner: cast("T", each.value) for each in outcomes if each.error is None}


def _forget_everywhere(attempt: str, timeout: float) -> None:
    """Has all workers drop what an attempt that has failed has left there."""
    _on_each(get_worker_infos(), _forget, lambda _: (attempt,), timeout, raises=False)


# ---------------------------------------------------------------- on each worker


@needed
def _names() -> list[str]:
    return CheckpointRegistry.of(current_worker()).names()


@needed
def _copy(attempt: str, wanted: list[str]) -> list[str]:
    """Returns the names of the workers that have copied parts of it."""
    registry = CheckpointRegistry.of(current_worker())
    states: dict[str, Any] = {}
    others: set[str] = set()
    for name, thing in registry.things(wanted).items():
        if is_in_parts(thing):
            states[name] = copy_parts(thing, attempt, name)
            others.update(owners_of(thing))
        else:
            states[name] = state_of(thing)
    registry.copy(attempt, states, own=wanted)
    return sorted(others)


@needed
def _write(address: str, attempt: str) -> Shard:
    worker = current_worker()
    _check_allowed(save, "write")
    copy = CheckpointRegistry.of(worker).take_copy(attempt)
    return write_shard(open_folder(address), attempt, worker.name, copy)


@needed
def _read(address: str, attempt: str, wanted: list[Wanted], shards: list[Shard]) -> None:
    _check_allowed(load, "read")
    registry, folder = CheckpointRegistry.of(current_worker()), open_folder(address)
    states: dict[str, Any] = {}
    for shard, mine in wanted:
        states.update(read_shard(folder, shard, mine))
    registry.pending[attempt] = states
    for name, thing in registry.things(states).items():
        if is_in_parts(thing):
            arguments = (address, shards, attempt, name)
            find = partial(fetch, folder, shards)
            states[name] = read_parts(thing, states[name], find, _read_part, arguments)
        else:
            states[name] = fetch(folder, shards, states[name])
    registry.check_fit(states)


@needed
def _read_part(
    _reference: RRef[LocalOptimizer],
    part: dict[str, Any],
    address: str,
    shards: list[Shard],
    attempt: str,
    name: str,
) -> None:
    _check_allowed(load, "read")
    found = fetch(open_folder(address), shards, part)
    CheckpointRegistry.of(current_worker()).keep_part(attempt, name, found)


def _check_allowed(function: Callable[..., object], verb: str) -> None:
    """Raises `SerializationError` where peers may not have this worker use files of their choice:
    where a registry is, and does not hold `function`, which is `save` or `load`."""
    allowed = current_worker().agent.allowed
    if allowed is not None and not allowed.holds(function):
        raise SerializationError(
            f"peers may not have this worker {verb} files (registry=True): allow it there by "
            f"lockstitch.rpc.register(lockstitch.checkpoint.{function.__name__})"
        )


@needed
def _put_back(attempt: str) -> None:
    registry = CheckpointRegistry.of(current_worker())
    states = registry.pending.pop(attempt)
    in_parts = {
        name: thing for name, thing in registry.things(states).items() if is_in_parts(thing)
    }
    registry.put_back({name: state for name, state in states.items() if name not in in_parts})
    for name, thing in in_parts.items():
        put_parts_back(thing, attempt, name, states[name])


@needed
def _forget(attempt: str) -> None:
    CheckpointRegistry.of(current_worker()).forget(attempt)
