"""Every collective of a process group, on every backend of sessions, against plain torch."""

from __future__ import annotations

import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import distributed
from torch.distributed import HashStore

from lockstitch.c10d.flight_recorder import RECORDER, GroupLabel
from lockstitch.c10d.open_groups import OpenGroups
from lockstitch.c10d.process_group import ProcessGroup
from lockstitch.c10d.trace import trace_of
from lockstitch.errors import CollectiveError, MismatchError, StalledError
from tests.cluster.collectives.ranks import BACKENDS, Ranks, in_threads, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZE = 3
OP = distributed.ReduceOp
FOLDS = {
    OP.SUM: torch.add,
    OP.PRODUCT: torch.mul,
    OP.MIN: torch.minimum,
    OP.MAX: torch.maximum,
    OP.BAND: torch.bitwise_and,
    OP.BOR: torch.bitwise_or,
    OP.BXOR: torch.bitwise_xor,
}


class Groups:
    """A process group for each rank."""

    def __init__(self, backend: str, size: int = SIZE) -> None:
        self.size = size
        self._ranks = Ranks(size, backend)
        self._store = HashStore()
        self.groups: list[Any] = []

    def __enter__(self) -> Groups:
        self._ranks.__enter__()
        self.groups = in_threads(self.size, self._made)
        return self

    def __exit__(self, *_error: object) -> None:
        for group in self.groups:
            group.shutdown()

    def _made(self, rank: int) -> ProcessGroup:
        session = self._ranks[rank]
        label = GroupLabel(session, "test", range(self.size))
        return ProcessGroup(session, label, self._store, timedelta(seconds=30))

    def run(self, function: Callable[[Any, int], Any]) -> list[Any]:
        return in_threads(self.size, lambda rank: function(self.groups[rank], rank))

    def errors(self, function: Callable[[Any, int], Any]) -> list[BaseException | None]:
        def attempt(group: Any, rank: int) -> BaseException | None:
            try:
                function(group, rank)
            except Exception as error:  # noqa: BLE001 - returned
                return error
            return None

        return self.run(attempt)


@pytest.fixture(scope="module", params=BACKENDS)
def groups(request: pytest.FixtureRequest) -> Iterator[Groups]:
    with Groups(request.param) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> None:
    """Here the sessions live as long as the module; test_processes.py looks for leaks."""


def reduced(tensors: list[torch.Tensor], op: Any) -> torch.Tensor:
    if op == OP.AVG:
        return reduced(tensors, OP.SUM) / len(tensors)
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        result = FOLDS[op](result, tensor)
    return result


def options(op: Any = OP.SUM, root: int = 0, *, is_async: bool = True) -> Any:
    return SimpleNamespace(reduceOp=op, rootRank=root, asyncOp=is_async, timeout=timedelta(0))


# ---------------------------------------------------------------- reductions


@pytest.mark.parametrize("op", [*FOLDS, OP.AVG], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool], ids=str)
def test_allreduce_of_every_operator_is_that_of_torch(
    groups: Groups, op: Any, dtype: torch.dtype
) -> None:
    is_bitwise = op in (OP.BAND, OP.BOR, OP.BXOR)
    if (is_bitwise and dtype.is_floating_point) or (op == OP.AVG and dtype is not torch.float32):
        pytest.skip("no such operation")
    tensors = [sample(rank, (4, 3), dtype) for rank in range(SIZE)]
    expected = reduced(tensors, op)

    def work(group: Any, rank: int) -> None:
        mine = tensors[rank].clone()
        assert group.allreduce([mine], options(op)).wait()
        torch.testing.assert_close(mine, expected, rtol=0, atol=0)

    groups.run(work)


def test_operator_that_the_dtype_lacks_is_refused_before_anything_is_sent(groups: Groups) -> None:
    errors = groups.errors(lambda group, _: group.allreduce([torch.ones(2)], options(OP.BAND)))
    assert all(isinstance(error, ValueError) for error in errors)


