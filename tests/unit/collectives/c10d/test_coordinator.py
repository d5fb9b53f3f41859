"""What rank 0 decides: messages in, messages out."""

from __future__ import annotations

import functools
import operator
import random
import struct

from hypothesis import given
from hypothesis import strategies as st

from lockstitch.collectives.c10d.coordinator import Coordinator
from lockstitch.collectives.c10d.messages import (
    Ask,
    Define,
    Detailed,
    Done,
    Join,
    Joined,
    Leave,
    Lost,
    Message,
    Missing,
    Order,
    Refused,
    Submit,
    pack_described,
)
from lockstitch.collectives.c10d.routes import Addressed
from lockstitch.collectives.requests import AVERAGE, SUM, Description, Kind

BOTH = (0, 1)


def define(
    number: int, name: str, rows: int = 1, kind: Kind = Kind.ALLREDUCE, **more: object
) -> Define:
    reduction = more.pop("reduction", SUM if kind is Kind.ALLREDUCE else None)
    description = Description(kind, name, ("float32",), ((rows,),), reduction)  # type: ignore[arg-type]
    set_id, ranks = more.pop("set", (0, BOTH))  # type: ignore[misc]
    return Define(number, set_id, ranks, description.encode().decode())


def both(message: Message) -> list[tuple[int, Message]]:
    return [(rank, message) for rank in BOTH]


def test_order_goes_out_when_all_are_ready_in_each_ranks_own_numbers() -> None:
    coordinator = Coordinator(2, 1 << 20)
    assert coordinator.hear([(0, define(5, "a")), (0, Submit(5))]) == []
    addressed = coordinator.hear([(1, define(9, "a")), (1, Submit(9))])
    assert addressed == [Addressed(0, Order((5,), (), True)), Addressed(1, Order((9,), (), True))]


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def test_tensors_that_ride_come_back_reduced() -> None:
    coordinator = Coordinator(2, 1 << 20)
    described = [(0, define(5, "a", rows=2)), (1, define(9, "a", rows=2))]
    assert coordinator.hear([*described, (1, Submit(9, floats(3, 4)))]) == []
    addressed = coordinator.hear([(0, Submit(5, floats(1, 2)))])
    assert addressed == [Addressed(0, Done(5, floats(4, 6))), Addressed(1, Done(9, floats(4, 6)))]


def test_tensors_that_do_not_all_ride_are_ordered() -> None:
    coordinator = Coordinator(2, 1 << 20)
    coordinator.hear([(rank, define(5, "a")) for rank in BOTH])
    addressed = coordinator.hear([(0, Submit(5, floats(1))), (1, Submit(5))])
    assert addressed == [Addressed(rank, Order((5,), (), True)) for rank in BOTH]


def test_rank_that_has_joined_has_no_part_in_what_rides_but_counts_in_an_average() -> None:
    coordinator = Coordinator(2, 1 << 20)
    coordinator.hear([(0, define(5, "a", reduction=AVERAGE)), (1, Join())])
    assert coordinator.hear([(0, Submit(5, floats(3)))]) == [Addressed(0, Done(5, floats(1.5)))]


def test_rank_whose_bytes_are_not_what_it_has_described_is_lost() -> None:
    coordinator = Coordinator(2, 1 << 20)
    addressed = coordinator.hear([(1, define(5, "a", rows=2)), (1, Submit(5, floats(3)))])
    assert [each.to for each in addressed] == [0]
    assert isinstance(addressed[0].message, Lost)
    assert "4 bytes, which are none of 'a'" in addressed[0].message.why


def test_disagreement_about_what_rides_is_refused() -> None:
    coordinator = Coordinator(2, 1 << 20)
    coordinator.hear([(0, define(5, "a")), (1, define(9, "a", rows=2))])
    addressed = coordinator.hear([(0, Submit(5, floats(1))), (1, Submit(9, floats(1, 2)))])
    assert [(each.to, type(each.message)) for each in addressed] == [(0, Refused), (1, Refused)]


def test_what_is_ready_together_is_fused_up_to_the_limit() -> None:
    coordinator = Coordinator(2, 3000)
    names = [define(n, f"t{n}", rows=250) for n in range(4)]
    coordinator.hear([(rank, each) for rank in BOTH for each in names])
    addressed = coordinator.hear([(rank, Submit(n)) for rank in BOTH for n in range(4)])
    assert [note.message for note in addressed if note.to == 0] == [Order((0, 1, 2)), Order((3,))]


