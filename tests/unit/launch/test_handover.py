"""A job gets a secret of its own, in a file that nobody else can read and that does not stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstitch.launch.handover import secret_for
from lockstitch.trust.secret import Secret, find_secret


def test_secret_lies_in_a_file_of_its_user_while_the_job_runs() -> None:
    with secret_for({"HOME": "/"}) as variables, secret_for({}) as others:
        path = Path(variables["LOCKSTITCH_SECRET_FILE"])
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert path.stat().st_mode & 0o777 == 0o600
        secret = find_secret(None, None, variables)
        assert isinstance(secret, Secret)
        assert secret != find_secret(None, None, others)
    assert not path.parent.exists()


@pytest.mark.parametrize("variable", ["LOCKSTITCH_SECRET", "LOCKSTITCH_SECRET_FILE"])
def test_secret_that_the_launcher_was_given_is_that_of_the_job(variable: str) -> None:
    with secret_for({variable: "given"}) as variables:
        assert variables == {}
