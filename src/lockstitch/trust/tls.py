"""What two workers need to speak TLS with each other: certificates, and the rules.

TLS 1.3 only, and mutual: each end shows a certificate by the same authority. Names in certificates
are not looked at; who a worker is, is said and proved inside, by the handshake of the job.
"""

from __future__ import annotations

import importlib
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.trust.secret import Secret


@dataclass(frozen=True)
class TlsFiles:
    """A worker's own certificate and key, and the authority that has signed those of all: names of
    files in PEM. Whoever has a certificate by that authority belongs to the job, as far as TLS is
    concerned: let it sign for nobody else."""

    certificate: str | Path
    key: str | Path
    authority: str | Path


@dataclass(frozen=True, repr=False)
class TlsContexts:
    """The rules for each end of a connection."""

    calling: ssl.SSLContext
    listening: ssl.SSLContext


def contexts_of_files(files: TlsFiles) -> TlsContexts:
    """Makes the contexts from the user's own certificates. Raises `OSError` for files that cannot
    be read, `ssl.SSLError` for those that are none."""

    def prepare(context: ssl.SSLContext) -> None:
        context.load_cert_chain(files.certificate, files.key)
        context.load_verify_locations(files.authority)

    return TlsContexts(_context(prepare, calling=True), _context(prepare, calling=False))


def contexts_of_job(secret: Secret) -> TlsContexts:
    """Makes the contexts from certificates that are made for the job out of its secret. Raises
    `ImportError` where the extra `lockstitch[tls]` is not installed."""
    try:
        certificates = importlib.import_module("lockstitch.trust.certificates")
    except ImportError as error:
        raise ImportError(
            "tls=True makes certificates for the job, for which `cryptography` is needed: install "
            "lockstitch[tls], or give certificates of your own (tls=TlsFiles(...))"
        ) from error
    authority: str = certificates.authority_of(secret)
    # The standard library takes keys from files only. This one is gone at once.
    with tempfile.TemporaryDirectory(prefix="lockstitch-") as directory:
        path = Path(directory) / "own.pem"
        path.touch(mode=0o600)
        path.write_text(certificates.issue(secret))

        def prepare(context: ssl.SSLContext) -> None:
            context.load_cert_chain(path)
            context.load_verify_locations(cadata=authority)

        return TlsContexts(_context(prepare, calling=True), _context(prepare, calling=False))


def _context(prepare: Callable[[ssl.SSLContext], None], *, calling: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if calling else ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if not calling:
        context.num_tickets = 0  # nobody resumes a session
    prepare(context)
    return context
