"""The secret proves and derives, and shows itself nowhere."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

from lockstitch.trust.secret import Secret, find_secret, flaw_of, hkdf

KEY = bytes(range(32))
TEXT = KEY.hex()


@pytest.mark.parametrize(
    ("key", "salt", "info", "expected"),
    [  # RFC 5869, appendix A, test cases 1 to 3: their first block
        (
            b"\x0b" * 22,
            bytes(range(13)),
            bytes(range(0xF0, 0xFA)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf",
        ),
        (
            bytes(range(0x50)),
            bytes(range(0x60, 0xB0)),
            bytes(range(0xB0, 0x100)),
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c",
        ),
        (
            b"\x0b" * 22,
            b"",
            b"",
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d",
        ),
    ],
)
def test_keys_are_derived_as_the_standard_says(
    key: bytes, salt: bytes, info: bytes, expected: str
) -> None:
    assert hkdf(key, salt, info).hex() == expected


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
    for mode in (0o660, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(PermissionError, match=f"mode is 0{mode:o}.*0600"):
            Secret.from_file(path)


USER, POD, STAFF = 1000, 2000, 50


def status(mode: int, user: int, group: int) -> os.stat_result:
    return os.stat_result((0o100000 | mode, 0, 0, 1, user, group, 65, 0, 0, 0))


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o640])
def test_file_that_root_gives_to_a_pods_group_is_for_the_pod(mode: int) -> None:
    assert flaw_of(status(mode, 0, POD), USER, {USER, POD}) == ""
    assert flaw_of(status(mode, 0, POD), 0, {0, POD}) == ""


@pytest.mark.parametrize(
    ("mode", "user", "group", "flaw"),
    [
        (0o440, 0, STAFF, "can be read by group 50 .*in which this process is not.*fsGroup"),
        (0o640, USER, POD, "can be read or written by group 2000 .*0640.*set its mode to 0600"),
        (0o460, 0, POD, "written by others than its user .*0460"),
        (0o444, 0, POD, "written by others than its user .*0444"),
        (0o600, USER + 1, POD, "belongs to user 1001, not to the user of this process, 1000"),
        (0o440, USER + 1, POD, "belongs to user 1001"),
    ],
)
def test_file_that_others_could_read_or_change_is_refused(
    mode: int, user: int, group: int, flaw: str
) -> None:
    assert re.search(flaw, flaw_of(status(mode, user, group), USER, {USER, POD}))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to a group")
def test_pod_of_another_user_reads_what_is_mounted_for_its_group() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder, "secret")
        Secret(KEY).write(path)
        os.chown(path, 0, POD)
        path.chmod(0o440)
        program = (
            "import os, sys; from lockstitch.trust.secret import Secret\n"
            f"os.setgroups([int(sys.argv[1])]); os.setegid({USER}); os.seteuid({USER})\n"
            "try: print(len(Secret.from_file(sys.argv[2]).text()))\n"
            "except PermissionError as error: print(error)"
        )

        def says(group: int) -> str:
            command = [sys.executable, "-c", program, str(group), str(path)]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout

        assert says(POD) == "64\n"
        assert "Permission denied" in says(STAFF)  # the kernel's word


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
    with pytest.raises(FileNotFoundError, match=r"cannot be read on host .*missing"):
        find_secret(None, tmp_path / "missing", {})
