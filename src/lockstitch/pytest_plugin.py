"""What pytest gets from Lockstitch, wherever both are installed: fixtures, and an option.

    lockstitch_cluster     starts workers in this process, and closes them after the test
    lockstitch_processes   the same as processes of their own
    lockstitch_faults      a script of mishaps for the cluster of this test
    lockstitch_no_leaks    the test fails if it leaves threads, processes, sockets … behind

    pytest --lockstitch-replace torch-rpc,horovod,data-parallel

puts Lockstitch in the place of what the tests import (`lockstitch.replace`). A test run that uses
none of this pays nothing for it: torch is not imported here.
"""

from __future__ import annotations

import importlib
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from lockstitch.replacement import parse_names, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.testing import Faults, LocalCluster, ProcessCluster


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--lockstitch-replace`."""
    parser.getgroup("lockstitch").addoption(
        "--lockstitch-replace",
        metavar="NAMES",
        help="put Lockstitch in the place of these libraries: "
        "torch-rpc, horovod, data-parallel (with commas between), or all",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Replaces before any test module is imported; undone when pytest is done."""
    text = config.getoption("--lockstitch-replace")
    if text:
        try:
            names = parse_names(text)
        except ValueError as error:
            raise pytest.UsageError(f"--lockstitch-replace: {error}") from error
        config.add_cleanup(replace(*names).undo)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Says what is replaced."""
    text = config.getoption("--lockstitch-replace")
    return f"lockstitch in the place of: {', '.join(parse_names(text))}" if text else None


@pytest.fixture
def lockstitch_faults() -> Faults:
    """A script of mishaps, still empty, which `lockstitch_cluster` follows."""
    faults: Faults = _testing().Faults()
    return faults


@pytest.fixture
def lockstitch_cluster(request: pytest.FixtureRequest) -> Iterator[Callable[..., LocalCluster]]:
    """A function with the parameters of `lockstitch.testing.LocalCluster`. What it starts is closed
    after the test."""
    with ExitStack() as clusters:

        def start(*args: Any, **options: Any) -> LocalCluster:
            if "lockstitch_faults" in request.fixturenames:
                options.setdefault("faults", request.getfixturevalue("lockstitch_faults"))
            cluster: LocalCluster = _testing().LocalCluster(*args, **options)
            return clusters.enter_context(cluster)

        yield start


@pytest.fixture
def lockstitch_processes() -> Iterator[Callable[..., ProcessCluster]]:
    """A function with the parameters of `lockstitch.testing.ProcessCluster`. What it starts is
    ended after the test."""
    with ExitStack() as clusters:

        def start(*args: Any, **options: Any) -> ProcessCluster:
            cluster: ProcessCluster = _testing().ProcessCluster(*args, **options)
            return clusters.enter_context(cluster)

        yield start


@pytest.fixture
def lockstitch_no_leaks() -> Iterator[None]:
    """Nothing is left behind by the test, nor by the fixtures that come after this one."""
    with _testing().no_leaks():
        yield


def _testing() -> Any:
    return importlib.import_module("lockstitch.testing")
