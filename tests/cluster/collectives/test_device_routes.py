"""The way of tensors on devices between ranks with a GPU each. Here tensors in host memory count as
such, and Gloo takes the place of NCCL; all else is as with GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.collectives import AVERAGE, SUM, Kind, ReduceOp, Reduction, Session, Stall
from lockstitch.collectives.c10d.group_operations import GroupOperations
from lockstitch.collectives.nccl_bootstrap import NcclBootstrap
from lockstitch.collectives.placement import Placement
from lockstitch.errors import CollectiveError, MismatchError, RankLostError
from tests.cluster.collectives.ranks import Ranks, peers_of

if TYPE_CHECKING:
    from lockstitch.collectives.requests import Request

SIZE = 3


@pytest.fixture(autouse=True)
def foreign(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Tensors of floating-point numbers are on the GPUs that are returned, by rank."""
    gpus = {rank: f"gpu {rank}" for rank in range(SIZE)}

    def is_on_host(request: Request) -> bool:
        return not any(tensor.is_floating_point() for tensor in request.tensors)

    def placement(bootstrap: NcclBootstrap, _device: object) -> Placement:
        return Placement(gpus[bootstrap._rank], True, bootstrap._options.device_operations)

    def groups(bootstrap: NcclBootstrap, store: Any, _device: object) -> GroupOperations:
        rank = bootstrap._rank
        return GroupOperations(rank, store, "cpu", peers=peers_of(rank, store))

    monkeypatch.setattr(Session, "_is_on_host", staticmethod(is_on_host))
    monkeypatch.setattr("lockstitch.collectives.session.is_usual", lambda _request: False)
    monkeypatch.setattr(NcclBootstrap, "_placed", placement)
    monkeypatch.setattr(NcclBootstrap, "_groups", groups)
    return gpus


