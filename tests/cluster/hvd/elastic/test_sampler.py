from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from lockstitch import hvd
from lockstitch.hvd.elastic import ElasticSampler
from tests.cluster.hvd.ranks import on_ranks


def parts(size, length, **kwargs):
    return on_ranks(size, lambda: list(ElasticSampler(range(length), **kwargs)))


@given(st.integers(1, 4), st.integers(0, 13), st.booleans())
def test_all_indices_are_divided_into_parts_of_one_length(size, length, shuffle):
    found = parts(size, length, shuffle=shuffle)
    assert len({len(part) for part in found}) == 1
    assert {index for part in found for index in part} == set(range(length))
    assert sum(map(len, found)) - length in range(size)


def test_the_order_is_a_matter_of_seed_and_epoch():
    def orders():
        sampler = ElasticSampler(range(20), seed=1)
        first = list(sampler)
        sampler.set_epoch(1)
        return first, list(sampler), list(ElasticSampler(range(20), seed=5))

    [(first, second, other)] = on_ranks(1, orders)
    assert len({tuple(first), tuple(second), tuple(other), tuple(range(20))}) == 4
    assert parts(1, 20, shuffle=False) == [list(range(20))]


def test_what_is_recorded_is_not_given_again_in_this_epoch():
    def program():
        sampler = ElasticSampler(range(10), shuffle=False)
        loader = DataLoader(range(10), batch_size=2, sampler=sampler)
        seen = []
        for number, batch in enumerate(loader):
            seen += batch.tolist()
            sampler.record_batch(number, 2)
            if number == 1:
                break
        sampler.reset()
        rest = list(sampler)
        sampler.set_epoch(1)
        return seen, rest, len(sampler)

    (seen, rest, whole), (other_seen, other_rest, _) = on_ranks(2, program)
    assert (seen, other_seen) == ([0, 2, 4, 6], [1, 3, 5, 7])
    # Each knows of its own; what the others have done comes with the state.
    assert set(rest) | set(other_rest) >= {8, 9}
    assert not set(rest) & set(seen)
    assert whole == 5


def test_it_goes_on_among_another_number_of_ranks():
    [state] = on_ranks(1, lambda: {"epoch": 3, "processed_indices": {0, 1, 2, 3}})

    def program():
        sampler = ElasticSampler(range(10), shuffle=False)
        sampler.load_state_dict(state)
        return sampler.epoch, len(sampler), list(sampler)

    found = on_ranks(3, program)
    assert found == [(3, 2, [4, 7]), (3, 2, [5, 8]), (3, 2, [6, 9])]


def test_fewer_indices_than_ranks_are_given_twice():
    def program():
        sampler = ElasticSampler(range(3))
        sampler.record_indices([0, 1])
        sampler.reset()
        return list(sampler)

    assert on_ranks(4, program) == [[2]] * 4


def test_it_wants_to_know_its_rank():
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match="hvd.init"):
        ElasticSampler(range(3))


def test_batches_recorded_after_going_back_are_those_of_the_last_division():
    def program():
        sampler = hvd.elastic.ElasticSampler(range(16))
        state = hvd.elastic.TorchState(sampler=sampler)
        sampler.set_epoch(1)
        sampler.record_batch(0, 2)
        state.commit()
        sampler.record_batch(1, 2)
        state.restore()
        assert sampler.processed_num == 2
        sampler.record_batch(1, 2)
        state.sync()
        return sampler.processed_num, len(sampler)

    assert on_ranks(2, program) == [(8, 4)] * 2
