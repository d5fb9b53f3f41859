"""The rules of TLS: version 1.3, and each end shows a certificate."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("cryptography")

from lockstitch.trust import Secret
from lockstitch.trust.certificates import authority_of, issue
from lockstitch.trust.tls import TlsFiles, contexts_of_files, contexts_of_job

if TYPE_CHECKING:
    from pathlib import Path

SECRET = Secret(bytes(range(32)))


def test_both_ends_ask_for_a_certificate() -> None:
    made = contexts_of_job(SECRET)
    for context in (made.calling, made.listening):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_3
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert len(context.get_ca_certs()) == 1


def test_certificates_may_be_the_users_own(tmp_path: Path) -> None:
    own, authority = tmp_path / "own.pem", tmp_path / "authority.pem"
    own.write_text(issue(SECRET))
    authority.write_text(authority_of(SECRET))
    made = contexts_of_files(TlsFiles(own, own, authority))
    assert made.calling.get_ca_certs() == contexts_of_job(SECRET).calling.get_ca_certs()
    with pytest.raises(OSError, match="No such file"):
        contexts_of_files(TlsFiles(tmp_path / "missing", own, authority))
