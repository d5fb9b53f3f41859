"""Slots that are processes: how they die, who shares memory with whom, and what is left."""

from __future__ import annotations

import ctypes
import os
import signal
import threading

import pytest
import torch
from torch import nn

from lockstitch.errors import SlotDiedError
from lockstitch.nn import DataParallel


class Net(nn.Module):
    """Does `mishap` in each slot but the caller's, when there is one to do."""

    def __init__(self, mishap=None):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.mishap = mishap
        self.caller = os.getpid()
        self.is_armed = mishap is not None

    def forward(self, x):
        if self.is_armed and os.getpid() != self.caller:
            self.mishap()
        return self.linear(x)


@pytest.fixture
def parallel():
    made = []

    def make(module, slots=2):
        made.append(DataParallel(module, ["fork"] * slots))
        return made[-1]

    yield make
    for each in made:
        each.close()
    made.clear()


def works(model, x):
    torch.testing.assert_close(model(x), model.module(x))
    model(x).sum().backward()
    return True


def test_a_slot_that_was_killed_is_replaced(parallel):
    model, x = parallel(Net()), torch.randn(6, 4)
    assert works(model, x)
    (slot,) = model.slots
    pid = int(slot.name.split()[-1].rstrip(")"))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SlotDiedError, match=r"slot 1 \(process \d+\) died: .* signal 9 \(SIGKILL"):
        model(x)
    assert works(model, x)
    assert model.slots != (slot,)


def crash():
    ctypes.string_at(0)


def test_a_slot_that_crashes_tells_where(parallel):
    module, x = Net(crash), torch.randn(6, 4)
    model = parallel(module)
    with pytest.raises(SlotDiedError, match="SIGSEGV") as caught:
        model(x)
    assert "in crash" in str(caught.value)
    module.is_armed = False
    assert works(model, x)


def interrupt_and_hang():
    os.kill(os.getppid(), signal.SIGINT)
    threading.Event().wait()


def test_an_interrupt_ends_a_slot_that_hangs(parallel):
    module, x = Net(interrupt_and_hang), torch.randn(6, 4)
    model = parallel(module)
    with pytest.raises(KeyboardInterrupt):
        model(x)
    module.is_armed = False
    assert works(model, x)


def test_a_graph_whose_slot_is_gone_says_so(parallel):
    model, x = parallel(Net()), torch.randn(6, 4)
    output = model(x)
    model.close()
    with pytest.raises(SlotDiedError, match="slot 1"):
        output.sum().backward()
    # torch's engine keeps what a failed pass had left to do until the next pass.
    assert works(model, x)


def test_parameters_are_in_memory_once(parallel):
    module, x = Net(), torch.randn(8, 4)
    model = parallel(module, slots=4)
    assert works(model, x)
    aligned = 64  # bytes, for each of the two parameters
    assert sum(slot.statistics.parameter_bytes for slot in model.slots) == 2 * aligned


class Aliased(nn.Module):
    """Has attributes in the memory of a parameter and of a buffer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("state", torch.ones(4))
        self.register_buffer("table", torch.eye(3).to_sparse())
        self.bias, self.some = self.linear.bias.data, [self.state[1:]]

    def forward(self, x):
        return self.linear(x) + self.bias * self.some[0] + self.table.to_dense()[0] + self.state[1:]


def test_attributes_in_the_memory_of_others_stay_there(parallel):
    module = Aliased()
    model, x = parallel(module), torch.randn(6, 3)
    assert works(model, x)
    with torch.no_grad():
        module.linear.bias += 1
    assert torch.equal(module.bias, module.linear.bias)
    assert works(model, x)
    module.some[0] += 1
    assert works(model, x)
    module.table.mul_(2)
    assert works(model, x)
    module.state = torch.zeros(4)
    module.some[0] += 1  # on its own from now on
    assert works(model, x)
    module.some[0] += 1
    assert works(model, x)


def test_a_child_of_the_program_has_parameters_of_its_own(parallel):
    module, x = Net(), torch.randn(6, 4)
    model = parallel(module)
    assert works(model, x)
    before = module.linear.weight.detach().clone()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            with torch.no_grad():
                module.linear.weight.fill_(9)
            # Its slots are its own as well.
            status = 0 if works(model, x) and module.linear.weight.eq(9).all() else 2
            model.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    torch.testing.assert_close(module.linear.weight.detach(), before)
    assert works(model, x)