def test_order_names_what_all_have_sent_ahead_and_is_for_that_alone() -> None:
    coordinator = Coordinator(2, 1 << 20)
    coordinator.hear(both(define(0, "a")) + both(define(1, "b")) + both(define(2, "c")))
    told = [(0, Submit(0, ahead=7)), (1, Submit(0, ahead=3))]
    assert coordinator.hear(told) == [Addressed(r, Order((0,), (7, 3), True)) for r in BOTH]
    told = [(0, Submit(1, ahead=8)), (1, Submit(1, ahead=4)), *both(Submit(0)), *both(Submit(2))]
    wanted = [Order((1,), (8, 4)), Order((0, 2))]
    assert coordinator.hear(told) == [Addressed(r, order) for order in wanted for r in BOTH]


def test_what_some_have_sent_ahead_counts_for_nothing() -> None:
    coordinator = Coordinator(2, 1 << 20)
    coordinator.hear(both(define(0, "a")) + both(define(1, "b")))
    told = [(0, Submit(0, ahead=7)), (1, Submit(0)), *both(Submit(1))]
    assert coordinator.hear(told) == [Addressed(r, Order((0, 1))) for r in BOTH]
    told = [(0, Submit(0, ahead=8)), (1, Submit(0))]
    assert coordinator.hear(told) == [Addressed(r, Order((0,))) for r in BOTH]
    assert coordinator.hear(both(Submit(0))) == [Addressed(r, Order((0,))) for r in BOTH]


def test_what_others_wait_beside_does_not_go_ahead_the_next_time() -> None:
    coordinator = Coordinator(2, 1 << 20)
    coordinator.hear([*both(define(0, "a")), (1, define(1, "b")), (1, Submit(1))])
    assert coordinator.hear(both(Submit(0))) == [Addressed(r, Order((0,))) for r in BOTH]


def test_what_was_sent_ahead_does_not_count_where_a_rank_has_joined() -> None:
    coordinator = Coordinator(3, 1 << 20)
    coordinator.hear([*both(define(0, "a")), (2, Join())])
    addressed = coordinator.hear([(0, Submit(0, ahead=1)), (1, Submit(0, ahead=1))])
    assert [type(each.message) for each in addressed] == [Detailed] * 3


def test_different_reductions_are_not_fused() -> None:
    coordinator = Coordinator(2, 1 << 20)
    coordinator.hear(both(define(0, "a")) + both(define(1, "b", reduction=AVERAGE)))
    addressed = coordinator.hear(both(Submit(0)) + both(Submit(1)))
    assert [note.message for note in addressed if note.to == 1] == [Order((0,)), Order((1,))]


def test_sizes_that_differ_are_told_to_all() -> None:
    coordinator = Coordinator(2, 1 << 20)
    first, second = (define(0, "g", rows, Kind.ALLGATHER) for rows in (1, 5))
    addressed = coordinator.hear([(0, first), (1, second), *both(Submit(0))])
    assert [note.to for note in addressed] == [0, 1]
    assert addressed[0].message == Detailed(0, 0, pack_described((first.content, second.content)))


def test_joined_rank_hears_of_what_the_others_do() -> None:
    coordinator = Coordinator(2, 1 << 20)
    first = define(0, "a")
    addressed = coordinator.hear([(0, first), (1, Join()), (0, Submit(0))])
    assert addressed == [
        Addressed(0, Detailed(0, 0, pack_described((first.content, None)))),
        Addressed(1, Detailed(-1, 0, pack_described((first.content, None)))),
    ]
    assert coordinator.hear([(0, Join())]) == [Addressed(0, Joined(0)), Addressed(1, Joined(0))]


def test_mismatch_is_refused_on_all() -> None:
    coordinator = Coordinator(2, 1 << 20)
    addressed = coordinator.hear(
        [(0, define(0, "a")), (1, define(7, "a", rows=2)), (0, Submit(0)), (1, Submit(7))]
    )
    assert [(note.to, type(note.message), note.message.number) for note in addressed] == [  # type: ignore[union-attr]
        (0, Refused, 0),
        (1, Refused, 7),
    ]


def test_who_is_missing_is_told_to_who_asks() -> None:
    coordinator = Coordinator(3, 1 << 20)
    coordinator.hear([(1, define(4, "a")), (1, Submit(4))])
    assert coordinator.hear([(1, Ask(4))]) == [Addressed(1, Missing(4, (0, 2)))]


