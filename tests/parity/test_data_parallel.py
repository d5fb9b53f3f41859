"""`DataParallel` against the plain module, for each kind of slots: see `behaviours`."""

from __future__ import annotations

import pytest
import torch

from lockstitch.nn import DataParallel
from tests.parity.behaviours import OWN, SAME

KINDS = ["thread", "fork"]


class Wrap:
    """Makes parallel modules, and closes them."""

    is_parallel = True

    def __init__(self, kind):
        self.device_ids = [kind, kind]
        self._made = []

    def __call__(self, module, **options):
        for made in self._made:
            if made.module is module:
                return made
        self._made.append(DataParallel(module, self.device_ids, **options))
        return self._made[-1]

    def close(self):
        for made in self._made:
            made.close()
        self._made.clear()


class Plain:
    is_parallel = False

    def __call__(self, module, **options):
        return module


def assert_equal(actual, expected):
    """Like torch's, for structures in which there are names and nothing too."""
    if isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, dict):
        assert_equal(list(actual.items()), list(expected.items()))
    elif isinstance(expected, torch.Tensor):
        # Sums of halves are rounded otherwise than sums of all.
        rtol, atol = (0.05, 0.05) if expected.dtype is torch.bfloat16 else (1e-4, 1e-5)
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)
    else:
        assert actual == expected


@pytest.fixture(params=KINDS)
def wrap(request):
    wrap = Wrap(request.param)
    torch.manual_seed(0)
    yield wrap
    wrap.close()
    # torch's engine keeps what a failed pass had left to do until the next pass.
    torch.ones(1, requires_grad=True).sum().backward()


@pytest.mark.parametrize("behaviour", SAME, ids=lambda behaviour: behaviour.__name__)
def test_a_slot_does_what_the_plain_module_does(wrap, behaviour):
    state = torch.get_rng_state()
    expected = behaviour(Plain())
    torch.set_rng_state(state)
    actual = behaviour(wrap)
    assert_equal(actual, expected)


@pytest.mark.parametrize("behaviour", OWN, ids=lambda behaviour: behaviour.__name__)
def test_it_does_what_is_said_of_it(wrap, behaviour):
    behaviour(wrap)
