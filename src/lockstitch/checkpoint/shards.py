"""A checkpoint on disk: a folder with a *shard*, one file, of each worker that owned something, and
a manifest.

    manifest.json                 {"format": 1, "shares": [{file, bytes, sha256, worker, names}]}
    <save>-<worker>.safetensors   the tensors; what is plain, as JSON in the file's own header

Files are written beside those of the former checkpoint and flushed to the disk; then the manifest
is replaced, in one step. So the folder holds the former checkpoint until it holds the new one,
whole, and a file that no manifest names is nothing. Size and digest tell whether a file is the one
that was written.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import safetensors
from safetensors.torch import save_file

from lockstitch.checkpoint.structure import Encoder, decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_MANIFEST = "manifest.json"
_SUFFIX = ".safetensors"
_FORMAT = 1
_HEADER_KEY = "lockstitch"
_NO_LOCK: AbstractContextManager[object] = nullcontext()


@dataclass(frozen=True, slots=True)
class Shard:
    """One worker's file: what is in it, and what tells that it is whole."""

    file: str
    bytes: int
    sha256: str
    worker: str
    names: tuple[str, ...]


def write_shard(
    folder: Path,
    save: str,
    worker: str,
    states: Mapping[str, object],
    lock: AbstractContextManager[object] = _NO_LOCK,
) -> Shard:
    """Writes the states of a worker, which are copied under `lock`. Raises `TypeError` for what
    cannot be written, and `OSError`."""
    encoder = Encoder()
    with lock:
        plain = {name: encoder.encode(state, name) for name, state in states.items()}
    path = folder / f"{save}-{worker.replace(':', '_')}{_SUFFIX}"
    save_file(encoder.tensors, path, metadata={_HEADER_KEY: json.dumps(plain)})
    _flush(path)
    return Shard(path.name, path.stat().st_size, _digest(path), worker, tuple(states))


def read_shard(folder: Path, shard: Shard, names: Iterable[str]) -> dict[str, Any]:
    """Returns the states of these names. Raises `ValueError` when the file is not the one that was
    written, `OSError` when there is none."""
    path = folder / shard.file
    if path.stat().st_size != shard.bytes or _digest(path) != shard.sha256:
        raise ValueError(f"{path} is not the file that was saved: it was damaged, or cut off")
    with safetensors.safe_open(path, framework="pt") as file:
        plain = json.loads(file.metadata()[_HEADER_KEY])
        return {name: decode(plain[name], file.get_tensor) for name in names}


def write_manifest(folder: Path, shards: Iterable[Shard]) -> None:
    """Makes these files the checkpoint, and removes those of the former one."""
    shards = list(shards)
    text = json.dumps({"format": _FORMAT, "shares": [asdict(shard) for shard in shards]}, indent=1)
    fresh = folder / f".{_MANIFEST}.{os.getpid()}"
    fresh.write_text(text)
    _flush(fresh)
    fresh.replace(folder / _MANIFEST)
    _flush(folder)
    remove_files(folder, but={shard.file for shard in shards})


def read_manifest(folder: Path) -> list[Shard]:
    """Returns what the checkpoint consists of. Raises `FileNotFoundError` where there is none, and
    `ValueError` where it is of another format."""
    path = folder / _MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint in {folder}: it has no {_MANIFEST}")
    try:
        manifest = json.loads(path.read_text())
        if manifest["format"] != _FORMAT:
            raise ValueError(f"its format is {manifest['format']}, not {_FORMAT}")
        return [Shard(**{**shard, "names": tuple(shard["names"])}) for shard in manifest["shares"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no manifest of a checkpoint: {error}") from error


def remove_files(folder: Path, *, but: Iterable[str] = (), save: str = "") -> None:
    """Removes the files of a save, or of all, `but` some."""
    kept = set(but)
    for path in folder.glob(f"{save}*{_SUFFIX}"):
        if path.name not in kept:
            path.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return digest.hexdigest()


def _flush(path: Path) -> None:
    """Has the kernel write a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