def test_premultiplied_sum_multiplies_by_the_factor_first(groups: Groups) -> None:
    premultiplied = SimpleNamespace(op=OP.PREMUL_SUM, __getstate__=None)

    class Premultiplied:
        op = OP.PREMUL_SUM

        def __getstate__(self) -> tuple[object, float]:
            return premultiplied.op, 0.5

    def work(group: Any, rank: int) -> list[float]:
        mine = torch.tensor([rank + 1.0])
        group.allreduce([mine], options(Premultiplied())).wait()
        return mine.tolist()

    assert groups.run(work) == [[3.0]] * SIZE


def test_coalesced_tensors_of_several_dtypes_are_reduced_together(groups: Groups) -> None:
    def work(group: Any, rank: int) -> None:
        one, two = torch.full((2,), float(rank)), torch.full((3,), rank)
        group.allreduce_coalesced([one, two], options()).wait()
        assert one.tolist() == [3.0] * 2
        assert two.tolist() == [3] * 3

    groups.run(work)


@pytest.mark.parametrize("op", [OP.SUM, OP.AVG], ids=str)
def test_sparse_tensors_are_summed_in_place(groups: Groups, op: Any) -> None:
    def given(rank: int) -> torch.Tensor:
        rows = torch.tensor([[rank, 3, 3][: rank + 1]])
        return torch.sparse_coo_tensor(rows, torch.full((rank + 1, 2), rank + 1.0), (5, 2))

    expected = reduced([given(rank).to_dense() for rank in range(SIZE)], op)

    def work(group: Any, rank: int) -> None:
        mine = given(rank)
        work = group.allreduce([mine], options(op))
        (result,) = work.get_future().wait() if rank else work.result()
        assert result is mine or torch.equal(result.to_dense(), mine.to_dense())
        torch.testing.assert_close(mine.to_dense(), expected)

    groups.run(work)


def test_sparse_and_dense_tensors_do_not_meet(groups: Groups) -> None:
    def work(group: Any, rank: int) -> None:
        mine = torch.ones(3) if rank == 1 else torch.ones(3).to_sparse()
        group.allreduce([mine], options()).wait()

    assert all(isinstance(error, MismatchError) for error in groups.errors(work))


# ---------------------------------------------------------------- moving


def test_alltoall_takes_tensors_and_rows_of_different_sizes(groups: Groups) -> None:
    def work(group: Any, rank: int) -> None:
        given = [torch.full((to,), float(rank)) for to in range(SIZE)]
        wanted = [torch.zeros(rank) for _ in range(SIZE)]
        group.alltoall(wanted, given).wait()
        assert [piece.tolist() for piece in wanted] == [[float(by)] * rank for by in range(SIZE)]
        whole = torch.zeros(SIZE * rank, 2)
        rows = torch.full((3, 2), float(rank))
        group.alltoall_base(whole, rows, [rank] * SIZE, [0, 1, 2]).wait()
        assert whole[:, 1].tolist() == [float(by) for by in range(SIZE) for _ in range(rank)]

    groups.run(work)


def test_numbers_that_do_not_add_up_are_refused(groups: Groups) -> None:
    one, two = torch.ones(1), torch.ones(2)
    for wrong in (
        lambda group: group.all_gather_single(two, two),
        lambda group: group.reduce_scatter_single(two, two),
        lambda group: group.alltoall_base(two, one, [1, 1, 1], [1, 0, 0]),
        lambda group: group.alltoall_base(two, two, [], []),
        lambda group: group.allgather([[one]], [one]),
        lambda group: group.alltoall([one, one, one], [one, two.int(), one]),
    ):
        with pytest.raises(ValueError, match="must be|cannot be|tensors"):
            wrong(groups.groups[0])


# ---------------------------------------------------------------- order


