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
