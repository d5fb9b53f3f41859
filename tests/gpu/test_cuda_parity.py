"""Slots on two streams of one device do what `tests/parity/behaviours` says of slots."""

from __future__ import annotations

import warnings

import pytest
import torch

from lockstitch.nn.slots.cuda import on_stream
from tests.parity.behaviours import OWN, SAME
from tests.parity.test_data_parallel import Plain, Wrap, assert_equal

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(60),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# It says what happens to a module on the CPU; `test_cuda_programs.py` says it of GPUs.
OF_THE_CPU = {"devices_are_checked_when_it_is_called"}


class WrapOnStreams(Wrap):
    def __init__(self):
        super().__init__("cuda:0")
        self.device_ids = ["cuda:0", on_stream("cuda:0")]


@pytest.fixture
def wrap():
    """Whatever a behaviour makes lies on the device, and is exact."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the older one of two names for it
        is_rounded = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
    torch.set_default_device("cuda:0")
    wrap = WrapOnStreams()
    try:
        yield wrap
    finally:
        wrap.close()
        # torch's engine keeps what a failed pass had left to do until the next pass.
        torch.ones(1, requires_grad=True).sum().backward()
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.backends.cudnn.allow_tf32 = is_rounded


@pytest.mark.parametrize("behaviour", SAME, ids=lambda behaviour: behaviour.__name__)
def test_a_slot_does_what_the_plain_module_does(wrap, behaviour):
    torch.manual_seed(0)
    expected = behaviour(Plain())
    torch.manual_seed(0)
    actual = behaviour(wrap)
    assert_equal(actual, expected)


@pytest.mark.parametrize(
    "behaviour",
    [each for each in OWN if each.__name__ not in OF_THE_CPU],
    ids=lambda behaviour: behaviour.__name__,
)
def test_it_does_what_is_said_of_it(wrap, behaviour):
    torch.manual_seed(0)
    behaviour(wrap)
