"""torch's own tests of its backends, with ours. `conformance` also runs them with Gloo."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("expecttest") is None, reason="torch's tests need expecttest"
)

# A few of each kind: reductions, moving, messages, objects, groups, timeouts.
QUICK = [
    "test_all_reduce_sum",
    "test_all_to_all",
    "test_sparse_all_reduce_sum",
    "test_send_recv_any_source",
    "test_gather_object_subgroup",
    "test_monitored_barrier_wait_all_ranks",
    "test_isend",
]
_NO_GPU = "indexes GPUs before it looks whether there are any"
LEFT_OUT = {
    "test_SyncBatchNorm_process_group": "needs torchvision, and a GPU for each rank",
    "test_all_to_all_cuda": _NO_GPU,
    "test_all_to_all_cuda_complex": _NO_GPU,
    "test_all_to_all_full_group_cuda": _NO_GPU,
    "test_all_to_all_group_cuda": _NO_GPU,
    "test_batch_isend_irecv_op_err": _NO_GPU,
    "test_batch_isend_irecv_mixed_backend_err": "makes a group of NCCL",
}
"""What fails with Gloo too where there is no GPU."""
_OF_RANK_0 = "expects that only rank 0 names the missing rank; ours do so on every rank"
ONLY_WITH_GLOO = {
    "test_monitored_barrier_gloo": _OF_RANK_0,
    "test_monitored_barrier_failure_order": _OF_RANK_0,
}
NOT_WITH_GLOO = {
    "test_all_to_all": "pieces of different sizes",
    "test_all_to_all_complex": "pieces of different sizes",
    "test_all_to_all_full_group": "pieces of different sizes",
    "test_all_to_all_group": "pieces of different sizes",
}
"""What passes with ours and fails with Gloo."""


def outcomes(*names: str, backend: str = "lockstitch") -> dict[str, str]:
    """How each test ended, and what it said."""
    command = [sys.executable, "-m", "tests.processes.conformance", backend, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines() if " test_" in line]
    return {what.partition(" ")[0]: f"{outcome} {what}" for outcome, what in lines}


def test_a_few_of_torchs_tests_pass() -> None:
    found = outcomes(*QUICK)
    assert sorted(found) == sorted(QUICK)
    assert [each for each in found.values() if not each.startswith("passed")] == []


def of_outcome(found: dict[str, str], outcome: str) -> dict[str, str]:
    return {name: what for name, what in found.items() if what.startswith(outcome)}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_test_of_torch_fails_but_those_that_are_named() -> None:
    found = outcomes()
    assert len(of_outcome(found, "passed")) > 100
    named = LEFT_OUT.keys() | ONLY_WITH_GLOO.keys()
    failed = of_outcome(found, "failed")
    assert {name: what for name, what in failed.items() if name not in named} == {}
    assert NOT_WITH_GLOO.keys() <= of_outcome(found, "passed").keys()


@pytest.mark.slow
def test_at_least_as_many_pass_as_with_gloo() -> None:
    assert len(NOT_WITH_GLOO) >= len(ONLY_WITH_GLOO)
    found = outcomes(*LEFT_OUT, *NOT_WITH_GLOO, backend="gloo")
    assert of_outcome(found, "failed").keys() == LEFT_OUT.keys() | NOT_WITH_GLOO.keys()
