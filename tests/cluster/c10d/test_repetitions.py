"""Reductions that a program waits for at once, again and again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.c10d.flight_recorder import RECORDER
from lockstitch.collectives.repeated import Repeated
from lockstitch.errors import CollectiveError
from tests.cluster.c10d.test_process_group import OP, Groups, options

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 3


@pytest.fixture
def groups() -> Iterator[Groups]:
    with Groups("shared_memory") as running:
        yield running


@pytest.fixture
def performed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The handles of all that went this way, on all ranks."""
    found: list[object] = []
    perform = Repeated.perform

    def performs(repeated: Repeated, handle: Any) -> None:
        found.append(handle)
        perform(repeated, handle)

    monkeypatch.setattr(Repeated, "perform", performs)
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


def test_what_goes_wrong_is_explained(groups: Groups) -> None:
    def run(group: Any, _: int) -> None:
        for _ in range(2):
            group.allreduce([torch.ones(4)], options(is_async=False))

    groups.run(run)
    groups.groups[1]._session.shutdown()
    with pytest.raises(CollectiveError, match=r"rank 0 was in all_reduce .*operation 3 of group"):
        groups.groups[0].allreduce([torch.ones(4)], options(is_async=False))
    (last,) = [each for each in RECORDER.entries() if each.group is groups.groups[0]._label][-1:]
    assert (last.number, last.state) == (3, "failed")
