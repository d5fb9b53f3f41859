"""What holds for every test: one thread for arithmetic, a profile for hypothesis, no leftovers.

A test that leaves a thread, a child process, a socket, a pipe, a worker or a reference behind
fails, and says which. Whatever ends by itself soon after the test (a thread on its way out, a value
that waits for the garbage collector) is given a moment first.
"""

from __future__ import annotations

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read once, when torch is first imported

# Beside a GPU a number in `device_ids` is a GPU, and a fork computes no gradients. So tests see
# none, but for those of `tests/gpu`, which run by themselves (`make test-gpu`).
if os.environ.get("LOCKSTITCH_TEST_GPU", "0") in ("", "0"):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import atexit
import shutil
import signal
import tempfile
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import torch
from torch.distributed import TCPStore
from torch.utils import _python_dispatch

from lockstitch.testing.leaks import Inventory
from tests.warm import WarmInterpreter

if TYPE_CHECKING:
    from collections.abc import Iterator

torch.set_num_threads(1)

# Processes of tests are listed apart from those of the user.
os.environ["LOCKSTITCH_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="lockstitch-tests-")
atexit.register(shutil.rmtree, os.environ["LOCKSTITCH_RUNTIME_DIR"], ignore_errors=True)

# A shell that begins a command in the background has it ignore Ctrl-C, which tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The quick suite tries the same examples every time, so that it fails for a change and not by
# chance; `HYPOTHESIS_PROFILE=thorough` searches anew, and further.
hypothesis.settings.register_profile("quick", max_examples=50, deadline=None, derandomize=True)
hypothesis.settings.register_profile("thorough", max_examples=2000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


# Torch notes for the whole process that a mode is entered; where several threads leave theirs in
# another order than they came, the note stays, and from then on torch compiles nothing.
_NOTES_OF_MODES = [name for name in vars(_python_dispatch) if name.startswith("_is_in_")]


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = Inventory.take()
    yield
    for name in _NOTES_OF_MODES:
        if getattr(_python_dispatch, name) is True:
            setattr(_python_dispatch, name, False)
    left = before.wait_until_nothing_new(timeout_seconds=20)
    if left:
        pytest.fail("the test left behind:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture(scope="module")  # tests of launchers end all children of their process
def warm_python() -> Iterator[WarmInterpreter]:
    with WarmInterpreter() as interpreter:
        yield interpreter


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak-seconds",
        type=float,
        default=180.0,
        help="how long the long soak works (tests/processes/test_soak.py)",
    )
    parser.addoption(
        "--soak-seed",
        type=int,
        default=1,
        help="the chance in soaks that stop workers (tests/processes/test_stopped_pipeline.py)",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs a GPU where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


HAS_CRASHED = pytest.StashKey[bool]()


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(sched: Any) -> None:
    """A process of xdist died within a test. Another takes its place, and the run goes on."""
    sched.config.stash[HAS_CRASHED] = True


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A crash is nothing to try again: `--last-failed` then finds nothing, which is a failure."""
    if session.config.stash.get(HAS_CRASHED, False) and session.config.cache is not None:
        session.config.cache.set("cache/lastfailed", {})


def pytest_sessionstart() -> None:
    """The first store of a process has libuv make a pipe that stays to the end."""
    TCPStore("localhost", 0, 1, is_master=True)


def pytest_collection_finish() -> None:
    """What is there before the first test stays to the end: the garbage collector, called after
    many tests, need not look at half a million objects each time."""
    gc.collect()
    gc.freeze()
