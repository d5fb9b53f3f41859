"""Nobody is lent what another one holds, however it is asked, and never more than there is."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from lockstitch.memory.blocks import MOST_BLOCKS, TRIAL_BLOCKS, Ledger
from lockstitch.memory.sizes import PAGE_BYTES

MB = 1 << 20
CAPACITY = 64 * MB


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(CAPACITY)


def made(ledger: Ledger, nbytes: int, owner: str = "a", now: float = 0.0):
    block, gone = ledger.make(owner, nbytes, now)
    assert gone == []
    return block


def test_what_came_back_is_lent_again_the_last_first(ledger: Ledger) -> None:
    first, second = made(ledger, MB), made(ledger, MB)
    assert ledger.reuse("a", MB, 1.0) is None
    ledger.give_back(first, 1.0)
    ledger.give_back(second, 2.0)
    assert ledger.reuse("a", MB, 3.0) is second
    assert ledger.reuse("a", MB, 3.0) is first
    assert ledger.reuse("a", MB, 3.0) is None


def test_a_block_is_not_lent_for_more_than_it_holds_nor_for_very_little(ledger: Ledger) -> None:
    ledger.give_back(made(ledger, MB), 1.0)
    assert ledger.reuse("a", MB + 1, 1.0) is None
    assert ledger.reuse("a", MB // 8, 1.0) is None
    assert ledger.reuse("a", MB // 2, 1.0) is not None


def test_the_smallest_block_that_fits_is_lent(ledger: Ledger) -> None:
    blocks = [made(ledger, size * MB) for size in (4, 2, 3)]
    for block in blocks:
        ledger.give_back(block, 1.0)
    assert ledger.reuse("a", 3 * MB // 2, 1.0) is blocks[1]
    assert ledger.reuse("a", 3 * MB // 2, 1.0) is blocks[2]
    assert ledger.reuse("a", 3 * MB // 2, 1.0) is blocks[0]


def test_without_limits_whoever_asks_is_lent_a_block() -> None:
    ledger = Ledger.without_limits()
    blocks = [made(ledger, 1 << 50) for _ in range(MOST_BLOCKS + 1)]
    assert len({block.number for block in blocks}) == MOST_BLOCKS + 1


def test_blocks_stay_with_their_owner(ledger: Ledger) -> None:
    ledger.give_back(made(ledger, MB, "a"), 1.0)
    assert ledger.reuse("b", MB, 1.0) is None
    assert made(ledger, MB, "b").number == 0


def test_who_keeps_everything_gets_no_more_than_the_trial(ledger: Ledger) -> None:
    blocks = [made(ledger, MB) for _ in range(TRIAL_BLOCKS + 3)]
    assert [block is None for block in blocks] == [False] * TRIAL_BLOCKS + [True] * 3
    assert made(ledger, 2 * MB) is not None  # another size has a trial of its own


def test_who_gives_back_may_have_more(ledger: Ledger) -> None:
    blocks = [made(ledger, MB) for _ in range(TRIAL_BLOCKS)]
    ledger.give_back(blocks[0], 1.0)
    assert ledger.reuse("a", MB, 1.0) is blocks[0]
    assert made(ledger, MB) is not None
    assert made(ledger, MB) is None


def test_what_comes_back_and_is_lent_at_once_counts_as_used_again(ledger: Ledger) -> None:
    block, *_others = (made(ledger, MB) for _ in range(TRIAL_BLOCKS))
    ledger.lend_again(block)
    assert made(ledger, MB) is not None


def test_the_longest_unused_goes_when_room_is_needed(ledger: Ledger) -> None:
    old, young, lent = (made(ledger, 20 * MB, owner) for owner in "abc")
    ledger.give_back(old, 1.0)
    ledger.give_back(young, 2.0)
    block, gone = ledger.make("d", 20 * MB, 3.0)
    assert block is not None
    assert gone == [old]
    assert ledger.blocks() == [young, lent, block]


def test_nothing_goes_where_even_that_would_not_be_enough(ledger: Ledger) -> None:
    ledger.give_back(made(ledger, 20 * MB, "a"), 1.0)
    made(ledger, 40 * MB, "b")
    assert ledger.make("c", 30 * MB, 2.0) == (None, [])
    assert len(ledger.blocks()) == 2
    assert ledger.make("c", CAPACITY + 1, 2.0) == (None, [])
    assert ledger.make("c", 0, 2.0) == (None, [])


def test_number_of_a_retired_block_is_not_used_until_it_is_cleared(ledger: Ledger) -> None:
    ledger.retire(made(ledger, MB))
    assert ledger.bytes == 0
    assert made(ledger, MB).number == 1
    assert ledger.retired("a") == [0]
    ledger.clear("a", 0)
    assert made(ledger, MB).number == 0


def test_numbers_run_out(ledger: Ledger) -> None:
    for size in range(1, MOST_BLOCKS + 1):
        block = made(ledger, size % 7 * PAGE_BYTES + 1)
        if block is None:
            break
        ledger.retire(block)
    assert ledger.make("a", 1, 0.0) == (None, [])
    assert len(ledger.retired("a")) == MOST_BLOCKS


def test_as_many_idle_bytes_as_shall_be_kept_are_kept(ledger: Ledger) -> None:
    blocks = [made(ledger, size * MB) for size in (1, 2, 3)]
    for now, block in enumerate(blocks):
        ledger.give_back(block, float(now))
    assert ledger.drop_idle(5.0, 6 * MB) == []
    assert ledger.drop_idle(5.0, 5 * MB) == blocks[:1]
    assert ledger.drop_idle(2.0) == blocks[1:2]
    assert ledger.spare_bytes == ledger.bytes == 3 * MB


def test_idle_blocks_are_dropped(ledger: Ledger) -> None:
    idle, busy, lent = (made(ledger, MB) for _ in range(3))
    ledger.give_back(idle, 1.0)
    ledger.give_back(busy, 5.0)
    assert ledger.drop_idle(5.0) == [idle]
    assert ledger.blocks() == [lent, busy]


class Lending(RuleBasedStateMachine):
    """Several owners ask, give back, retire and leave in any order."""

    lent = Bundle("lent")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(CAPACITY)
        self.now = 0.0
        self.held: dict[int, object] = {}

    @rule(target=lent, owner=st.sampled_from("abc"), nbytes=st.integers(1, 24 * MB))
    def ask(self, owner: str, nbytes: int):
        self.now += 1
        gone = []
        block = self.ledger.reuse(owner, nbytes, self.now)
        if block is None:
            block, gone = self.ledger.make(owner, nbytes, self.now)
        assert not any(id(each) in self.held for each in gone)
        if block is not None:
            assert id(block) not in self.held
            assert block.size >= nbytes
            self.held[id(block)] = block
        return block

    @rule(block=consumes(lent))
    def give_back(self, block) -> None:
        if self.held.pop(id(block), None) is not None:
            self.ledger.give_back(block, self.now)

    @rule(block=lent)
    def lend_again(self, block) -> None:
        if id(block) in self.held:
            self.ledger.lend_again(block)

    @rule(block=consumes(lent))
    def retire(self, block) -> None:
        if self.held.pop(id(block), None) is not None:
            self.ledger.retire(block)

    @rule(owner=st.sampled_from("abc"))
    def clear(self, owner: str) -> None:
        for number in self.ledger.retired(owner):
            self.ledger.clear(owner, number)

    @rule(owner=st.sampled_from("abc"))
    def leave(self, owner: str) -> None:
        for block in self.ledger.drop_owner(owner):
            self.held.pop(id(block), None)

    @rule(seconds=st.integers(0, 5))
    def drop_idle(self, seconds: int) -> None:
        idle = self.ledger.drop_idle(self.now - seconds)
        assert not any(id(block) in self.held for block in idle)

    @invariant()
    def the_books_are_right(self) -> None:
        blocks = self.ledger.blocks()
        assert self.ledger.bytes == sum(block.size for block in blocks) <= CAPACITY
        spare = sum(block.size for block in blocks if not block.is_lent)
        assert self.ledger.spare_bytes == spare
        assert {id(block) for block in blocks if block.is_lent} == set(self.held)
        numbers = [(block.owner, block.number) for block in blocks]
        numbers += [(owner, n) for owner in "abc" for n in self.ledger.retired(owner)]
        assert len(numbers) == len(set(numbers))

    def teardown(self) -> None:
        for owner in "abc":
            self.ledger.drop_owner(owner)
        assert self.ledger.bytes == self.ledger.spare_bytes == 0


TestLending = Lending.TestCase


def test_reserved_number_is_given_to_no_block_until_it_is_released(ledger: Ledger) -> None:
    number = ledger.reserve("a")
    assert made(ledger, MB).number != number
    assert ledger.reserve("b") is not None  # each owner has its own
    ledger.release("a", number)
    assert made(ledger, MB).number == number
    ledger.release("nobody", 3)
    assert ledger.bytes == 2 * MB


def test_no_number_is_left_when_all_are_reserved() -> None:
    ledger = Ledger(CAPACITY, most_blocks=1)
    assert ledger.reserve("a") == 0
    assert ledger.reserve("a") is None
    assert ledger.make("a", MB, 0.0) == (None, [])
