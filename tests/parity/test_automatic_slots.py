"""`DataParallel` without `device_ids` equals the plain module while it tries slots, and after."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lockstitch.nn import DataParallel, Replicate
from lockstitch.nn.automatic import PLAIN, Automatic
from lockstitch.nn.calibration import Calibration

WAYS = [PLAIN, "thread", "fork"]
STEPS = 22


class Clock:
    """Moves at each look, least when the favourite is being timed."""

    def __init__(self, favourite):
        self.favourite = favourite
        self.now = 0.0
        self.calibration = None

    def __call__(self):
        self.now += 1 if self.calibration.way == self.favourite else 2
        return self.now


@pytest.fixture
def automatic():
    made = []

    def make(module, favourite="thread", ways=WAYS):
        clock = Clock(favourite)
        clock.calibration = Calibration(ways, clock)
        model = DataParallel(module.double())
        model._automatic = Automatic(0, slots=2, calibration=clock.calibration)
        made.append(model)
        return model, clock.calibration

    yield make
    for each in made:
        each.close()
    made.clear()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def trains_alike(model, twin, *arguments, steps=STEPS):
    """Takes steps with both, which must agree all the time."""
    ours = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    theirs = torch.optim.SGD(twin.parameters(), lr=0.01, momentum=0.9)
    for i in range(steps):
        x = torch.randn(5 + i % 2, 4, generator=torch.Generator().manual_seed(i)).double()
        plain = [each.value if isinstance(each, Replicate) else each for each in arguments]
        torch.manual_seed(i)
        expected = twin(x, *plain)
        drawn = torch.get_rng_state()
        torch.manual_seed(i)
        actual = model(x, *arguments)
        assert torch.equal(torch.get_rng_state(), drawn)
        torch.testing.assert_close(actual, expected)
        for output, optimizer in ((actual, ours), (expected, theirs)):
            optimizer.zero_grad()
            output.pow(2).sum().backward()
        for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, msg=f"{name} in step {i}")
        ours.step()
        theirs.step()
    return True


@pytest.mark.parametrize("favourite", WAYS)
def test_every_step_equals_the_plain_modules(automatic, favourite):
    module = net()
    twin = copy.deepcopy(module).double()
    model, calibration = automatic(module, favourite)

    assert trains_alike(model, twin)
    assert calibration.choice == favourite
    assert all(favourite in slot.name.replace("process", "fork") for slot in model.slots)
    assert len(model.slots) == (favourite != PLAIN)
    assert (model._automatic is None) == (favourite == PLAIN)
    with torch.no_grad():
        torch.testing.assert_close(
            model(torch.ones(4, 4).double()), twin(torch.ones(4, 4).double())
        )


class Scalar(nn.Linear):
    def forward(self, x):
        return super().forward(x).mean()


class Counting(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += len(x)
        return super().forward(x)


class Centred(nn.Linear):
    """Rows depend on each other."""

    def forward(self, x):
        y = super().forward(x)
        return y - y.mean(0)


def hooked():
    module = nn.Linear(4, 4)
    module.register_forward_hook(lambda _module, _inputs, output: output * 2)
    return module


MODULES = {
    "batch statistics": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
    "random numbers": lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout()),
    "hooks": hooked,
    "an output that is no batch": lambda: Scalar(4, 4),
    "a buffer that it writes": lambda: Counting(4, 4),
    "rows that depend on each other": lambda: Centred(4, 4),
}


@pytest.mark.parametrize("kind", MODULES)
def test_what_slots_would_change_runs_plainly(automatic, kind):
    module = MODULES[kind]()
    twin = copy.deepcopy(module).double()
    model, calibration = automatic(module, ways=[PLAIN, "thread"])

    assert trains_alike(model, twin, steps=4)
    assert calibration.choice == PLAIN
    assert model.slots == ()
    for one, other in zip(module.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, other)


class Mixing(nn.Linear):
    def forward(self, x, mix):
        return super().forward(x) @ mix


def test_a_table_of_as_many_rows_as_the_batch_is_no_batch(automatic):
    """Cut in two it fits no longer: such a step is taken plainly."""
    model, calibration = automatic(Mixing(4, 6), ways=[PLAIN, "thread"])
    x, mix = torch.randn(6, 4).double(), torch.randn(6, 6).double()
    for _ in range(4):
        output = model(x, mix)
        torch.testing.assert_close(output, model.module(x, mix))
        output.sum().backward()
    assert calibration.choice == PLAIN


def test_what_every_slot_gets_whole_may_be_marked(automatic):
    module = Mixing(4, 6)
    model, calibration = automatic(module, ways=[PLAIN, "thread"])

    assert trains_alike(
        model, copy.deepcopy(module).double(), Replicate(torch.randn(6, 6).double()), steps=14
    )
    assert calibration.choice == "thread"


def test_memory_that_others_look_at_is_not_moved(automatic):
    module = net().double()
    view = module[0].weight.detach()
    model, calibration = automatic(module, "fork")

    assert trains_alike(model, copy.deepcopy(module))
    assert calibration.choice != "fork"
    assert torch.equal(view, module[0].weight)


def test_memory_that_other_processes_share_is_not_moved(automatic):
    module = net().double().share_memory()
    model, calibration = automatic(module, "fork")

    assert trains_alike(model, copy.deepcopy(module))
    assert calibration.choice != "fork"
    assert module[0].weight.is_shared()


class Picky(nn.Linear):
    def forward(self, x):
        if x[0, 0] > 100:
            raise KeyError("too large")
        return super().forward(x)


def test_exceptions_of_the_module_are_its_own_and_change_nothing(automatic):
    module = Picky(4, 4)
    model, calibration = automatic(module, ways=[PLAIN, "thread"])
    twin = copy.deepcopy(module).double()
    for _ in range(9):
        with pytest.raises(KeyError, match="too large"):
            model(torch.full((6, 4), 1000.0).double())
        assert trains_alike(model, twin, steps=1)
        twin.load_state_dict(module.state_dict())
    trains_alike(model, twin, steps=4)
    assert calibration.choice == "thread"


def test_steps_that_slots_cannot_take_do_not_count(automatic):
    model, calibration = automatic(net(), ways=[PLAIN, "thread"])
    for _ in range(20):
        model(torch.randn(1, 4).double()).sum().backward()  # no two rows
        with torch.no_grad():
            model(torch.randn(6, 4).double())
    assert calibration.choice is None
    assert model.slots == ()


def test_a_copy_finds_out_for_itself(automatic):
    model, _ = automatic(net(), ways=[PLAIN, "thread"])
    for _ in range(3):
        model(torch.randn(6, 4).double()).sum().backward()
    other = copy.deepcopy(model)
    assert len(model.slots) == 1
    assert other.slots == ()
    x = torch.randn(6, 4).double()
    torch.testing.assert_close(other(x), model(x))


class Centres(nn.Module):
    """Depends on the other rows of its batch, or draws numbers, once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.drop, self.centres = net(), nn.Dropout(0.0), False

    def forward(self, x):
        y = self.drop(self.net(x))
        return y - y.mean(0) if self.centres else y


