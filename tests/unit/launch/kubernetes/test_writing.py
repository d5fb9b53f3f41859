"""A manifest is YAML that says the same as its objects, whatever stands in them."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from lockstitch.launch.kubernetes.kinds import objects_of
from lockstitch.launch.kubernetes.workload import Kind, Workload
from lockstitch.launch.kubernetes.writing import manifest, secret_command
from lockstitch.trust.secret import Secret


def workload(kind: Kind = Kind.JOB, *words: str, **more: Any) -> Workload:
    return Workload(kind, "digits", 4, "train:1", words, **more)


@pytest.mark.parametrize("kind", list(Kind))
def test_what_is_written_is_read_as_what_was_meant(kind: Kind) -> None:
    meant = workload(kind, "python", "train.py", cpu="2", memory="8Gi", gpus=1, namespace="team")
    assert list(yaml.safe_load_all(manifest(meant))) == objects_of(meant)


@given(words=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), max_size=4))
@example(["\x85", "\u2028", "é"])
def test_any_command_survives(words: list[str]) -> None:
    meant = workload(Kind.JOB, *words)
    assert list(yaml.safe_load_all(manifest(meant))) == objects_of(meant)


def test_it_begins_with_how_the_secret_is_made_and_does_not_hold_it() -> None:
    meant = workload(namespace="team", secret_name="digits.shared")
    first, _, third, *_ = manifest(meant).splitlines()
    assert "make one first" in first
    assert third == f"#   {secret_command(meant)}"
    making, _, giving = secret_command(meant).partition(" | ")
    assert making == "lockstitch secret"
    assert shlex.split(giving) == [
        *("kubectl", "create", "secret", "generic", "digits.shared"),
        *("--from-file=secret=/dev/stdin", "--namespace", "team"),
    ]


def test_what_kubectl_reads_is_a_secret() -> None:
    text = Secret.make().text() + "\n"  # as `lockstitch secret` prints it
    assert Secret.from_text(text).text() == text.strip()