def test_loss_is_told_to_the_living_and_a_goodbye_is_no_loss() -> None:
    coordinator = Coordinator(3, 1 << 20)
    assert coordinator.hear([(2, Leave())]) == []
    assert coordinator.lost(2) == []
    assert coordinator.lost(1) == [Addressed(0, Lost(1))]


def test_what_waits_for_a_rank_that_left_is_refused() -> None:
    coordinator = Coordinator(2, 1 << 20)
    coordinator.hear([(0, define(0, "a")), (0, Submit(0))])
    (note,) = coordinator.hear([(1, Leave())])
    assert (note.to, type(note.message)) == (0, Refused)


def test_process_set_is_known_from_its_first_definition() -> None:
    coordinator = Coordinator(3, 1 << 20)
    own = define(0, "a", set=(1, (1, 2)))
    addressed = coordinator.hear([(1, own), (2, own), (1, Submit(0)), (2, Submit(0))])
    assert [note.to for note in addressed] == [1, 2]


@given(st.integers(0, 10**6), st.integers(2, 4))
def test_all_ranks_get_the_same_orders_whatever_they_submit_first(seed: int, size: int) -> None:
    chance = random.Random(seed)
    coordinator = Coordinator(size, 500)
    names = [f"n{index}" for index in range(8)]
    numbers = {rank: chance.sample(range(100), 8) for rank in range(size)}
    queues = []
    for rank in range(size):
        told: list[tuple[int, Message]] = []
        for index in chance.sample(range(8), 8):
            number = numbers[rank][index]
            shape = Description(Kind.ALLREDUCE, names[index], ("float32",), ((30,),), SUM)
            content = shape.encode().decode()
            told += [(rank, Define(number, 0, tuple(range(size)), content)), (rank, Submit(number))]
        queues.append(told)
    heard: dict[int, list[list[int]]] = {rank: [] for rank in range(size)}
    while any(queues):
        queue = chance.choice([each for each in queues if each])
        batch = [queue.pop(0) for _ in range(min(len(queue), chance.randint(1, 5)))]
        for note in coordinator.hear(batch):
            assert isinstance(note.message, Order)
            heard[note.to].append([numbers[note.to].index(n) for n in note.message.numbers])
    assert all(orders == heard[0] for orders in heard.values())
    assert sorted(functools.reduce(operator.iadd, heard[0], [])) == list(range(8))


def test_rank_that_says_nonsense_counts_as_lost_and_is_heard_no_more() -> None:
    for nonsense in (
        Submit(3),
        Ask(3),
        Define(1, 0, BOTH, "{}"),
        Define(1, 0, BOTH, define(1, "a").content.replace("float32", "float")[:-1]),
        Define(1, 0, BOTH, define(1, "a").content.replace("float32", "Tensor")),
        Define(1, 0, BOTH, define(1, "a").content.replace("allreduce", "explode")),
        Define(1, 4, (0, 7), define(1, "a").content),
        Define(1, 4, (1,), define(1, "a").content),
    ):
        coordinator = Coordinator(2, 1 << 20)
        ((to, lost),) = coordinator.hear([(0, nonsense)])
        assert (to, lost.rank) == (1, 0)
        assert lost.why.startswith("said what makes no sense (")
        assert coordinator.hear([(0, define(1, "a")), (0, Submit(1)), (0, Ask(5))]) == []


def test_ranks_of_a_set_are_told_once() -> None:
    coordinator = Coordinator(3, 1 << 20)
    first, second = (define(n, f"x{n}", set=(7, ranks)) for n, ranks in ((0, (0, 2)), (1, ())))
    told = [(rank, message) for rank in (0, 2) for message in (first, second)]
    assert coordinator.hear(told) == []
    addressed = coordinator.hear([(0, Submit(1)), (2, Submit(1))])
    assert addressed == [Addressed(rank, Order((1,), (), True)) for rank in (0, 2)]


def test_set_whose_ranks_nobody_has_told_makes_no_sense() -> None:
    lost = Coordinator(2, 0).hear([(1, define(0, "x", set=(7, ())))])
    assert [each.to for each in lost] == [0]
    assert "makes no sense" in lost[0].message.why


def test_only_the_first_loss_is_told() -> None:
    coordinator = Coordinator(4, 0)
    assert [each.to for each in coordinator.lost(3)] == [2, 1, 0]
    assert coordinator.lost(2) == []
