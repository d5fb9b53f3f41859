"""Tensors that are not in host memory, with each backend. Here they only count as such, so that no
device is needed: all copies to and fro are made."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.collectives import (
    AVERAGE,
    SUM,
    Kind,
    ReduceOp,
    Reduction,
    Request,
    Session,
    staging,
)
from lockstitch.devices.streams import Streams
from lockstitch.errors import CollectiveError, MismatchError
from tests.cluster.collectives.ranks import BACKENDS, Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPES = ((), (0,), (3,), (40, 50), (700, 1000))
"""The last one is larger than what travels as a whole."""


@pytest.fixture(autouse=True)
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_on_host(request: Request) -> bool:
        return not request.tensors

    monkeypatch.setattr(Session, "_is_on_host", staticmethod(is_on_host))
    monkeypatch.setattr("lockstitch.collectives.session.is_usual", lambda _request: False)


@pytest.fixture(scope="module", params=BACKENDS)
def ranks(request: Any) -> Iterator[Ranks]:
    options = {} if request.param == "memory" else {"device_operations": "host"}
    with Ranks(3, request.param, **options) as opened:
        yield opened


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> None:
    """Here the sessions live as long as the module."""


def own(session: Session, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(session.rank)
    return torch.randint(0, 5, shape, generator=generator).to(dtype)


def everybodys(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    return [
        torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(rank)).to(dtype)
        for rank in range(3)
    ]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_reduction_goes_to_new_tensors_and_into_old_ones(ranks, shape, dtype) -> None:
    parts = everybodys(shape, dtype)
    total = parts[0] + parts[1] + parts[2]

    def program(session: Session) -> None:
        mine = own(session, shape, dtype)
        result = session.wait(session.allreduce(mine, SUM))
        assert torch.equal(result, total)
        assert torch.equal(mine, parts[session.rank])
        assert session.wait(session.allreduce(mine, SUM, output=mine)) is mine
        assert torch.equal(mine, total)

    ranks.run(program)


def test_tensors_in_any_order_of_memory_are_reduced(ranks) -> None:
    shape = (300, 1100)
    total = sum(everybodys(shape, torch.float32), torch.zeros(()))

    def program(session: Session) -> None:
        mine = own(session, shape, torch.float32).t().contiguous().t()
        session.wait(session.allreduce(mine, SUM, output=mine))
        assert torch.equal(mine, total)

    ranks.run(program)


def test_scales_and_other_operators_are_those_of_host_memory(ranks) -> None:
    parts = everybodys((700, 1000), torch.float32)
    scaled = Reduction(ReduceOp.AVERAGE, 0.5, 4.0)

    def program(session: Session) -> None:
        mine = own(session, (700, 1000), torch.float32)
        result = session.wait(session.allreduce(mine, scaled))
        torch.testing.assert_close(result, 2.0 * (parts[0] + parts[1] + parts[2]) / 3)
        result = session.wait(session.allreduce(mine, Reduction(ReduceOp.MAX)))
        assert torch.equal(result, torch.stack(parts).amax(0))
        adapted = session.wait(session.allreduce(mine, Reduction(ReduceOp.ADASUM)))
        assert adapted.shape == mine.shape

    ranks.run(program)


@pytest.mark.parametrize("rows", [5, 500])
@pytest.mark.parametrize("is_in_place", [False, True])
def test_groups_are_reduced_together(ranks, rows, is_in_place) -> None:
    kinds = [((rows, 7), torch.float32), ((rows, 900), torch.float32), ((2,), torch.float64)]
    totals = [sum(everybodys(*kind), torch.zeros((), dtype=kind[1])) for kind in kinds]

    def program(session: Session) -> None:
        mine = [own(session, *kind) for kind in kinds]
        handle = session.grouped_allreduce(mine, SUM, outputs=mine if is_in_place else None)
        for tensor, result, total in zip(mine, session.wait(handle), totals, strict=True):
            assert torch.equal(result, total)
            assert (result is tensor) == is_in_place

    ranks.run(program)


def test_what_moves_without_being_reduced_arrives(ranks) -> None:
    def program(session: Session) -> None:
        me = session.rank
        handle = session.allgather(torch.full((me + 1, 2), me))
        assert session.wait(handle)[:, 0].tolist() == [0, 1, 1, 2, 2, 2]
        assert handle.rows == ((1, 2, 3),)
        assert session.wait(session.broadcast(torch.full((2,), me), 1)).tolist() == [1, 1]
        target = torch.full((2,), me)
        assert session.wait(session.broadcast(target, 2, output=target)) is target
        assert target.tolist() == [2, 2]
        rows, received = session.wait(session.alltoall(torch.arange(6), [1, 2, 3]))
        assert received.tolist() == [me + 1] * 3
        assert len(rows) == 3 * (me + 1)
        scattered = session.wait(session.reducescatter(torch.ones(7, 2), AVERAGE))
        assert scattered.tolist() == [[1.0, 1.0]] * (3 if me == 0 else 2)

    ranks.run(program)


def test_results_may_be_asked_for_again_and_stay_when_memory_is_used_anew(ranks) -> None:
    def program(session: Session) -> None:
        handle = session.allreduce(torch.full((1000,), 1.0), SUM)
        first = session.wait(handle)
        for _ in range(3):
            session.wait(session.allreduce(torch.full((1000,), 7.0), SUM))
        assert session.wait(handle) is first
        assert first.tolist() == [3.0] * 1000

    ranks.run(program)


def test_operations_that_nobody_waits_for_cost_no_memory(ranks) -> None:
    def program(session: Session) -> None:
        memory = session._staging._memory
        made = memory.statistics().made
        for _ in range(5):
            session.barrier()
            session.allreduce(torch.ones(1000), SUM, name="forgotten")
            session.barrier()
        gc.collect()
        assert memory.statistics().made <= made + 2

    ranks.run(program)


def test_disagreement_is_told_and_the_session_goes_on(ranks) -> None:
    def program(session: Session) -> None:
        with pytest.raises(MismatchError):
            session.wait(session.allreduce(torch.ones(session.rank + 1), SUM, name="differs"))
        assert session.wait(session.allreduce(torch.ones(2), SUM)).tolist() == [3.0, 3.0]

    ranks.run(program)


def test_some_ranks_may_have_joined(ranks) -> None:
    def program(session: Session) -> None:
        if session.rank < 2:
            assert session.wait(session.allreduce(torch.ones(2), SUM)).tolist() == [2.0, 2.0]
        session.join()

    ranks.run(program)


def test_ranks_with_tensors_elsewhere_and_in_host_memory_meet(ranks, monkeypatch) -> None:
    def is_on_host(request: Request) -> bool:
        return not request.tensors or request.tensors[0][0].item() == 1.0

    monkeypatch.setattr(Session, "_is_on_host", staticmethod(is_on_host))
    monkeypatch.setattr("lockstitch.collectives.session.is_usual", lambda _request: False)

    def program(session: Session) -> None:
        for count in (10, 1 << 20):
            mine = torch.full((count,), float(session.rank))
            assert session.wait(session.allreduce(mine, SUM, output=mine))[-1] == 3.0

    ranks.run(program)


# ---------------------------------------------------------------- copies that take their time


class Event:
    """Comes when somebody waits for it."""

    waited = 0

    def __init__(self) -> None:
        self.has_come = False

    def query(self) -> bool:
        return self.has_come

    def synchronize(self) -> None:
        Event.waited += 1
        self.has_come = True


class SlowStreams(Streams):
    """As if a device had still to do what it was told."""

    def record(self) -> list[Any]:
        return [Event()]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "Streams", SlowStreams)
    monkeypatch.setattr(Event, "waited", 0)


def test_who_waits_for_the_result_waits_for_the_copy(ranks, slow) -> None:
    def program(session: Session) -> None:
        for count in (10, 1 << 20):
            group = [torch.ones(count), torch.ones(3)]
            handles = [
                session.submit(request_of(group, f"{number}", is_awaited=True))
                for number in range(4)
            ]
            assert not any(handle.is_done for handle in handles)
            for handle in reversed(handles):
                assert [each[-1].item() for each in session.wait(handle)] == [3.0, 3.0]

    ranks.run(program)
    assert Event.waited >= 3 * 8


def test_copies_that_nobody_waits_for_are_looked_after(ranks, slow) -> None:
    def program(session: Session) -> None:
        handle = session.allreduce(torch.ones(10), SUM, name="alone")
        while not handle.is_done:  # by a thread; nobody asks
            handle.signal().wait(0.01)
        assert session.wait(handle)[0].item() == 3.0

    ranks.run(program)


def test_what_is_being_copied_comes_before_a_join(ranks, slow) -> None:
    def program(session: Session) -> None:
        handle = session.submit(request_of([torch.ones(3)], "last", is_awaited=True))
        session.join()
        assert session.wait(handle)[0].tolist() == [3.0] * 3

    ranks.run(program)


def test_session_that_ends_while_tensors_are_copied_fails_them(slow) -> None:
    with Ranks(2, "shared_memory", device_operations="host") as opened:
        handle = opened[0].submit(request_of([torch.ones(3)], "x", is_awaited=True))
        opened[0].shutdown()
        with pytest.raises(CollectiveError):
            opened[0].wait(handle)


def request_of(tensors: list[torch.Tensor], name: str, *, is_awaited: bool) -> Request:
    return Request(
        Kind.ALLREDUCE,
        name,
        tuple(tensors),
        reduction=SUM,
        is_group=True,
        is_awaited=is_awaited,
    )
