"""What workers ask of the store while they start: requests, bytes, and steps that wait for each
other."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from torch.distributed import HashStore

from lockstitch.rendezvous import join, missing_keys

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_JOIN_SECONDS = 100.0
_WRITES = ("set", "add", "compare_set")
_READS = ("wait", "get", "multi_get")
_NUMBER_BYTES = 8


@dataclass(frozen=True)
class Asked:
    """Of a store, by some workers together."""

    requests: int = 0
    bytes: int = 0
    """In keys and values, there and back."""
    depth: int = 0
    """Requests and answers in the longest chain of which each had to wait for the one before."""

    def __add__(self, other: Asked) -> Asked:
        return Asked(
            self.requests + other.requests,
            self.bytes + other.bytes,
            max(self.depth, other.depth),
        )


class StoreTally:
    """The count of one store; several threads may ask it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.keys: Counter[str] = Counter()
        self._bytes = self._depth = 0
        self._written: dict[str, int] = {}

    def note_request(self, method: str, keys: list[str], nbytes: int, depth: int) -> None:
        """Somebody asks, at that depth."""
        with self._lock:
            self.requests[method] += 1
            self.keys[method] += len(keys)
            self._bytes += nbytes
            if method in _WRITES:
                for key in keys:
                    self._written.setdefault(key, depth)

    def note_answer(self, method: str, keys: list[str], nbytes: int, depth: int) -> int:
        """The answer to a request at `depth`; returns its own. Who wants keys gets it after the
        last of them has been written."""
        with self._lock:
            if method in _READS:
                depth = max([depth, *(self._written.get(key, 0) for key in keys)])
            self._bytes += nbytes
            self._depth = max(self._depth, depth + 1)
            return depth + 1

    @property
    def asked(self) -> Asked:
        """The count as of now."""
        with self._lock:
            return Asked(self.requests.total(), self._bytes, self._depth)


class CountingStore:
    """`store` as one worker asks it, with `tally` counting; clones count with it."""

    def __init__(self, store: Store, tally: StoreTally, depth: list[int] | None = None) -> None:
        self._store = store
        self._tally = tally
        self._depth = [0] if depth is None else depth

    def clone(self) -> CountingStore:
        return CountingStore(self._store.clone(), self._tally, self._depth)  # type: ignore[attr-defined]

    def __getattr__(self, method: str) -> Any:
        ask = getattr(self._store, method)

        def count(*arguments: Any) -> Any:
            keys = arguments[0] if isinstance(arguments[0], list) else [arguments[0]]
            depth = self._depth[0] + 1
            self._tally.note_request(method, keys, sum(map(size_of, arguments)), depth)
            answer = ask(*arguments)
            self._depth[0] = self._tally.note_answer(method, keys, size_of(answer), depth)
            return answer

        return count


def size_of(value: object) -> int:
    """Bytes of what is asked or answered; numbers and times count as eight."""
    if value is None:
        return 0
    if isinstance(value, (bytes, str)):
        return len(value)
    return sum(map(size_of, value)) if isinstance(value, list) else _NUMBER_BYTES


def count_start(size: int) -> StoreTally:
    """So many workers join, each in a thread of this process. Raises RuntimeError."""
    store, tally = HashStore(), StoreTally()

    def come(rank: int) -> None:
        address = f"unix:{rank:08}"
        counting: Any = CountingStore(store, tally)
        roster = join(counting, f"worker{rank:04}", rank, size, [address], _JOIN_SECONDS)
        assert len(roster.members()) == size

    # Who waits long asks which others are missing. Here that would count how busy the machine is.
    patient = patch.dict(missing_keys.__kwdefaults__, notice_seconds=_JOIN_SECONDS)
    with patient, ThreadPoolExecutor(size) as threads:
        list(threads.map(come, range(size)))  # which raises what one of them has raised
    return tally