def centre(module):
    module.centres = True


def drop(module):
    module.drop.p = 0.5


def hook(module):
    module.net[0].register_forward_hook(lambda _module, _args, out: out - out.mean(0))


def normalise(module):
    module.net.append(nn.BatchNorm1d(3).double())


@pytest.mark.parametrize("change", [centre, drop, hook, normalise])
@pytest.mark.parametrize("favourite", ["thread", "fork"])
def test_a_module_that_is_changed_later_so_that_it_may_not_be_cut_runs_plainly(
    automatic, favourite, change
):
    module = Centres()
    twin = copy.deepcopy(module).double()
    model, calibration = automatic(module, favourite)
    assert trains_alike(model, twin)
    assert calibration.choice == favourite
    change(module)
    change(twin)
    assert trains_alike(model, twin, steps=3)
    assert not model.slots


def test_slots_are_kept_while_a_module_is_changed_now_and_then(automatic):
    module = Centres()
    twin = copy.deepcopy(module).double()
    model, _ = automatic(module)
    assert trains_alike(model, twin)
    for p in (1e-9, 0.0, 1e-9):
        module.kept, twin.kept = p, p
        assert trains_alike(model, twin, steps=2)
        assert len(model.slots) == 1


def test_a_module_that_is_changed_before_each_step_runs_plainly(automatic):
    module = Centres()
    twin = copy.deepcopy(module).double()
    model, _ = automatic(module)
    assert trains_alike(model, twin)
    for step in range(12):
        module.step = twin.step = step
        assert trains_alike(model, twin, steps=1)
    assert not model.slots
