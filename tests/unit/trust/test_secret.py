"""The secret proves and derives, and shows itself nowhere."""

from __future__ import annotations

import pickle
import traceback
from typing import TYPE_CHECKING

import pytest

from lockstitch.trust.secret import Secret, find_secret, hkdf

if TYPE_CHECKING:
    from pathlib import Path

KEY = bytes(range(32))
TEXT = KEY.hex()


@pytest.mark.parametrize(
    ("key", "salt", "info", "length", "expected"),
    [  # RFC 5869, appendix A, test cases 1 to 3
        (
            b"\x0b" * 22,
            bytes(range(13)),
            bytes(range(0xF0, 0xFA)),
            42,
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            bytes(range(0x50)),
            bytes(range(0x60, 0xB0)),
            bytes(range(0xB0, 0x100)),
            82,
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c"
            "59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71"
            "cc30c58179ec3e87c14c01d5c1f3434f1d87",
        ),
        (
            b"\x0b" * 22,
            b"",
            b"",
            42,
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
)
def test_keys_are_derived_as_the_standard_says(
    key: bytes, salt: bytes, info: bytes, length: int, expected: str
) -> None:
    assert hkdf(key, salt, info, length).hex() == expected


def test_each_purpose_and_context_has_its_own_key() -> None:
    secret = Secret(KEY)
    keys = [
        secret.derive("proof"),
        secret.derive("store"),
        secret.derive("session", b"one"),
        secret.derive("session", b"two"),
        Secret.make().derive("proof"),
    ]
    assert len(set(keys)) == len(keys)
    assert secret.derive("proof") == Secret(KEY).derive("proof")


def test_secret_shows_itself_nowhere() -> None:
    secret = Secret(KEY)
    shown = [repr(secret), str(secret), f"{secret}", f"{[secret]!r}"]
    with pytest.raises(TypeError) as refused:
        pickle.dumps(secret)
    shown.append(str(refused.value))
    for wrong in (TEXT + "00", TEXT[:-1] + "x", TEXT[:-1]):
        with pytest.raises(ValueError, match="64 hexadecimal digits") as refused:
            Secret.from_text(wrong)
        shown.append("".join(traceback.format_exception(refused.value)))
    with pytest.raises(ValueError, match="not 31") as refused:
        Secret(KEY[:-1])
    shown.append(str(refused.value))
    assert not any(TEXT[:16] in each or repr(KEY)[:16] in each for each in shown)


def test_secret_is_equal_to_itself_alone() -> None:
    assert Secret(KEY) == Secret.from_text(f" {TEXT}\n")
    assert hash(Secret(KEY)) == hash(Secret.from_text(TEXT))
    assert Secret(KEY) != Secret.make()
    assert Secret(KEY) != KEY


def test_file_is_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    Secret(KEY).write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Secret.from_file(path) == Secret(KEY)
    with pytest.raises(FileExistsError):
        Secret.make().write(path)
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(PermissionError, match="0600"):
            Secret.from_file(path)


def test_secret_is_found_in_the_options_before_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    Secret(KEY).write(path)
    other = Secret.make()
    assert find_secret(None, None, {}) is None
    assert find_secret(None, None, {"LOCKSTITCH_SECRET": "", "LOCKSTITCH_SECRET_FILE": ""}) is None
    assert find_secret(None, None, {"LOCKSTITCH_SECRET": TEXT}) == Secret(KEY)
    assert find_secret(None, None, {"LOCKSTITCH_SECRET_FILE": str(path)}) == Secret(KEY)
    assert find_secret(TEXT, None, {"LOCKSTITCH_SECRET_FILE": "nowhere"}) == Secret(KEY)
    assert find_secret(other, None, {"LOCKSTITCH_SECRET": TEXT}) == other
    assert find_secret(None, path, {"LOCKSTITCH_SECRET": other.text()}) == Secret(KEY)
    with pytest.raises(ValueError, match="given twice"):
        find_secret(other, path, {})
    with pytest.raises(FileNotFoundError):
        find_secret(None, tmp_path / "missing", {})
