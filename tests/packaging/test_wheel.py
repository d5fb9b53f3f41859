"""The wheel as a user gets it: installed into a fresh environment, used outside of the checkout,
and taken away again.

torch and the other requirements are found where these tests have them, by a line in a `.pth` file;
nothing but the wheel is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Environment:
    """A fresh virtual environment, and a folder to work in that has only the examples."""

    def __init__(self, folder: Path) -> None:
        self._bin = folder / "venv" / "bin"
        self.work = folder / "work"
        shutil.copytree(ROOT / "examples", self.work / "examples")
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        self.site = Path(self.says("python", "-c", "import site; print(site.getsitepackages()[0])"))

    def says(self, command: str, *arguments: object, **variables: str) -> str:
        """What the command prints; it must end well."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LOCKSTITCH"))}
        done = subprocess.run(
            [self._bin / command, *map(str, arguments)],
            cwd=self.work,
            env={**kept, "PATH": f"{self._bin}:{kept['PATH']}", **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def files(self) -> set[Path]:
        """All that is installed, and the commands."""
        return {
            path.relative_to(self._bin.parent)
            for folder in (self.site, self._bin)
            for path in folder.rglob("*")
            if "__pycache__" not in path.parts
        }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT]
    subprocess.run(command, check=True)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With the wheel, and the way to its requirements."""
    environment = Environment(tmp_path_factory.mktemp("installed"))
    environment.says("python", "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    (environment.site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


def test_uninstalling_leaves_nothing(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    before = environment.files()
    environment.says("python", "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    added = {path.name for path in environment.files() - before}
    assert {"lockstitch", "horovodrun", "lockstitch_replace.pth", "py.typed"} <= added
    environment.says("python", "-m", "pip", "uninstall", "--quiet", "--yes", "lockstitch")
    assert environment.files() == before
    environment.says("python", "-c", "print()", LOCKSTITCH_REPLACE="torch-rpc")


def test_the_command_helps_and_runs_the_installed_package(installed: Environment) -> None:
    where = installed.says("python", "-c", "import lockstitch; print(lockstitch.__file__)")
    assert Path(where).is_relative_to(installed.site)
    assert "doctor" in installed.says("lockstitch", "--help")
    assert "PROGRAM" in installed.says("horovodrun", "--help").partition("\n")[0]
    libraries = installed.says("lockstitch", "doctor", OMP_NUM_THREADS="1")
    assert "torch" in libraries
    assert "WRONG" not in libraries


def test_examples_and_the_demo_run_outside_of_the_checkout(installed: Environment) -> None:
    run = ["-m", "lockstitch", "run", "-n", 2]
    output = installed.says("python", *run, "examples/two_tensors.py")
    assert output.count("all ones: True") == 2
    assert installed.says("horovodrun", "-np", 2, "examples/hvd_digits.py")
    assert installed.says("python", "examples/digits/train.py")


def test_programs_get_ours_from_the_start_of_python(installed: Environment) -> None:
    program = "import torch.distributed.rpc as rpc; print(rpc.rpc_sync.__module__)"
    assert "lockstitch" not in installed.says("python", "-c", program)
    assert "lockstitch" in installed.says("python", "-c", program, LOCKSTITCH_REPLACE="torch-rpc")


def test_a_strict_type_checker_passes_a_users_program(installed: Environment) -> None:
    pytest.importorskip("mypy")
    program = installed.work / "program.py"
    shutil.copy(ROOT / "tests" / "packaging" / "program.py", program)
    assert "Success" in installed.says("python", "-m", "mypy", "--strict", program)