@pytest.fixture(params=["shared_memory", "c10d", "hierarchical"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def route_of(session: Session, set_id: int = 0) -> str:
    route = session._devices._routes[set_id]
    return "host" if route.backend is None else route.backend.name


def test_all_operations_go_by_nccl(backend: str) -> None:
    def program(session: Session) -> str:
        me = session.rank
        one = torch.full((3,), me + 1.0)
        assert session.wait(session.allreduce(one, SUM)).tolist() == [6.0] * 3
        assert session.wait(session.allreduce(one, AVERAGE, output=one)) is one
        assert one.tolist() == [2.0] * 3
        big = torch.full((600_000,), me + 1.0, dtype=torch.float64)
        scaled = Reduction(ReduceOp.MAX, 2.0, 0.5)
        assert session.wait(session.allreduce(big, scaled))[-1] == 3.0
        group = session.grouped_allreduce([torch.ones(2), torch.ones(5)], SUM)
        assert [each.sum().item() for each in session.wait(group)] == [6.0, 15.0]
        gathered = session.allgather(torch.full((me + 1, 2), float(me)))
        assert session.wait(gathered)[:, 0].tolist() == [0, 1, 1, 2, 2, 2]
        assert gathered.rows == ((1, 2, 3),)
        assert session.wait(session.broadcast(torch.tensor([float(me)]), 2)).item() == 2.0
        rows, counts = session.wait(session.alltoall(torch.arange(3.0) + 10 * me))
        assert rows.tolist() == [me, 10 + me, 20 + me]
        assert counts.tolist() == [1, 1, 1]
        assert session.wait(session.reducescatter(torch.ones(3, 2), SUM)).tolist() == [[3.0, 3.0]]
        assert session.wait(session.allreduce(torch.tensor([me]), SUM)).item() == 3
        return route_of(session)

    with Ranks(SIZE, backend) as ranks:
        assert ranks.run(program) == ["nccl"] * SIZE


def test_ranks_that_share_a_gpu_go_through_host_memory(foreign, backend: str) -> None:
    foreign[2] = foreign[0]

    def program(session: Session) -> str:
        assert session.wait(session.allreduce(torch.ones(2), SUM)).tolist() == [3.0, 3.0]
        return route_of(session)

    with Ranks(SIZE, backend) as ranks:
        assert ranks.run(program) == ["host"] * SIZE


def test_sets_decide_for_themselves(foreign, backend: str) -> None:
    foreign[2] = foreign[0]

    def program(session: Session) -> tuple[str, str]:
        one = session.add_process_set([1, 2])
        other = session.add_process_set([0, 2])
        routes = []
        for each in (one, other):
            if each.includes(session.rank):
                handle = session.allreduce(torch.ones(1), SUM, process_set=each.id)
                assert session.wait(handle).item() == 2.0
                routes.append(route_of(session, each.id))
        session.barrier()
        session.remove_process_set(one.id)
        session.remove_process_set(other.id)
        return routes

    with Ranks(SIZE, backend) as ranks:
        assert ranks.run(program) == [["host"], ["nccl"], ["nccl", "host"]]


def test_demand_that_cannot_be_met_is_an_error_for_all(foreign) -> None:
    foreign[1] = foreign[0]

    def program(session: Session) -> None:
        for _ in range(2):
            with pytest.raises(CollectiveError, match="ranks 0 and 1 use the same GPU"):
                session.wait(session.allreduce(torch.ones(1)))
        assert session.wait(session.allreduce(torch.tensor([1]), SUM)).item() == 3

    with Ranks(SIZE, "shared_memory", device_operations="nccl") as ranks:
        ranks.run(program)


def test_host_memory_can_be_demanded() -> None:
    def program(session: Session) -> None:
        assert session.wait(session.allreduce(torch.ones(1), SUM)).item() == 3.0
        assert not session._devices._routes

    with Ranks(SIZE, "shared_memory", device_operations="host") as ranks:
        ranks.run(program)


def test_first_operations_may_come_in_any_order_among_others() -> None:
    def program(session: Session) -> None:
        names = ["a", "b", "c"]
        names = names[session.rank :] + names[: session.rank]
        handles = [session.deferred.allreduce(torch.ones(1), SUM, name=name) for name in names]
        host = session.allreduce(torch.tensor([1]), SUM, name="first of the host")
        assert session.wait(host).item() == 3
        assert [session.wait(handle).item() for handle in handles] == [3.0] * 3

    with Ranks(SIZE, "shared_memory") as ranks:
        ranks.run(program)


def test_name_may_be_used_on_either_side_in_turn(backend: str) -> None:
    def program(session: Session) -> None:
        for _ in range(3):
            for value in (torch.ones(2), torch.ones(2, dtype=torch.int64)):
                handle = session.allreduce(value, SUM, name="x")
                assert session.wait(handle).tolist() == [3, 3]

    with Ranks(SIZE, backend) as ranks:
        ranks.run(program)


def test_disagreement_is_told_and_the_session_goes_on() -> None:
    def program(session: Session) -> None:
        with pytest.raises(MismatchError, match="shape"):
            session.wait(session.allreduce(torch.ones(session.rank + 1), name="differs"))
        assert session.wait(session.allreduce(torch.ones(1), SUM)).item() == 3.0

    with Ranks(SIZE, "shared_memory") as ranks:
        ranks.run(program)


def test_ranks_that_have_joined_count_for_nothing(backend: str) -> None:
    def program(session: Session) -> None:
        for epoch in range(2):
            for number in range(session.rank + 1):
                handle = session.allreduce(torch.ones(2), SUM, name=f"{epoch}.{number}")
                assert session.wait(handle)[0].item() == SIZE - number
            assert session.join() in range(SIZE)

    with Ranks(SIZE, backend) as ranks:
        ranks.run(program)


def test_rank_that_joins_without_ever_using_a_device_leaves_the_others_to_host_memory() -> None:
    def program(session: Session) -> list[str]:
        routes = []
        if session.rank:
            handle = session.allreduce(torch.ones(2), SUM)
            assert session.wait(handle)[0].item() == 2.0
            routes.append(route_of(session))
        session.join()
        assert session.wait(session.allreduce(torch.ones(2), SUM))[0].item() == 3.0
        return [*routes, route_of(session)]

    with Ranks(SIZE, "shared_memory") as ranks:
        assert ranks.run(program) == [["nccl"], ["host", "nccl"], ["host", "nccl"]]


def test_rank_that_shuts_down_fails_what_needs_it_and_no_more() -> None:
    def program(session: Session) -> None:
        pair = session.add_process_set([1, 2])
        session.wait(session.allreduce(torch.ones(1), SUM))
        session.barrier()
        if session.rank == 0:
            session.shutdown()
            return
        with pytest.raises(RankLostError):
            session.wait(session.allreduce(torch.ones(1), SUM, name="without 0"))
        handle = session.allreduce(torch.ones(1), SUM, process_set=pair.id)
        assert session.wait(handle).item() == 2.0

    with Ranks(SIZE, "shared_memory") as ranks:
        ranks.run(program)


def test_session_that_ends_meanwhile_leaves_nothing_behind() -> None:
    def program(session: Session) -> None:
        if session.rank == 0:
            handle = session.allreduce(torch.ones(1), SUM)
            session.shutdown()
            with pytest.raises(CollectiveError):
                session.wait(handle)

    with Ranks(SIZE, "shared_memory") as ranks:
        ranks.run(program)


def test_single_rank_goes_by_nccl_where_that_is_demanded() -> None:
    with Ranks(1, "auto", device_operations="nccl") as ranks:
        (session,) = ranks.sessions
        assert session.wait(session.allreduce(torch.ones(2), SUM)).tolist() == [1.0, 1.0]
        assert session.wait(session.broadcast(torch.ones(2), 0)).tolist() == [1.0, 1.0]
        assert route_of(session) == "nccl"
        assert session.join() == 0


def test_wait_for_ranks_that_use_no_device_is_reported() -> None:
    def program(session: Session) -> set[str]:
        seen: list[Stall] = []
        session.observers.stall = seen.append
        if session.rank:
            handle = session.allreduce(torch.ones(1), SUM, name="x")
            with pytest.raises(CollectiveError, match="waited"):
                session.wait(handle)
        return {(each.name, each.missing_ranks) for each in seen if each.kind is Kind.ALLGATHER}

    with Ranks(
        SIZE, "shared_memory", stall_warning_seconds=1.2, stall_failure_seconds=2.5
    ) as ranks:
        assert ranks.run(program)[1:] == [{("where CUDA tensors are", (0,))}] * 2
