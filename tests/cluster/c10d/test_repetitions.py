"""What a program does again and again: reductions and broadcasts that it waits for at once, and
messages."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.c10d.flight_recorder import RECORDER
from lockstitch.collectives.repeated import Repeated
from lockstitch.errors import CollectiveError, StalledError
from tests.cluster.c10d.test_process_group import OP, Groups, options
from tests.unit.wire.interrupts import interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 3
MODULES = tuple(
    f"lockstitch.{name}"
    for name in (
        "c10d.flight_recorder",
        "c10d.membership",
        "c10d.repetitions",
        "collectives.handles",
        "collectives.pending_operations",
        "collectives.repeated",
        "collectives.shared_memory.backend",
        "collectives.shared_memory.driving",
        "collectives.shared_memory.lanes",
        "collectives.shared_memory.log_negotiation",
        "collectives.shared_memory.publishing",
        "collectives.shared_memory.quick",
        "collectives.shared_memory.shortcut",
        "collectives.shared_memory.whole",
    )
)


@pytest.fixture
def groups() -> Iterator[Groups]:
    with Groups("shared_memory") as running:
        yield running


@pytest.fixture
def performed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The handles of all that went this way, on all ranks."""
    return handles_of(monkeypatch, "perform")


@pytest.fixture
def sent_again(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The same, of messages."""
    return handles_of(monkeypatch, "submit")


def handles_of(monkeypatch: pytest.MonkeyPatch, method: str) -> list[object]:
    found: list[object] = []
    goes_on = getattr(Repeated, method)

    def notes(repeated: Repeated, handle: Any) -> None:
        found.append(handle)
        goes_on(repeated, handle)

    monkeypatch.setattr(Repeated, method, notes)
    return found


def test_from_the_second_on_they_are_repetitions(groups: Groups, performed: list[object]) -> None:
    RECORDER.clear()

    def run(group: Any, rank: int) -> None:
        for number in range(5):
            for dtype in (torch.float32, torch.int64):
                for op in (OP.SUM, OP.MAX):
                    mine = torch.full((4,), rank + number, dtype=dtype)
                    assert group.allreduce([mine], options(op, is_async=False)) is None
                    wanted = 3 * number + 3 if op is OP.SUM else number + 2
                    assert mine.tolist() == [wanted] * 4

    groups.run(run)
    assert len(performed) == 4 * 4 * SIZE
    entries = RECORDER.entries()
    for group in groups.groups:
        mine = [each for each in entries if each.group is group._label]
        assert [each.number for each in mine] == list(range(1, 21))
        assert {(each.name, each.state) for each in mine} == {("all_reduce", "done")}
        assert [each.submitted_at for each in mine] == sorted(each.submitted_at for each in mine)
        assert group._get_sequence_number_for_group() == 20


def test_broadcasts_are_too(groups: Groups, performed: list[object]) -> None:
    def run(group: Any, rank: int) -> None:
        for number in range(5):
            for root in range(SIZE):
                mine = torch.full((4,), rank + 10 * number)
                assert group.broadcast([mine], options(root=root, is_async=False)) is None
                assert mine.tolist() == [root + 10 * number] * 4

    groups.run(run)
    assert len(performed) == 4 * SIZE * SIZE


def test_messages_are_too(groups: Groups, sent_again: list[object]) -> None:
    RECORDER.clear()

    def run(group: Any, rank: int) -> None:
        after, before = (rank + 1) % SIZE, (rank - 1) % SIZE
        for number in range(6):
            for shape in ((4,), (2, 3)):
                mine = torch.full(shape, rank + 10.0 * number)
                theirs = torch.zeros(*shape, 2)[..., 0]  # not in one piece
                if rank:
                    received = group.recv([theirs], before, 7)
                    received.wait()
                    assert group.send([mine], after, 7).wait()
                else:
                    assert group.send([mine], after, 7).wait()
                    received = group.recv([theirs], before, 7)
                    received.wait()
                assert received.source_rank() == before
                assert received.is_success()
                assert torch.equal(theirs, torch.full(shape, before + 10.0 * number))

    groups.run(run)
    assert len(sent_again) == 5 * 2 * 2 * SIZE
    for group in groups.groups:
        mine = [each for each in RECORDER.entries() if each.group is group._label]
        assert [each.number for each in mine] == list(range(1, 25))
        assert {each.is_message for each in mine} == {True}
        assert group._get_sequence_number_for_group() == 0


def test_messages_among_others_keep_their_order(groups: Groups, sent_again: list[object]) -> None:
    def run(group: Any, rank: int) -> None:
        for number in range(40):
            if rank == 2:
                assert group.allreduce([torch.ones(4)], options()).wait()
                continue
            contents = [torch.full((4,), 3.0 * number + each) for each in range(1 + number % 3)]
            theirs = [torch.zeros(4) for _ in contents]
            works = [
                (group.recv([place], 1 - rank, 0), group.send([each], 1 - rank, 0))
                for each, place in zip(contents, theirs, strict=True)
            ]
            reduction = group.allreduce([torch.ones(4)], options())
            for pair in works[:: -1 if number % 2 else 1]:
                for work in pair:
                    assert work.wait()
            assert reduction.wait()
            assert torch.equal(torch.stack(theirs), torch.stack(contents))

    groups.run(run)
    assert sent_again


def test_a_message_that_goes_wrong_is_explained(groups: Groups) -> None:
    def exchange(group: Any, rank: int) -> None:
        for _ in range(3):
            if rank == 0:
                group.send([torch.ones(4)], 1, 0).wait()
            elif rank == 1:
                group.recv([torch.ones(4)], 0, 0).wait()

    groups.run(exchange)
    work = groups.groups[0].send([torch.ones(4)], 1, 0)
    assert not work.is_completed()
    groups.groups[1]._session.shutdown()
    with pytest.raises(CollectiveError, match=r"rank 0 was in send 0->1 .*message 4 of group"):
        work.wait()
    with pytest.raises(CollectiveError, match="rank 1 shut down without it"):
        groups.groups[0].send([torch.ones(4)], 1, 0).wait()
    groups.groups[0]._session.shutdown()
    with pytest.raises(CollectiveError, match=r"rank 0 was in send 0->1, in group 'test'"):
        groups.groups[0].send([torch.ones(4)], 1, 0)


def test_others_are_not(groups: Groups, performed: list[object]) -> None:
    def run(group: Any, _: int) -> None:
        for _ in range(3):
            group.allreduce([torch.ones(4)], options(is_async=True)).wait()
            group.allreduce([torch.ones(40_000)], options(is_async=False))
            group.allreduce([torch.ones(4), torch.ones(4)], options(is_async=False))
            group.allreduce([torch.ones(4)]).wait()

    groups.run(run)
    assert not performed

    def with_limit(group: Any, _: int) -> None:
        for _ in range(3):
            opts = options(is_async=False)
            opts.timeout = timedelta(seconds=20)
            work = group.allreduce([torch.ones(4)], opts)
            assert work is not None
            work.wait()

    groups.run(with_limit)
    assert not performed


def reduce_twice(group: Any, _: int) -> None:
    for _ in range(2):
        group.allreduce([torch.ones(4)], options(is_async=False))


def test_what_goes_wrong_is_explained(groups: Groups) -> None:
    groups.run(reduce_twice)
    groups.groups[1]._session.shutdown()
    with pytest.raises(CollectiveError, match=r"rank 0 was in all_reduce .*operation 3 of group"):
        groups.groups[0].allreduce([torch.ones(4)], options(is_async=False))
    (last,) = [each for each in RECORDER.entries() if each.group is groups.groups[0]._label][-1:]
    assert (last.number, last.state) == (3, "failed")


def test_a_group_that_has_ended_says_so_as_ever(groups: Groups) -> None:
    groups.run(reduce_twice)
    groups.groups[0]._session.shutdown()
    with pytest.raises(CollectiveError, match=r"rank 0 was in all_reduce, in group 'test'"):
        groups.groups[0].allreduce([torch.ones(4)], options(is_async=False))


def test_who_waits_in_vain_is_told_what_the_others_do(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups.run(reduce_twice)
    group = groups.groups[0]
    monkeypatch.setattr(
        group._group, "reports_of", lambda ranks: [f"rank {each} sleeps" for each in ranks]
    )
    group._session.give_up_after(0.1)
    with pytest.raises(StalledError, match=r"(?s)operation 3 of.*rank 1 sleeps\n  rank 2 sleeps"):
        group.allreduce([torch.ones(4)], options(is_async=False))


def test_an_interrupt_anywhere_leaves_nothing_behind() -> None:
    number, is_struck = 0, True
    while is_struck:
        with Groups("shared_memory", 2) as groups:
            first, second = groups.groups
            groups.run(lambda group, _: often(group))
            session = first._session
            while is_struck and not session._pending.is_broken:
                number += 1
                theirs = torch.full((4,), 2.0)
                work = second.allreduce([theirs], options(is_async=True))
                before = session.statistics().completed
                with interrupted(number, *MODULES) as interrupter:
                    once(first)
                is_struck = interrupter.remaining <= 0
                for _ in range(100):
                    session._backend.advance()
                assert not session.statistics().under_way, interrupter.where
                if session._pending.is_broken:
                    with contextlib.suppress(CollectiveError):  # unless rank 0 had told of it
                        work.wait()
                    continue
                if session.statistics().completed == before:
                    once(first)
                work.wait()
                assert theirs.tolist() == [3.0] * 4, interrupter.where
    assert number > 30


def once(group: Any) -> None:
    mine = torch.ones(4)
    group.allreduce([mine], options(is_async=False))


def often(group: Any) -> None:
    for _ in range(4):
        once(group)
