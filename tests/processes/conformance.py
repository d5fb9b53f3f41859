"""Runs torch's own tests of its backends, which are in its wheel, with a backend of one's choice.

    python -m tests.processes.conformance lockstitch [name …]

Each test gets four ranks of its own, forked from here, so that torch is imported once. The tests
believe that they test Gloo, the anchor: so they leave out what another backend is needed for, and
expect what Gloo does; only the name of the backend is the real one. It needs `expecttest`, as
torch's tests do.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import multiprocessing
import os
import socket
import sys
import tempfile
import traceback
import unittest
import warnings
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest import mock

from torch import distributed

import lockstitch.c10d  # noqa: F401 - makes the backend known

SIZE = 4
_SECONDS = 30.0
_COMMON = "torch.testing._internal"
_MODULE = f"{_COMMON}.distributed.distributed_test"


class Outcome(enum.Enum):
    """How a test ended."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"


class Conformance:
    """torch's tests, for one backend."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._folder = tempfile.TemporaryDirectory(prefix="lockstitch-")
        common: Any = importlib.import_module(f"{_COMMON}.common_distributed")
        with (
            mock.patch.dict(os.environ, self._environment(self._folder.name)),
            # It skips tests of sub-groups below eight ranks, of which three are enough.
            mock.patch.object(common, "skip_if_small_worldsize", lambda test: test),
        ):
            self._module: Any = importlib.import_module(_MODULE)
        self._reasons = {skip.exit_code: skip.message for skip in common.TEST_SKIPS.values()}
        bases = (self._module.TestDistBackend, self._module.DistributedTest._DistTestBase)
        self._tests: Any = type("Tests", bases, {})

    def _environment(self, folder: str) -> dict[str, str]:
        """What torch's module reads, at once or later."""
        for name in ("barrier", "test_dir", "init_dir"):
            (Path(folder) / name).mkdir(exist_ok=True)
        return {
            "BACKEND": "gloo",
            "WORLD_SIZE": str(SIZE),
            "TEMP_DIR": folder,
            "MASTER_ADDR": "127.0.0.1",
            "INIT_METHOD": f"file://{folder}/begun_again",
        }

    def names(self) -> list[str]:
        """All tests."""
        return [name for name in dir(self._tests) if name.startswith("test_")]

    def run(self, name: str) -> tuple[Outcome, str]:
        """Runs one test; how it ended, and what the first rank to fail says."""
        context = multiprocessing.get_context("fork")
        port = _free_port()
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            ranks = []
            for rank in range(SIZE):
                near, far = context.Pipe()
                process = context.Process(target=self._live, args=(name, rank, folder, port, far))
                process.start()
                far.close()
                ranks.append((process, near))
            try:
                return self._outcome([near for _, near in ranks])
            finally:
                for process, near in ranks:
                    process.kill()
                    process.join()
                    near.close()

    def _outcome(self, pipes: list[Connection]) -> tuple[Outcome, str]:
        left, outcome = list(pipes), (Outcome.PASSED, "")
        while left:
            ready = wait(left, _SECONDS)
            if not ready:
                return Outcome.FAILED, f"{len(left)} ranks say nothing"
            for pipe in ready:
                assert isinstance(pipe, Connection)
                left.remove(pipe)
                try:
                    found = pipe.recv()
                except EOFError:
                    found = (Outcome.FAILED, "a rank died")
                if found[0] is Outcome.FAILED:
                    return found  # the others may wait for this one
                outcome = found if found[0] is Outcome.SKIPPED else outcome
        return outcome

    def _live(self, name: str, rank: int, folder: str, port: int, pipe: Connection) -> None:
        warnings.simplefilter("ignore")
        os.environ.update(self._environment(folder), RANK=str(rank), MASTER_PORT=str(port))
        output = os.open(os.devnull, os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            self._run_as(name, rank, folder)
        except unittest.SkipTest as reason:
            pipe.send((Outcome.SKIPPED, str(reason)))
        except SystemExit as end:
            reason = self._reasons.get(end.code, f"exit code {end.code}")
            pipe.send((Outcome.SKIPPED, reason) if end.code else (Outcome.PASSED, ""))
        except BaseException as error:  # noqa: BLE001 - told to who has asked
            where = traceback.extract_tb(error.__traceback__)
            lines = [f"{Path(each.filename).name}:{each.lineno}" for each in where[-4:]]
            pipe.send((Outcome.FAILED, f"rank {rank}: {error!r} at {' '.join(lines)}"))
        else:
            pipe.send((Outcome.PASSED, ""))
        with contextlib.suppress(EOFError, OSError):
            pipe.poll(None)  # the ranks end together, so that none takes another one for dead

    def _run_as(self, name: str, rank: int, folder: str) -> None:
        module = self._module
        module.INIT_METHOD = os.environ["INIT_METHOD"]
        if name == "test_get_backend":
            module.BACKEND = self.backend
        test = self._tests(name)
        test.rank, test.file_name = rank, f"{folder}/store"
        seconds = module.CUSTOM_PG_TIMEOUT.get(name, module.default_pg_timeout)
        distributed.init_process_group(
            self.backend,
            f"file://{folder}/store",
            world_size=SIZE,
            rank=rank,
            timeout=timedelta(seconds=seconds),
        )
        getattr(test, name)()
        module.Barrier.sync()
        with contextlib.suppress(AssertionError):  # the test has done it
            distributed.destroy_process_group()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def main(arguments: list[str]) -> None:
    """Runs the tests named, or all, and prints how each ended."""
    backend, *names = arguments
    conformance = Conformance(backend)
    counts = dict.fromkeys(Outcome, 0)
    for name in names or conformance.names():
        outcome, what = conformance.run(name)
        counts[outcome] += 1
        print(f"{outcome.value:8} {name} {what[:600]}", flush=True)
    print(", ".join(f"{count} {outcome.value}" for outcome, count in counts.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
