"""Seeds follow from the caller's generator and take nothing from it."""

from __future__ import annotations

import torch

from lockstitch.nn.slots import generators


def test_the_fingerprint_tells_whether_something_was_drawn():
    before = generators.fingerprint()
    assert generators.fingerprint() == before
    torch.rand(1)
    assert generators.fingerprint() != before


def test_the_same_seed_gives_the_same_fingerprint():
    torch.manual_seed(3)
    before = generators.fingerprint()
    torch.rand(1)
    torch.manual_seed(3)
    assert generators.fingerprint() == before


def test_slots_and_states_have_seeds_of_their_own():
    seeds = {generators.seed_for(state, slot) for state in range(50) for slot in range(4)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)


class Generator:
    """That of a GPU."""

    def __init__(self):
        self.state = torch.zeros(16, dtype=torch.uint8)

    def get_state(self):
        return self.state.clone()

    def set_state(self, state):
        self.state = state

    def manual_seed(self, number):
        self.state = torch.full((16,), number % 256, dtype=torch.uint8)


def test_a_module_draws_from_the_generators_of_the_host_and_of_its_device(monkeypatch):
    others = Generator(), Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", others)
    device = torch.device("cuda:1")
    before = generators.fingerprint(device), generators.fingerprint()
    with generators.kept(device):
        generators.seed(7, device)
        assert others[1].state.eq(7).all()
        assert torch.default_generator.initial_seed() == 7
        assert generators.fingerprint(device) != before[0]
    assert (generators.fingerprint(device), generators.fingerprint()) == before
    others[0].manual_seed(9)
    assert generators.fingerprint(device) == before[0]
    others[1].manual_seed(9)
    assert generators.fingerprint(device) != before[0]
    assert generators.fingerprint() == before[1]


def test_a_mode_in_which_a_module_has_drawn_once_stays_one_in_which_it_draws():
    module = torch.nn.Dropout()
    drawing = generators.DrawingModes(module)
    training = drawing.mode(True)
    assert training == (True, True)
    assert not drawing.never_drew(training)  # it was never called
    assert not drawing.note_call(training, generators.fingerprint())
    assert drawing.never_drew(training)
    before = generators.fingerprint()
    torch.rand(1)
    assert drawing.note_call(training, before)
    assert not drawing.note_call(training, generators.fingerprint())
    assert not drawing.never_drew(training)
    module.eval()
    resting = drawing.mode(False)
    assert resting == (False, False)
    assert not drawing.note_call(resting, generators.fingerprint())
    assert drawing.never_drew(resting)
    drawing.note(resting)
    assert not drawing.never_drew(resting)


def test_a_module_that_is_gone_is_not_training():
    module = torch.nn.Dropout()
    drawing = generators.DrawingModes(module)
    del module
    assert drawing.mode(True) == (False, True)
