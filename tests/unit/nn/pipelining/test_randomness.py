"""Random numbers of a stage follow from its seed, whoever else draws."""

from __future__ import annotations

import threading

import torch

from lockstitch.nn.pipelining.randomness import drawing_from, others_may_draw


def numbers(seed: int) -> list[float]:
    with drawing_from(seed, None):
        return torch.rand(4).tolist()


def test_numbers_follow_from_the_seed_and_the_generator_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(2).tolist()
    torch.manual_seed(5)
    assert numbers(7) == numbers(7) != numbers(8)
    assert torch.rand(2).tolist() == expected


def test_a_pass_within_a_pass_draws_its_own():
    with drawing_from(7, None):
        torch.rand(2)
        assert numbers(8) == [*numbers(8)]
        found = torch.rand(2).tolist()
    assert found == numbers(7)[2:]


def test_others_draw_while_one_waits_and_it_goes_on_where_it_was():
    seen: list[list[float]] = []
    with drawing_from(7, None):
        torch.rand(2)
        with others_may_draw():
            other = threading.Thread(target=lambda: seen.append(numbers(8)))
            other.start()
            other.join()
        found = torch.rand(2).tolist()
    assert seen == [numbers(8)]
    assert found == numbers(7)[2:]


def test_who_has_no_turn_lends_none():
    with others_may_draw(), drawing_from(7, None):
        assert torch.rand(4).tolist() == numbers(7)