def test_operations_meet_by_order_and_not_by_what_they_are(groups: Groups) -> None:
    def work(group: Any, rank: int) -> None:
        if rank == 1:
            group.barrier().wait()
        else:
            group.allreduce([torch.ones(2)], options()).wait()

    errors = groups.errors(work)
    assert all(isinstance(error, MismatchError) for error in errors)
    assert "barrier on rank 1" in str(errors[0])


def test_shapes_that_differ_are_told_with_the_ranks_and_the_group_goes_on(groups: Groups) -> None:
    def work(group: Any, rank: int) -> None:
        group.allreduce([torch.ones(2 + (rank == 2))], options()).wait()

    errors = groups.errors(work)
    assert all(isinstance(error, MismatchError) for error in errors)
    assert "(3,) on rank 2" in str(errors[0])
    groups.run(lambda group, _: group.barrier().wait())


def test_many_alike_may_be_in_flight(groups: Groups) -> None:
    def work(group: Any, rank: int) -> None:
        tensors = [torch.full((4,), float(rank + index)) for index in range(100)]
        works = [group.allreduce([tensor], options()) for tensor in tensors]
        for index, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
            assert work.result()[0] is tensor
            assert tensor.tolist() == [3.0 + 3 * index] * 4

    groups.run(work)


# ---------------------------------------------------------------- futures, waits


def test_future_has_the_results_though_nobody_waits_for_the_work(groups: Groups) -> None:
    def work(group: Any, rank: int) -> None:
        mine = torch.full((2,), float(rank))
        work = group.allreduce([mine], options())
        doubled = work.get_future().then(lambda done: done.value()[0] * 2)
        assert doubled.wait().tolist() == [6.0, 6.0]
        assert work.is_completed()
        assert work.is_success()

    groups.run(work)


def test_error_is_raised_by_the_future_and_told_by_the_work(groups: Groups) -> None:
    def work(group: Any, rank: int) -> str:
        work = group.allreduce([torch.ones(1 + rank)], options())
        with pytest.raises(RuntimeError, match="disagree"):
            work.get_future().wait()
        assert not work.is_success()
        return str(work.exception())

    assert all("disagree" in text for text in groups.run(work))


def test_wait_with_a_limit_names_who_has_not_come(groups: Groups) -> None:
    def work(group: Any, rank: int) -> None:
        mine = torch.ones(1)
        if rank != 2:
            work = group.allreduce([mine], options())
            with pytest.raises(StalledError, match=r"timed out.*rank 2"):
                work.wait(timedelta(seconds=0.05))
            group.meeting.wait()
        else:
            group.meeting.wait()
            work = group.allreduce([mine], options())
        work.wait()
        assert mine.item() == 3.0

    meeting = threading.Barrier(SIZE)
    for group in groups.groups:
        group.meeting = meeting
    groups.run(work)


def test_monitored_barrier_names_who_has_not_come_and_may_come_later(groups: Groups) -> None:
    def work(group: Any, rank: int) -> None:
        if rank:
            meeting.wait()
            group.barrier().wait()
            return
        soon = timedelta(seconds=0.05)
        with pytest.raises(StalledError, match=r"^Rank 1 failed to pass monitoredBarrier in 50 ms"):
            group.monitored_barrier(soon)
        meeting.wait()

    def work_with_all(group: Any, rank: int) -> None:
        if rank == 0:
            with pytest.raises(StalledError, match="^Rank 0 timed out in monitoredBarrier after 0"):
                group.monitored_barrier(timedelta(0))
            with pytest.raises(StalledError, match="^Ranks 1, 2 failed to pass monitoredBarrier"):
                group.monitored_barrier(timedelta(seconds=0.05), wait_all_ranks=True)
        meeting.wait()
        if rank:
            group.barrier().wait()
            group.barrier().wait()

    meeting = threading.Barrier(SIZE)
    groups.run(work)
    groups.run(work_with_all)
    groups.run(lambda group, _: group.monitored_barrier())


