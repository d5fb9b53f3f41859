"""`DataParallel` with a slot in another process: what `tests/parity/behaviours` says of slots.

In one job, and so one test: what takes long is to start it.
"""

from __future__ import annotations

import traceback

import pytest
import torch

from lockstitch.testing import ProcessCluster
from tests.parity.behaviours import OWN, SAME
from tests.parity.test_data_parallel import Plain, Wrap, assert_equal

# torch refuses to pickle modules with parametrizations; parameters travel when they have changed.
NOT_REMOTE = {
    "weights_under_a_parametrization",
    "spectral_norm_in_evaluation",
    "slots_are_made_once",
}


class WrapWithRemoteSlot(Wrap):
    def __init__(self):
        super().__init__("cpu")
        self.device_ids = ["cpu", "worker1"]


def check_all():
    """On worker0: which behaviours are not those of the plain module, with the reason."""
    failures = []
    for behaviour in [*SAME, *OWN]:
        if behaviour.__name__ in NOT_REMOTE:
            continue
        torch.manual_seed(0)
        state = torch.get_rng_state()
        wrap = WrapWithRemoteSlot()
        try:
            if behaviour in SAME:
                expected = behaviour(Plain())
                torch.set_rng_state(state)
                assert_equal(behaviour(wrap), expected)
            else:
                behaviour(wrap)
        except Exception:  # noqa: BLE001 - all are reported together
            failures.append((behaviour.__name__, traceback.format_exc()))
        finally:
            wrap.close()
            torch.set_default_dtype(torch.float32)
    return failures


@pytest.mark.slow
def test_a_remote_slot_does_what_the_plain_module_does():
    with ProcessCluster(2) as cluster:
        failures = cluster.start("worker0", check_all).result(200)
    for name, reason in failures:
        print(name, reason, sep="\n")
    assert [name for name, _ in failures] == []
