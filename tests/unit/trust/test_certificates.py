"""A job's certificates come from its secret: all workers have the same authority, nobody else."""

from __future__ import annotations

import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from lockstitch.trust import Secret
from lockstitch.trust.certificates import authority_of, issue

SECRET = Secret(bytes(range(32)))


def certificate(text: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(text[text.index("-----BEGIN CERT") :].encode())


def test_all_workers_have_the_same_authority_and_each_its_own_key() -> None:
    assert authority_of(SECRET) == authority_of(Secret(bytes(range(32))))
    authority = certificate(authority_of(SECRET))
    one, other = certificate(issue(SECRET)), certificate(issue(SECRET))
    for each in (one, other):
        each.verify_directly_issued_by(authority)
    assert one.public_key() != other.public_key()
    assert one.serial_number != other.serial_number


def test_another_job_has_another_authority() -> None:
    stranger = certificate(issue(Secret.make()))
    with pytest.raises(InvalidSignature):
        stranger.verify_directly_issued_by(certificate(authority_of(SECRET)))


def test_worker_cannot_sign_for_others() -> None:
    constraints = certificate(issue(SECRET)).extensions.get_extension_for_class(
        x509.BasicConstraints
    )
    assert not constraints.value.ca


def test_secret_is_not_in_what_is_shown() -> None:
    shown = authority_of(SECRET) + issue(SECRET)
    assert SECRET.text()[:16] not in shown