# ---------------------------------------------------------------- messages


def test_messages_meet_by_tag_in_the_order_in_which_they_are_sent(groups: Groups) -> None:
    def work(group: Any, rank: int) -> list[float]:
        if rank == 0:
            sent = [group.send([torch.tensor([n])], 2, int(n) // 10) for n in (1.0, 2.0, 11.0)]
            for each in sent:
                each.wait()
            return []
        if rank == 1:
            return []
        found = [torch.zeros(1).double().float() for _ in range(3)]
        works = [group.recv([found[2]], 0, 1), group.recv([found[0]], 0, 0)]
        works.append(group.recv([found[1]], 0, 0))
        for each in works:
            each.wait()
        return [each.item() for each in found]

    assert groups.run(work)[2] == [1.0, 2.0, 11.0]


def test_a_message_for_nobody_is_refused_at_once(groups: Groups) -> None:
    """It would be waited for until the timeout of the group, which would then be over."""

    def work(group: Any, rank: int) -> None:
        for begin in (group.send, group.recv):
            for nobody in (-1, SIZE):
                with pytest.raises(ValueError, match=f"there is no rank {nobody} in "):
                    begin([torch.zeros(1)], nobody, 0)
        group.allreduce([torch.ones(1)]).wait()

    groups.run(work)


def test_receive_from_any_rank_tells_who_has_sent(groups: Groups) -> None:
    def work(group: Any, rank: int) -> set[tuple[int, float]]:
        if rank:
            group.send([torch.full((2,), float(rank))], 0, 7).wait()
            return set()
        found = set()
        for _ in range(SIZE - 1):
            mine = torch.zeros(2)
            receiving = group.recv_anysource([mine], 7)
            receiving.wait()
            found.add((receiving.source_rank(), mine[1].item()))
        return found

    assert groups.run(work)[0] == {(1, 1.0), (2, 2.0)}


def test_a_message_may_be_shorter_than_the_tensor_for_it(groups: Groups) -> None:
    """Whose rest stays as it is, also where it is columns of another one."""

    def work(group: Any, rank: int) -> list[list[float]]:
        found = [torch.full((5, 2), -1.0)[:, 0], *(torch.full((5,), -1.0) for _ in range(3))]
        for each in found if rank < 2 else ():
            sent = group.send([torch.arange(3.0)], 1, 0) if rank == 0 else group.recv([each], 0, 0)
            sent.wait()
        return [each.tolist() for each in found]

    assert groups.run(work)[1] == [[0.0, 1.0, 2.0, -1.0, -1.0]] * 4


def test_shorter_messages_arrive_in_order_also_where_nobody_waits_for_them(groups: Groups) -> None:
    if not groups.groups[0]._session.has_pairs:
        pytest.skip("these are Gloo's, which says that one is complete only to who waits for it")
    sizes = [3, 5, 0, 3, 4, 3, 3]

    def work(group: Any, rank: int) -> Any:
        if rank == 2:
            return None
        if rank == 0:
            sent = [group.send([torch.arange(float(size))], 1, 0) for size in sizes]
            group.send([torch.arange(2.0)], 1, 1).wait()
            sent[0].wait()
            group.send([torch.ones(1)], 1, 2).wait()
            return [each.wait() for each in sent]
        found = [torch.full((5,), -1.0) for _ in sizes]
        works = [group.recv([each], 0, 0) for each in found]
        anywhere = torch.full((2, 2), -1.0)
        group.recv_anysource([anywhere], 1).wait()
        group.recv([torch.zeros(1)], 0, 2).wait()  # before, the sender waits for its first one
        while not all(each.is_completed() for each in works):
            pass
        assert all(each.is_success() for each in works)
        return anywhere.flatten().tolist(), [each.tolist() for each in found]

    expected = [[*range(size), *[-1.0] * (5 - size)] for size in sizes]
    assert groups.run(work)[1] == ([0.0, 1.0, -1.0, -1.0], expected)


def test_a_message_that_is_longer_than_the_tensor_for_it_is_refused(groups: Groups) -> None:
    if not groups.groups[0]._session.has_pairs:
        pytest.skip("Gloo ends the process")

    def work(group: Any, rank: int) -> None:
        if rank < 2:
            begin, size = (group.send, 9) if rank == 0 else (group.recv, 5)
            with pytest.raises(MismatchError, match=r"\(9,\) on rank 0; \(5,\) on rank 1"):
                begin([torch.zeros(size)], 1 - rank, 0).wait()
        group.allreduce([torch.ones(1)]).wait()

    groups.run(work)


def test_messages_of_any_layout_are_noted_in_the_flight_recorder(groups: Groups) -> None:
    RECORDER.clear()

    def work(group: Any, rank: int) -> list[list[float]]:
        if rank == 0:
            given = torch.arange(6.0).view(2, 3).t().requires_grad_()
            group.send([given], 1, 3).wait()
        elif rank == 1:
            group.recv([wanted := torch.zeros(3, 4)[:, ::2]], 0, 3).wait()
            with pytest.raises(ValueError, match="the same memory for several elements"):
                group.recv([torch.zeros(1).expand(6)], 0, 3)
            return wanted.tolist()
        return []

    assert groups.run(work)[1] == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    messages = [each for each in RECORDER.entries() if each.is_message]
    assert sorted(each.name for each in messages) == ["recv 1<-0", "send 0->1"]
    assert {each.state for each in messages} == {"done"}


# ---------------------------------------------------------------- the end


def test_what_is_under_way_fails_when_the_group_is_shut_down() -> None:
    with Groups("shared_memory", 2) as groups:
        work = groups.groups[0].allreduce([torch.ones(1)], options())
        future = work.get_future()
        groups.groups[0].shutdown()
        with pytest.raises(RuntimeError, match="shut down"):
            future.wait()
        with pytest.raises(CollectiveError, match="shut down"):
            groups.groups[0].barrier()
        with pytest.raises(CollectiveError, match="rank 0 shut down"):
            groups.groups[1].recv([torch.ones(1)], 0, 0).wait()


def test_what_was_never_performed_is_not_told_as_done() -> None:
    RECORDER.clear()
    with Groups("shared_memory", 2) as groups:
        group = groups.groups[0]
        for _ in range(40):
            group.allreduce([torch.ones(1)], options())
        group.shutdown()
        mine = [each for each in RECORDER.entries() if each.group is group._label]
        assert [each.state for each in mine] == ["failed"] * 40
        assert {each["state"] for each in trace_of(RECORDER)["entries"]} == {"scheduled"}


def test_what_an_interrupt_has_left_is_done_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C on rank 0, of which the others need more than it has told, before it waits."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def work(group: Any, rank: int) -> float:
        tensor = torch.ones(1 << 20)
        if rank == 0:
            monkeypatch.setattr(group._group, "recorded", interrupted)
            with pytest.raises(KeyboardInterrupt):
                group.allreduce([tensor], options(is_async=False))
        else:
            group.allreduce([tensor], options(is_async=False))
        return tensor.sum().item()

    monkeypatch.setattr(OpenGroups, "add", lambda *_: None)  # nobody else looks now and then
    with Groups("shared_memory", 2) as groups:
        for each in groups.groups:
            each.set_timeout(timedelta(seconds=5))
        assert groups.run(work)[1] == 2.0 * (1 << 20)


def test_timeout_may_be_set_at_any_time() -> None:
    with Groups("shared_memory", 2) as groups:
        groups.groups[0].set_timeout(timedelta(seconds=0.1))
        with pytest.raises(StalledError, match=r"waited .* s for rank 1, .* timeout of the group"):
            groups.groups[0].allreduce([torch.ones(1)], options()).wait()
