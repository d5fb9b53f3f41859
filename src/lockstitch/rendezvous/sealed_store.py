"""A store into which others can write, read so that what they have written is refused.

Each value is written with a seal before it: a MAC by the job's secret over the key and the value.
What bears none is refused, so a poisoned store can keep workers from finding each other but cannot
send one to a stranger. A value that was true before may be put back in its place: it then names an
earlier life of a worker, and who answers in its name fails the handshake. Counters are not sealed:
they only number things.
"""

from __future__ import annotations

import hmac
import socket
from typing import TYPE_CHECKING, Any, Final

from torch.distributed.distributed_c10d import Store

from lockstitch.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from lockstitch.trust.secret import Secret

_SEAL_DIGITS: Final = 32


class SealedStore(Store):
    """The given store, with its values sealed by `secret`. An empty value stays empty: it says that
    there is nothing."""

    def __init__(self, store: Store, secret: Secret) -> None:
        super().__init__()
        self._store: Any = store
        self._secret = secret
        self._key = secret.derive("store")

    def __repr__(self) -> str:
        return f"<SealedStore over {self._store!r}>"

    def set(self, key: str, value: str | bytes) -> None:
        self._store.set(key, self._sealed(key, value))

    def get(self, key: str) -> bytes:
        return self._opened(key, self._store.get(key))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        values = self._store.multi_get(list(keys))
        return [self._opened(key, value) for key, value in zip(keys, values, strict=True)]

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        expected, desired = self._sealed(key, expected), self._sealed(key, desired)
        return self._opened(key, self._store.compare_set(key, expected, desired))

    def add(self, key: str, amount: int) -> int:
        return int(self._store.add(key, amount))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._store.check(list(keys)))

    def delete_key(self, key: str) -> bool:
        return bool(self._store.delete_key(key))

    def wait(self, keys: Sequence[str], *timeout: timedelta) -> None:
        self._store.wait(list(keys), *timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)

    def clone(self) -> SealedStore:
        """Returns another client of the same store."""
        return SealedStore(self._store.clone(), self._secret)

    def _sealed(self, key: str, value: str | bytes) -> str:
        text = value if isinstance(value, str) else value.decode()
        return self._seal(key, text.encode()) + text if text else ""

    def _opened(self, key: str, sealed: bytes) -> bytes:
        seal, value = sealed[:_SEAL_DIGITS], sealed[_SEAL_DIGITS:]
        if not sealed or hmac.compare_digest(seal, self._seal(key, value).encode()):
            return bytes(value)
        raise RemoteProtocolError(
            f"the store's entry {key!r} was not written by a worker that has the secret of this "
            f"one, on host {socket.gethostname()}: workers were given different secrets "
            "(LOCKSTITCH_SECRET or LOCKSTITCH_SECRET_FILE), an old one perhaps, or none; or a "
            "stranger writes into the store"
        )

    def _seal(self, key: str, value: bytes) -> str:
        said = len(key).to_bytes(4, "big") + key.encode() + value
        return hmac.digest(self._key, said, "sha256").hex()[:_SEAL_DIGITS]


def sealed_by(secret: Secret | None, store: Store) -> Store:
    """Returns `store` as workers with that secret use it; as it is where there is no secret."""
    return store if secret is None else SealedStore(store, secret)
