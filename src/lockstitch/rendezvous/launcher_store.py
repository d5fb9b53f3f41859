"""The store at the launcher, for workers that come and go: it outlives each of them, and is reached
over the link that they have to the launcher anyway, which proves who talks and seals what is said.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import Store

from lockstitch.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from lockstitch.launcher_link import LauncherClient

_PAUSE_SECONDS: Final = 0.05
# Each byte is one character, so that any value can be written as text.
_ENCODING: Final = "latin-1"


class LauncherStore(Store):
    """The store that the launcher at the other end of `link` keeps. All methods raise
    `BoardLostError` where the launcher is gone; `get` and `wait` raise `DistStoreError` where a
    key is not set in time."""

    def __init__(
        self, link: LauncherClient, timeout_seconds: float, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__()
        self._link = link
        self._timeout_seconds = timeout_seconds
        self._clock = clock

    def __repr__(self) -> str:
        return f"<LauncherStore over {self._link!r}>"

    def set(self, key: str, value: str | bytes) -> None:
        self._link.ask_store("set", key, _text(value))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return (self._link.ask_store("get", key) or "").encode(_ENCODING)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        found = self._link.ask_store("compare_set", key, _text(desired), _text(expected))
        return (found or "").encode(_ENCODING)

    def add(self, key: str, amount: int) -> int:
        return int(self._link.ask_store("add", key, str(amount)) or 0)

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._link.ask_store("get", key) is not None for key in keys)

    def delete_key(self, key: str) -> bool:
        return self._link.ask_store("delete", key) is not None

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        seconds = self._timeout_seconds if timeout is None else timeout.total_seconds()
        deadline = self._clock.now() + seconds
        while not self.check(keys):
            if self._clock.now() >= deadline:
                missing = [key for key in keys if not self.check([key])]
                raise DistStoreError(f"nobody has set {missing} within {seconds:g} s")
            self._clock.wait(threading.Event(), _PAUSE_SECONDS)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_seconds = timeout.total_seconds()

    def clone(self) -> LauncherStore:
        """Returns another client of the same store."""
        return LauncherStore(self._link, self._timeout_seconds, self._clock)


def _text(value: str | bytes) -> str:
    return (value.encode() if isinstance(value, str) else value).decode(_ENCODING)
