"""Certificates of a job, made from its secret.

The key of the job's authority is derived from the secret, so every worker has the same authority
without having been given it, and nobody else has. Each worker issues a certificate to itself, for a
key that it has just made and that never leaves it. (Needs the extra `lockstitch[tls]`.)
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from lockstitch.trust.secret import Secret

_AUTHORITY = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a Lockstitch job")])
_WORKER = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "worker of a Lockstitch job")])
# The clocks of the workers may differ, and a job may take long.
_FROM = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
_UNTIL = datetime.datetime(2120, 1, 1, tzinfo=datetime.timezone.utc)


def authority_of(secret: Secret) -> str:
    """The certificate of the job's authority, as PEM."""
    key = _authority_key(secret)
    made = _build(_AUTHORITY, key, is_authority=True).serial_number(1).sign(key, None)
    return made.public_bytes(serialization.Encoding.PEM).decode()


def issue(secret: Secret) -> str:
    """A fresh key and a certificate for it by the job's authority, as PEM, in this order."""
    key = Ed25519PrivateKey.generate()
    made = (
        _build(_WORKER, key, is_authority=False)
        .serial_number(x509.random_serial_number())
        .sign(_authority_key(secret), None)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return (private + made.public_bytes(serialization.Encoding.PEM)).decode()


def _authority_key(secret: Secret) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(secret.derive("authority of certificates"))


def _build(
    subject: x509.Name, key: Ed25519PrivateKey, *, is_authority: bool
) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_AUTHORITY)
        .public_key(key.public_key())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
    )
