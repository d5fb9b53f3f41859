"""torch's own tests of its backends, with ours. `conformance` also runs them with Gloo."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("expecttest") is None, reason="torch's tests need expecttest"
)

# A few of each kind: reductions, moving, messages, objects, groups, DistributedDataParallel.
QUICK = [
    "test_all_reduce_sum",
    "test_all_gather",
    "test_send_recv_any_source",
    "test_gather_object_subgroup",
    "test_isend",
]
_NO_GPU = "indexes GPUs before it looks whether there are any; fails with Gloo too"
_GLOO_ONLY = "torch.distributed.monitored_barrier refuses every backend but Gloo"
LEFT_OUT = {
    "test_SyncBatchNorm_process_group": "needs torchvision; fails with Gloo too",
    "test_all_to_all_cuda": _NO_GPU,
    "test_all_to_all_cuda_complex": _NO_GPU,
    "test_all_to_all_full_group_cuda": _NO_GPU,
    "test_batch_isend_irecv_op_err": _NO_GPU,
    "test_batch_isend_irecv_mixed_backend_err": "makes a group of NCCL; fails with Gloo too",
    "test_barrier_timeout_global": "begins again by env://, which has no port here",
    "test_new_subgroups_with_group_param": "needs four ranks; fails with Gloo too",
    "test_get_backend": "expects the name gloo",
    "test_monitored_barrier_gloo": _GLOO_ONLY,
    "test_monitored_barrier_gloo_rank_0_timeout": _GLOO_ONLY,
    "test_monitored_barrier_gloo_subgroup": _GLOO_ONLY,
    "test_sparse_all_reduce_sum": "sparse tensors are refused",
}


def outcomes(*names: str) -> dict[str, str]:
    """How each test ended, and what it said."""
    command = [sys.executable, "-m", "tests.processes.conformance", "lockstitch", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines() if " test_" in line]
    return {what.partition(" ")[0]: f"{outcome} {what}" for outcome, what in lines}


def test_a_few_of_torchs_tests_pass() -> None:
    found = outcomes(*QUICK)
    assert sorted(found) == sorted(QUICK)
    assert [each for each in found.values() if not each.startswith("passed")] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_test_of_torch_fails_but_those_that_are_named() -> None:
    found = outcomes()
    assert len(found) > 200
    failed = {name: what for name, what in found.items() if what.startswith("failed")}
    assert {name: what for name, what in failed.items() if name not in LEFT_OUT} == {}
