"""A checkpoint on disk: a folder with a *shard*, one file, of each worker that owned something, and
a manifest.

    manifest.json                 {"format": 1, "shares": [{file, bytes, sha256, worker, names}]}
    <save>-<worker>.safetensors   the tensors; what is plain, as JSON in the file's own header

A state whose tensors several workers own is in the file of one, and names those of the others.

Files are written beside those of the former checkpoint and flushed to the disk; then the manifest
is replaced, in one step. So the folder holds the former checkpoint until it holds the new one,
whole, and a file that no manifest names is nothing. Size and digest tell whether a file is the one
that was written.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import safetensors
from safetensors.torch import save_file

from lockstitch.checkpoint.structure import decode, fill
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import torch

    from lockstitch.checkpoint.storage import Folder
    from lockstitch.checkpoint.structure import Copy, Stored

_MANIFEST = "manifest.json"
_SUFFIX = ".safetensors"
_OURS = re.compile(rf"[0-9a-f]{{32}}-.*{re.escape(_SUFFIX)}")  # written by `write_shard`
_FORMAT = 1
_HEADER_KEY = "lockstitch"


@needed
@dataclass(frozen=True, slots=True)
class Shard:
    """One worker's file: what is in it, and what tells that it is whole."""

    file: str
    bytes: int
    sha256: str
    worker: str
    names: tuple[str, ...]


def write_shard(folder: Folder, save: str, worker: str, copy: Copy) -> Shard:
    """Writes what was copied of the states of a worker; `save` is the hexadecimal name of a UUID.
    Raises `OSError`."""
    name = f"{save}-{quote(worker, safe='')}{_SUFFIX}"
    told: list[tuple[int, str]] = []

    def write(path: Path) -> None:
        save_file(copy.tensors, path, metadata={_HEADER_KEY: json.dumps(copy.plain)})
        told.append((path.stat().st_size, _digest(path)))

    folder.write(name, write)
    return Shard(name, *told[0], worker, tuple(copy.plain))


def read_shard(folder: Folder, shard: Shard, names: Iterable[str]) -> dict[str, Any]:
    """Returns the states of these names, with a `Stored` for what is in other files. Raises
    `ValueError` when the file is not the one that was written, `OSError` when there is none."""
    with _opened(folder, shard) as file:
        plain = json.loads(file.metadata()[_HEADER_KEY])
        # What a state has in two places is one tensor again, here and in `fetch`.
        return {name: decode(plain[name], functools.cache(file.get_tensor)) for name in names}


def fetch(folder: Folder, shards: Iterable[Shard], state: Any) -> Any:
    """Returns the state with the tensors in place of each `Stored`, from these shards. Raises what
    `read_shard` does, and `ValueError` for what is in none of them."""
    by_worker = {shard.worker: shard for shard in shards}
    with contextlib.ExitStack() as stack:
        files: dict[str, Any] = {}

        @functools.cache
        def tensor(stored: Stored) -> torch.Tensor:
            file = files.get(stored.worker)
            if file is None:
                shard = by_worker.get(stored.worker)
                if shard is None:
                    raise ValueError(
                        f"{folder.address} has no file of worker {stored.worker!r}, in which "
                        f"{stored.key} should be"
                    )
                file = files[stored.worker] = stack.enter_context(_opened(folder, shard))
            found: torch.Tensor = file.get_tensor(stored.key)
            return found

        return fill(state, tensor)


@contextlib.contextmanager
def _opened(folder: Folder, shard: Shard) -> Iterator[Any]:
    with folder.opened(shard.file) as path:
        if path.stat().st_size != shard.bytes or _digest(path) != shard.sha256:
            raise ValueError(
                f"{folder.address}/{shard.file} is not the file that was saved: it was damaged, or "
                "cut off"
            )
        with safetensors.safe_open(path, framework="pt") as file:
            yield file


def write_manifest(folder: Folder, shards: Iterable[Shard]) -> None:
    """Makes these files the checkpoint, and removes those of the former one. Raises
    `FileNotFoundError` where another save has removed any of them meanwhile."""
    shards = list(shards)
    gone = {shard.file for shard in shards}.difference(folder.names())
    if gone:
        raise FileNotFoundError(
            f"another save into {folder.address} has ended meanwhile, and removed "
            f"{', '.join(sorted(gone))}: save into it one at a time"
        )
    text = json.dumps({"format": _FORMAT, "shares": [asdict(shard) for shard in shards]}, indent=1)
    folder.replace(_MANIFEST, text)
    with contextlib.suppress(OSError):  # they are nothing now, and the next save removes them
        _remove_files(folder, but={shard.file for shard in shards})


def read_manifest(folder: Folder) -> list[Shard]:
    """Returns what the checkpoint consists of. Raises `FileNotFoundError` where there is none, and
    `ValueError` where it is of another format."""
    try:
        with folder.opened(_MANIFEST) as path:
            text = path.read_text()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"there is no checkpoint in {folder.address}: it has no {_MANIFEST}"
        ) from error
    try:
        manifest = json.loads(text)
        if manifest["format"] != _FORMAT:
            raise ValueError(f"its format is {manifest['format']}, not {_FORMAT}")
        return [Shard(**{**shard, "names": tuple(shard["names"])}) for shard in manifest["shares"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder.address}/{_MANIFEST} is no manifest of a checkpoint: {error}"
        ) from error


def remove_failed(folder: Folder, save: str) -> None:
    """Removes the files of a save that has failed, unless they have become the checkpoint before.
    Raises `OSError`."""
    try:
        kept = {shard.file for shard in read_manifest(folder)}
    except (FileNotFoundError, ValueError):
        kept = set()
    _remove_files(folder, but=kept, save=save)


def _remove_files(folder: Folder, *, but: set[str], save: str = "") -> None:
    """Removes the files of a save, or of all, `but` some; never what others have put there."""
    for name in folder.names():
        if name.startswith(save) and _OURS.fullmatch(name) and name not in but:
            folder.remove(name)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return digest.hexdigest()
