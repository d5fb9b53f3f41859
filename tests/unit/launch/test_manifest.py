"""`lockstitch manifest k8s`: the command and its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml
from typer.testing import CliRunner

from lockstitch.launch.cli import app

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["manifest", "k8s", *arguments])


def command_in(text: str) -> list[str] | None:
    *_, job = yaml.safe_load_all(text)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container.get("command")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), None),
        (("--command", "python train.py --note 'two words'"), "python train.py --note|two words"),
        (("python", "train.py", "--kind", "resnet"), "python train.py --kind resnet"),
        (("--", "python", "train.py"), "python train.py"),
        (("--command", "python", "train.py", "-n", "3"), "python train.py -n 3"),
    ],
)
def test_command_stands_in_one_argument_or_behind_the_options(
    arguments: tuple[str, ...], words: str | None
) -> None:
    done = run("--workers", "4", "--image", "train:1", *arguments)
    assert done.exit_code == 0
    found = command_in(done.output)
    if words is None:
        assert found is None
    else:
        before, _, last = words.partition("|")
        assert found == [*before.split(), *filter(None, [last])]


def test_manifest_is_written_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "digits.yaml"
    given = ("-n", "2", "--image", "train:1", "--name", "digits")
    assert run(*given, "-o", str(path)).output == ""
    assert path.read_text() == run(*given).output
    refused = run(*given, "-o", str(tmp_path / "none" / "digits.yaml"))
    assert refused.exit_code == 2
    assert "for --output: cannot write" in refused.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--image", "train:1"), "Missing option"),
        (("-n", "4"), "Missing option '--image'"),
        (("-n", "0", "--image", "train:1"), "for --workers: 0 is not in the range"),
        (("-n", "4", "--image", "train:1", "--name", "My_Job"), "for --name: 'My_Job' cannot"),
        (("-n", "4", "--image", "train:1", "--kind", "pod"), "'pod' is not one of"),
        (("-n", "4", "--image", "train:1", "--command", "'a"), "for --command"),
        (("-n", "4", "--image", "train:1", "--memory", "8"), "Do you mean 8Gi?"),
    ],
)
def test_bad_options_are_named(arguments: tuple[str, ...], words: str) -> None:
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert words in " ".join(refused.output.split())
