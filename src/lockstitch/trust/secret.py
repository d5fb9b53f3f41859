"""The secret of a job: 32 random bytes that all its workers have, and nobody else.

It is never used itself but for deriving a key for each purpose (HKDF, RFC 5869), so that what one
use might betray is of no help against another. It does not show itself: not in `repr`, not in an
error, not in a pickle. Whoever needs it as text, to hand it over, asks for exactly that.
"""

from __future__ import annotations

import binascii
import hmac
import os
import platform
import stat
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

SECRET_BYTES: Final = 32
VARIABLE: Final = "LOCKSTITCH_SECRET"
FILE_VARIABLE: Final = "LOCKSTITCH_SECRET_FILE"

_OTHERS: Final = stat.S_IWGRP | stat.S_IRWXO
_ROOT: Final = 0
_LONGEST_FILE: Final = 4096


class Secret:
    """The secret of a job. Raises `ValueError` unless `key` has 32 bytes."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) != SECRET_BYTES:
            raise ValueError(f"a job's secret has {SECRET_BYTES} bytes, not {len(key)}")
        self._key = bytes(key)

    @classmethod
    def make(cls) -> Secret:
        """A fresh one, from the system's source of randomness."""
        return cls(os.urandom(SECRET_BYTES))

    @classmethod
    def from_text(cls, text: str) -> Secret:
        """Reads what `text` wrote: 64 hexadecimal digits. Raises `ValueError` for anything else,
        without repeating it."""
        try:
            return cls(binascii.unhexlify(text.strip()))
        except ValueError:
            length = len(text.strip())
        raise ValueError(
            f"a job's secret is {2 * SECRET_BYTES} hexadecimal digits, but what was given, of "
            f"{length} characters, is not: `lockstitch secret` makes one"
        )

    @classmethod
    def from_file(cls, path: str | Path) -> Secret:
        """Reads it from a file that belongs to this user, or to root, and that nobody else may read
        or write; but for this process's own group, where root lets it read the file. So Kubernetes
        mounts a Secret for the `fsGroup` of a pod: it belongs to root, with mode 0440.

        Raises `PermissionError` where somebody else may, `OSError` where there is no such file.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            where = f"the secret's file cannot be read on host {platform.node()}"
            raise type(error)(error.errno, f"{where}: {error.strerror}", str(path)) from None
        with os.fdopen(descriptor, "rb") as file:
            flaw = flaw_of(os.fstat(file.fileno()), os.geteuid(), {os.getegid(), *os.getgroups()})
            if flaw:
                raise PermissionError(f"the secret's file {path} {flaw}")
            return cls.from_text(file.read(_LONGEST_FILE).decode("ascii", "replace"))

    def write(self, path: str | Path) -> None:
        """Writes it into a new file of mode 0600. Raises `FileExistsError` where there is one."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(self.text() + "\n")

    def text(self) -> str:
        """The secret itself, as 64 hexadecimal digits: only for handing it over."""
        return self._key.hex()

    def derive(self, purpose: str, context: bytes = b"") -> bytes:
        """A key of 32 bytes for one purpose, and, where given, one context of it."""
        return hkdf(self._key, b"lockstitch", purpose.encode() + b"\0" + context)

    def of(self, purpose: str, context: bytes = b"") -> Secret:
        """Returns a secret for handshakes of one kind: whoever proves to have it in one of them
        proves nothing in another."""
        return Secret(self.derive(purpose, context))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._key, other._key)

    def __hash__(self) -> int:
        return hash(self.derive("hash"))

    def __repr__(self) -> str:
        return "<Secret>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a job's secret does not travel: hand it over by environment or file")


def flaw_of(status: os.stat_result, user: int, groups: Collection[int]) -> str:
    """Returns why a file with that status cannot hold the secret of a process of that user and
    those groups, and what to do; empty where it can."""
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (user, _ROOT):
        return (
            f"belongs to user {status.st_uid}, not to the user of this process, {user}: make it "
            "this user's own, with mode 0600"
        )
    if mode & _OTHERS:
        readers = "others than its user"
    elif mode & stat.S_IRGRP and status.st_uid != _ROOT:
        readers = f"group {status.st_gid}"
    elif mode & stat.S_IRGRP and status.st_gid not in groups:
        return (
            f"can be read by group {status.st_gid} (its mode is {mode:04o}), in which this process "
            "is not: set its mode to 0600, or in a pod fsGroup to that group"
        )
    else:
        return ""
    return (
        f"can be read or written by {readers} (its mode is {mode:04o}): set its mode to 0600, and "
        "make another secret if others may have seen this one"
    )


def hkdf(key: bytes, salt: bytes, info: bytes) -> bytes:
    """HKDF with SHA-256: extract, then expand, to 32 bytes, which is one block (RFC 5869)."""
    extracted = hmac.digest(salt or bytes(sha256().digest_size), key, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def find_secret(
    given: Secret | str | None,
    file: str | Path | None,
    environment: Mapping[str, str],
) -> Secret | None:
    """The secret that the program gives, else that of the environment; None where there is none.

    Raises `ValueError` where one is given twice or is no secret, `PermissionError` and `OSError` as
    `Secret.from_file` does.
    """
    if given is None and file is None:
        given, file = environment.get(VARIABLE) or None, environment.get(FILE_VARIABLE) or None
    if given is not None and file is not None:
        raise ValueError(
            f"the job's secret is given twice: leave out one of secret= ({VARIABLE}) and "
            f"secret_file= ({FILE_VARIABLE})"
        )
    if file is not None:
        return Secret.from_file(file)
    return Secret.from_text(given) if isinstance(given, str) else given
