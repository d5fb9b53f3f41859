"""Every operation of a session, on every backend, against plain torch."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed import HashStore

from lockstitch.attach.recorder import RECORDER
from lockstitch.attach.spans import spans_of
from lockstitch.collectives import AVERAGE, SUM, Kind, ReduceOp, Reduction, Step, open_session
from lockstitch.collectives.arithmetic import adasum
from lockstitch.errors import CollectiveError, MismatchError, RankLostError
from tests.cluster.collectives.ranks import BACKENDS, BY_ORDERS, Ranks, in_threads, sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstitch.collectives import Session

SIZE = 4
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t().contiguous().t(),
    "strided": lambda t: torch.stack([t, t], -1)[..., 0],
}


@pytest.fixture(scope="module", params=[*BACKENDS, *BY_ORDERS])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(SIZE, request.param) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> None:
    """Here the sessions live as long as the module; test_backend.py looks for leaks."""


def inputs(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    return [sample(rank, shape, dtype) for rank in range(SIZE)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sum_of_any_dtype_is_that_of_torch(ranks: Ranks, dtype: torch.dtype) -> None:
    tensors = inputs((5, 3), dtype)
    expected = tensors[0].clone()
    for tensor in tensors[1:]:
        expected = expected + tensor
    results = ranks.run(lambda s: s.wait(s.allreduce(tensors[s.rank], SUM)))
    for result in results:
        torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [3, 400_000])
def test_any_layout_is_reduced_in_place_and_out_of_place(
    ranks: Ranks, layout: str, rows: int
) -> None:
    tensors = [LAYOUTS[layout](tensor) for tensor in inputs((rows, 2), torch.float32)]
    expected = torch.stack(tensors).sum(0)
    fresh = ranks.run(lambda s: s.wait(s.allreduce(tensors[s.rank], SUM)))
    ranks.run(lambda s: s.wait(s.allreduce(tensors[s.rank], SUM, output=tensors[s.rank])))
    for result in fresh + tensors:
        assert torch.equal(result, expected)


@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT])
def test_other_operators_are_those_of_torch(ranks: Ranks, op: ReduceOp) -> None:
    tensors = inputs((7,), torch.float32)
    stacked = torch.stack(tensors)
    expected = {
        ReduceOp.MIN: stacked.amin(0),
        ReduceOp.MAX: stacked.amax(0),
        ReduceOp.PRODUCT: stacked.prod(0),
    }[op]
    for result in ranks.run(lambda s: s.wait(s.allreduce(tensors[s.rank], Reduction(op)))):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("count", [10, 500_000])
def test_average_and_scales(ranks: Ranks, count: int) -> None:
    tensors = inputs((count,), torch.float64)
    reduction = Reduction(ReduceOp.AVERAGE, prescale=0.5, postscale=3.0)
    expected = torch.stack(tensors).mul(0.5).mean(0).mul(3.0)
    for result in ranks.run(lambda s: s.wait(s.allreduce(tensors[s.rank], reduction))):
        torch.testing.assert_close(result, expected)


def test_average_of_integers_is_cut_towards_zero(ranks: Ranks) -> None:
    values = [-7, 0, 0, 0]
    results = ranks.run(lambda s: s.wait(s.allreduce(torch.tensor([values[s.rank]]), AVERAGE)))
    assert [result.tolist() for result in results] == [[-1]] * SIZE


def test_adasum_is_the_same_on_all_ranks(ranks: Ranks) -> None:
    tensors = inputs((6, 2), torch.float32)
    expected = adasum(tensors)
    reduction = Reduction(ReduceOp.ADASUM)
    for result in ranks.run(lambda s: s.wait(s.allreduce(tensors[s.rank], reduction))):
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("count", [5, 300_000])
def test_group_is_reduced_as_one_with_mixed_dtypes(ranks: Ranks, count: int) -> None:
    groups = [
        [sample(rank, (count,), torch.float32), sample(rank, (2, 3), torch.int64)]
        for rank in range(SIZE)
    ]
    results = ranks.run(lambda s: s.wait(s.grouped_allreduce(groups[s.rank], SUM)))
    for first, second in results:
        assert torch.equal(first, sum(group[0] for group in groups))
        assert torch.equal(second, sum(group[1] for group in groups))


def test_results_of_a_group_are_tensors_of_their_own(ranks: Ranks) -> None:
    def program(session: Session) -> list[float]:
        first, second = session.wait(session.grouped_allreduce([torch.ones(3)] * 2, SUM))
        weight = torch.ones(3, requires_grad=True)
        product = (weight * first).sum()
        second.detach_().add_(1)  # does not change what `product` has kept
        product.backward()
        assert weight.grad is not None
        return weight.grad.tolist()

    assert ranks.run(program) == [[SIZE] * 3] * SIZE


def test_tensor_that_wants_gradients_is_reduced_without_them(ranks: Ranks) -> None:
    leaves = [torch.ones(3, requires_grad=True) for _ in range(SIZE)]
    ranks.run(lambda s: s.wait(s.allreduce(leaves[s.rank], SUM, output=leaves[s.rank])))
    assert all(leaf.detach().tolist() == [SIZE] * 3 for leaf in leaves)


def test_resident_tensors_are_reduced_in_place(ranks: Ranks) -> None:
    def program(session: Session) -> list[float]:
        tensor = session.resident((300_001,), torch.float32).fill_(session.rank + 1)
        session.wait(session.allreduce(tensor, AVERAGE, name="resident", output=tensor))
        return [tensor.min().item(), tensor.max().item()]

    assert ranks.run(program) == [[2.5, 2.5]] * SIZE


@pytest.mark.parametrize("count", [30_000, 60_001, 600_001])
def test_resident_and_private_tensors_meet(ranks: Ranks, count: int) -> None:
    def program(session: Session) -> list[float]:
        tensor = torch.empty(count)
        if session.rank in (0, 3):
            tensor = session.resident((count,), torch.float32)
        tensor.fill_(session.rank + 1)
        session.wait(session.allreduce(tensor, SUM, name="mixed", output=tensor))
        return [tensor.min().item(), tensor.max().item()]

    assert ranks.run(program) == [[10, 10]] * SIZE


def test_resident_tensor_has_a_storage_of_its_own(ranks: Ranks) -> None:
    tensor = ranks[0].resident((10, 3), torch.float16)
    assert tensor.shape == (10, 3)
    assert tensor.untyped_storage().nbytes() == 60


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.float8_e4m3fn], ids=str)
def test_allgather_takes_different_numbers_of_rows(ranks: Ranks, dtype: torch.dtype) -> None:
    tensors = [sample(rank, (rank, 2), torch.float32).to(dtype) for rank in range(SIZE)]
    expected = torch.cat([tensor.float() for tensor in tensors])

    def program(session: Session) -> tuple[torch.Tensor, object]:
        handle = session.allgather(tensors[session.rank])
        return session.wait(handle), handle.rows

    for gathered, rows in ranks.run(program):
        assert gathered.dtype is dtype
        assert torch.equal(gathered.float(), expected)
        assert rows == ((0, 1, 2, 3),)


def test_grouped_allgather(ranks: Ranks) -> None:
    results = ranks.run(
        lambda s: s.wait(s.grouped_allgather([torch.tensor([s.rank]), torch.ones(1, 2)]))
    )
    for first, second in results:
        assert first.tolist() == [0, 1, 2, 3]
        assert second.shape == (SIZE, 2)


@pytest.mark.parametrize("root", [0, 2])
def test_broadcast_gives_everyone_the_roots_tensor(ranks: Ranks, root: int) -> None:
    tensors = [torch.full((3, 2), rank, dtype=torch.bfloat16) for rank in range(SIZE)]
    fresh = ranks.run(lambda s: s.wait(s.broadcast(tensors[s.rank], root)))
    assert all((tensor == root).all() for tensor in fresh)
    assert [tensor[0, 0].item() for tensor in tensors] == [0, 1, 2, 3]
    ranks.run(lambda s: s.wait(s.broadcast(tensors[s.rank], root, output=tensors[s.rank])))
    assert all((tensor == root).all() for tensor in tensors)


def test_alltoall_with_splits(ranks: Ranks) -> None:
    def program(session: Session) -> list[object]:
        splits = [(session.rank + to) % 3 for to in range(SIZE)]
        rows = torch.tensor([[session.rank, to] for to in range(SIZE) for _ in range(splits[to])])
        received, counts = session.wait(session.alltoall(rows.view(-1, 2), splits))
        return [received.tolist(), counts.tolist()]

    for to, (received, counts) in enumerate(ranks.run(program)):
        assert counts == [(source + to) % 3 for source in range(SIZE)]
        assert received == [[s, to] for s in range(SIZE) for _ in range((s + to) % 3)]


def test_alltoall_without_splits_deals_out_evenly(ranks: Ranks) -> None:
    results = ranks.run(lambda s: s.wait(s.alltoall(torch.arange(8) + 10 * s.rank)))
    assert results[1][0].tolist() == [2, 3, 12, 13, 22, 23, 32, 33]


def test_reducescatter_gives_the_first_ranks_the_remainder(ranks: Ranks) -> None:
    tensors = inputs((6, 2), torch.float32)
    whole = torch.stack(tensors).sum(0)
    results = ranks.run(lambda s: s.wait(s.reducescatter(tensors[s.rank], SUM)))
    assert [len(result) for result in results] == [2, 2, 1, 1]
    assert torch.equal(torch.cat(results), whole)


def test_grouped_reducescatter(ranks: Ranks) -> None:
    tensors = inputs((4,), torch.float32)
    results = ranks.run(
        lambda s: s.wait(s.grouped_reducescatter([tensors[s.rank], tensors[s.rank]], AVERAGE))
    )
    for index in range(2):
        gathered = torch.cat([result[index] for result in results])
        assert torch.equal(gathered, torch.stack(tensors).mean(0))


def test_tensor_of_many_chunks_is_reduced(ranks: Ranks) -> None:
    # Beyond the ring of chunks, so that each of its places is used again.
    tensors = inputs((6_000_001,), torch.float32)
    expected = torch.stack(tensors).sum(0)
    ranks.run(lambda s: s.wait(s.allreduce(tensors[s.rank], SUM, output=tensors[s.rank])))
    assert all(torch.equal(tensor, expected) for tensor in tensors)


def test_empty_tensors_are_reduced(ranks: Ranks) -> None:
    results = ranks.run(lambda s: s.wait(s.allreduce(torch.empty(0, 3), SUM)))
    assert all(result.shape == (0, 3) for result in results)


def test_ranks_may_submit_in_any_order(ranks: Ranks) -> None:
    names = [f"tensor {index}" for index in range(12)]

    def program(session: Session) -> list[float]:
        order = names[session.rank :] + names[: session.rank]
        handles = {
            name: session.allreduce(torch.tensor([float(names.index(name))]), SUM, name=name)
            for name in order
        }
        session.barrier()
        return [session.wait(handles[name]).item() for name in names]

    assert ranks.run(program) == [[SIZE * index for index in range(12)]] * SIZE


def test_many_large_tensors_are_under_way_at_once(ranks: Ranks) -> None:
    def program(session: Session) -> bool:
        tensors = [torch.full((400_000,), float(index)) for index in range(5)]
        order = range(5) if session.rank % 2 else reversed(range(5))
        handles = [
            session.allreduce(tensors[index], SUM, name=f"large {index}", output=tensors[index])
            for index in order
        ]
        for handle in handles:
            session.wait(handle)
        return all((t == SIZE * index).all().item() for index, t in enumerate(tensors))

    assert ranks.run(program) == [True] * SIZE


@pytest.mark.parametrize(
    ("what", "submit"),
    [
        ("shape", lambda s: s.allreduce(torch.ones(1 + s.rank), SUM, name="x")),
        (
            "dtype",
            lambda s: s.allreduce(
                torch.ones(2, dtype=[torch.int32, torch.float32][s.rank % 2]), SUM, name="x"
            ),
        ),
        ("root", lambda s: s.broadcast(torch.ones(1), s.rank % 2, name="x")),
        (
            "operator",
            lambda s: s.allreduce(torch.ones(1), [SUM, AVERAGE][s.rank % 2], name="x"),
        ),
        (
            "kind",
            lambda s: (
                s.allgather(torch.ones(1), name="x")
                if s.rank
                else s.allreduce(torch.ones(1), SUM, name="x")
            ),
        ),
        ("shape", lambda s: s.allgather(torch.ones(1, 1 + s.rank), name="x")),
    ],
)
def test_mismatch_is_raised_on_every_rank_and_the_session_goes_on(
    ranks: Ranks, what: str, submit: object
) -> None:
    for _ in range(2):
        errors = ranks.errors(lambda s: s.wait(submit(s)))  # type: ignore[operator]
        assert {type(error) for error in errors} == {MismatchError}
        assert {str(error) for error in errors} == {str(errors[0])}
        assert what in str(errors[0])
        assert "rank" in str(errors[0])
    assert all(r == SIZE for r in ranks.run(lambda s: s.wait(s.allreduce(torch.ones(1), SUM))))


def test_unnamed_operations_meet_again_after_a_join(ranks: Ranks) -> None:
    def epoch(session: Session) -> tuple[float, list[int]]:
        for _ in range(session.rank):  # rank 0 has no data
            session.wait(session.allreduce(torch.ones(1), SUM))
        session.join()
        total = session.wait(session.allreduce(torch.ones(1), SUM)).item()
        return total, session.wait(session.allgather(torch.tensor([session.rank]))).tolist()

    for _ in range(2):
        assert ranks.run(epoch) == [(SIZE, list(range(SIZE)))] * SIZE


def test_name_in_flight_is_refused_here_and_now(ranks: Ranks) -> None:
    session = ranks[0]
    handle = session.allreduce(torch.ones(1), SUM, name="twice")
    with pytest.raises(ValueError, match="'twice' is in flight on rank 0 already"):
        session.allreduce(torch.ones(1), SUM, name="twice")
    assert not session.poll(handle)
    others = ranks.run(
        lambda s: s.wait(s.allreduce(torch.ones(1), SUM, name="twice") if s.rank else handle)
    )
    assert others == [SIZE] * SIZE


@pytest.mark.parametrize(
    ("submit", "text"),
    [
        (lambda s: s.allreduce(torch.ones(2).to_sparse(), SUM), "sparse"),
        (lambda s: s.allreduce(torch.ones(2, dtype=torch.float8_e5m2), SUM), "cannot do sum"),
        (lambda s: s.allreduce(torch.ones(2).long(), Reduction(ReduceOp.ADASUM)), "adasum"),
        (lambda s: s.allgather(torch.tensor(1.0)), "scalar"),
        (lambda s: s.reducescatter(torch.tensor(1.0)), "scalar"),
        (lambda s: s.broadcast(torch.ones(1), 7), "root rank 7"),
        (lambda s: s.alltoall(torch.ones(5)), "dealt out evenly"),
        (lambda s: s.alltoall(torch.ones(4), [1, 1, 1]), "splits"),
        (lambda s: s.allreduce(torch.ones(1), process_set=9), "no process set 9"),
        (lambda s: s.allreduce(torch.ones(1), output=torch.ones(2)), "output"),
    ],
)
def test_nonsense_is_a_value_error_before_anybody_is_asked(
    ranks: Ranks, submit: object, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        submit(ranks[1])  # type: ignore[operator]


def test_join_lets_the_others_go_on(ranks: Ranks) -> None:
    def program(session: Session) -> tuple[list[float], int]:
        if session.rank:
            large = session.wait(session.allreduce(torch.ones(400_000), AVERAGE, name="big"))
            assert (large == 0.75).all()
        sums = [
            session.wait(session.allreduce(torch.ones(1), SUM, name="uneven")).item()
            for _ in range(session.rank)
        ]
        return sums, session.join()

    results = ranks.run(program)
    assert [sums for sums, _ in results][3] == [3, 2, 1]
    assert len({last for _, last in results}) == 1
    # And the session goes on.
    assert ranks.run(lambda s: s.wait(s.allreduce(torch.ones(1), SUM)).item()) == [SIZE] * SIZE


def test_what_needs_all_ranks_fails_when_one_has_joined(ranks: Ranks) -> None:
    def program(session: Session) -> str:
        text = ""
        if session.rank:
            try:
                session.wait(session.allgather(torch.ones(1), name="needs all"))
            except CollectiveError as error:
                text = str(error)
        session.join()
        return text

    texts = ranks.run(program)
    assert all("rank 0 joined" in text for text in texts[1:])


def test_process_sets_work_at_the_same_time(ranks: Ranks) -> None:
    held = threading.Event()

    def program(session: Session) -> object:
        odd = session.add_process_set([1, 3])
        even = session.add_process_set([2, 0])
        mine = odd if odd.includes(session.rank) else even
        if mine is even and session.rank == 0:
            held.wait(30)  # the odd ones must get on meanwhile
        total = 0.0
        for _ in range(5):
            tensor = torch.tensor([float(session.rank)])
            total += session.wait(session.allreduce(tensor, SUM, process_set=mine.id)).item()
        root = mine.ranks[1]
        got = session.wait(session.broadcast(tensor, root, process_set=mine.id)).item()
        session.barrier(process_set=mine.id)
        if session.rank == 3:
            held.set()
        other = even if mine is odd else odd
        with pytest.raises(ValueError, match="not in process set"):
            session.allreduce(torch.ones(1), process_set=other.id)
        session.remove_process_set(even.id)
        session.remove_process_set(odd.id)
        return total, got

    assert ranks.run(program) == [(10, 2), (20, 3), (10, 2), (20, 3)]


def test_sets_that_ranks_disagree_about_are_refused(ranks: Ranks) -> None:
    errors = ranks.errors(lambda s: s.add_process_set([0, 1 + s.rank % 2]))
    assert {type(error) for error in errors} == {MismatchError}
    errors = ranks.errors(lambda s: s.add_process_set([0, 1, 2, 3]))
    assert "has the ranks" in str(errors[0])


def test_several_threads_of_a_rank_submit_and_wait(ranks: Ranks) -> None:
    def program(session: Session) -> list[float]:
        results = [0.0] * 4

        def work(index: int) -> None:
            for turn in range(10):
                tensor = torch.tensor([float(index)])
                handle = session.allreduce(tensor, SUM, name=f"thread {index} turn {turn}")
                results[index] = session.wait(handle).item()

        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    assert ranks.run(program) == [[0, 4, 8, 12]] * SIZE


def test_names_may_come_and_go(ranks: Ranks) -> None:
    def program(session: Session) -> bool:
        handles = [session.allreduce(torch.ones(1), SUM, name=f"new {i}") for i in range(300)]
        return all(session.wait(handle).item() == SIZE for handle in handles)

    assert ranks.run(program) == [True] * SIZE


def test_observer_is_told_of_each_step(ranks: Ranks) -> None:
    seen: list[Step] = []
    ranks[0].observers.progress = lambda progress: seen.append(progress.step)
    ranks.run(lambda s: s.wait(s.allreduce(torch.ones(1), SUM, name="seen")))
    ranks[0].observers.progress = None
    assert seen == [Step.SUBMITTED, Step.READY, Step.DONE]


def test_who_records_gets_each_collective_of_each_rank_with_its_negotiation(ranks: Ranks) -> None:
    before = ranks[0].statistics()
    with RECORDER.recording() as recorded:
        ranks.run(lambda s: s.wait(s.allreduce(torch.ones(3), SUM, name="traced")))
        # A backend of several levels has sessions of its own within.
        spans = [each for each in spans_of(recorded()) if each.name == "allreduce traced"]
    assert [each.kind for each in spans] == ["collective"] * SIZE
    assert all(each.start <= each.at <= each.end for each in spans)
    # No rank begins before the last one has submitted.
    assert max(each.start for each in spans) <= min(each.at for each in spans)
    after = ranks[0].statistics()
    assert after.completed - before.completed == len(spans) / SIZE
    assert after.tensor_bytes - before.tensor_bytes == sum(each.sent for each in spans) / SIZE


def test_statistics_count(ranks: Ranks) -> None:
    before = ranks[0].statistics()
    ranks.run(lambda s: s.wait(s.allreduce(torch.ones(10), SUM, name="counted")))
    after = ranks[0].statistics()
    assert after.backend == ranks.backend
    assert (after.submitted, after.completed) == (before.submitted + 1, before.completed + 1)
    assert after.tensor_bytes == before.tensor_bytes + 40
    assert after.under_way == 0
    assert Kind.ALLREDUCE.value in repr(ranks[0].allreduce.__name__)


@pytest.mark.parametrize("backend", BACKENDS)
def test_three_ranks_divide_by_three(backend: str) -> None:
    """Nothing is multiplied by a third, which no number is."""
    with Ranks(3, backend) as three:

        def average(session: Session, count: int, is_resident: bool) -> torch.Tensor:
            numbers = torch.arange(count, dtype=torch.float32) * (session.rank == 1)
            if is_resident:
                numbers = session.resident((count,), torch.float32).copy_(numbers)
            return session.wait(session.allreduce(numbers, AVERAGE, output=numbers)).clone()

        for count in (40, 600_000):
            expected = torch.arange(count, dtype=torch.float32) / 3
            for is_resident in (False, True):
                results = three.run(lambda s, c=count, i=is_resident: average(s, c, i))
                assert all(torch.equal(result, expected) for result in results)
        rows = torch.arange(30, dtype=torch.float32).view(3, 10)
        results = three.run(lambda s: s.wait(s.reducescatter(rows * (s.rank == 1), AVERAGE)))
        assert torch.equal(torch.cat(results), rows / 3)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("reduction", [SUM, AVERAGE, Reduction(ReduceOp.PRODUCT, prescale=0.3)])
def test_large_tensors_are_folded_in_the_order_of_ranks(size: int, reduction: Reduction) -> None:
    # A small arena means short chunks, so that each place of the ring is used again.
    generator = torch.Generator().manual_seed(size)
    tensors = [torch.randn(3_000_001, generator=generator) for _ in range(size)]
    parts = [tensor * reduction.prescale for tensor in tensors]
    expected = parts[0]
    for part in parts[1:]:
        expected = expected * part if reduction.op is ReduceOp.PRODUCT else expected + part
    if reduction is AVERAGE:
        expected = expected / size
    with Ranks(size, "shared_memory", arena_bytes=1 << 22) as few:
        results = few.run(lambda s: s.wait(s.allreduce(tensors[s.rank], reduction)))
    assert all(torch.equal(result, expected) for result in results)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rank_that_shuts_down_fails_what_others_still_want(backend: str) -> None:
    with Ranks(3, backend) as three:
        handles = [three[rank].allreduce(torch.ones(1), SUM, name="orphan") for rank in range(2)]
        three[2].shutdown()
        for rank in range(2):
            with pytest.raises(RankLostError, match="shut down"):
                three[rank].wait(handles[rank])
        with pytest.raises(CollectiveError, match="was shut down"):
            three[2].allreduce(torch.ones(1))


@pytest.mark.parametrize("where", ["in chunks", "in place"])
def test_rank_that_has_shut_down_fails_large_tensors_too(where: str) -> None:
    def part(session: Session) -> torch.Tensor:
        return session.resident((500_000,), torch.float32) if where == "in place" else big

    big = torch.ones(500_000)
    with Ranks(3, "shared_memory") as three:
        parts = [part(session) for session in three.sessions]
        three[0].allreduce(parts[0], SUM, name="orphan", output=parts[0])
        three[0].shutdown()  # before others have submitted theirs
        handles = [
            three[rank].allreduce(parts[rank], SUM, name="orphan", output=parts[rank])
            for rank in (1, 2)
        ]
        errors = three.errors(lambda s: s.rank and s.wait(handles[s.rank - 1]))
        assert errors[0] is None
        assert all("rank 0 shut down" in str(error) for error in errors[1:])


def test_first_death_is_what_every_survivor_hears_of() -> None:
    with Ranks(4, "shared_memory") as four:
        orphans = [four[rank].allreduce(torch.ones(1), SUM, name="orphan") for rank in range(3)]
        four[1]._backend._sets.note_deaths([3])  # type: ignore[attr-defined]  # it has seen it first
        with pytest.raises(RankLostError, match=r"rank 3 died \(.*seen by rank 1\)"):
            four[1].wait(orphans[1])
        four[1].shutdown()  # as it does for that reason
        for rank in (0, 2):
            with pytest.raises(RankLostError, match=r"rank 3 died \(.*seen by rank 1\)"):
                four[rank].wait(orphans[rank])
            with pytest.raises(RankLostError, match="rank 3 died"):
                four[rank].allreduce(torch.ones(1), SUM, name="later")


def test_operation_whose_parts_are_all_there_is_done_in_spite_of_a_death() -> None:
    with Ranks(4, "shared_memory") as four:
        handles = [four[rank].allreduce(torch.ones(1), SUM, name="last") for rank in (0, 1, 3)]
        # Rank 3's part, which rank 0 has not read yet, comes after rank 1's leave_record for it.
        handles.insert(2, four[2].allreduce(torch.ones(1), SUM, name="last"))
        four[1]._backend._sets.note_deaths([3])  # type: ignore[attr-defined]
        assert [four[rank].wait(handles[rank]).item() for rank in range(3)] == [4] * 3


def test_some_ranks_of_a_job_have_a_session_of_their_own() -> None:
    store = HashStore()

    def run(rank: int) -> tuple[int, int, float]:
        members = [3, 0] if rank in (0, 3) else [1, 2]
        with open_session(rank, 4, store, members=members) as session:
            total = session.wait(session.allreduce(torch.tensor([float(rank)]), SUM))
            session.barrier()
            return session.rank, session.size, total.item()

    assert in_threads(4, run) == [(1, 2, 3.0), (0, 2, 3.0), (1, 2, 3.0), (0, 2, 3.0)]


@pytest.mark.parametrize("backend", ["shared_memory", "c10d"])
def test_a_patient_wait_ends_when_others_wait_for_this_rank(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstitch.collectives.session._PATIENCE_SECONDS", 0.1)

    def program(session: Session) -> tuple[bool, float]:
        was_done = True
        if session.rank == 0:
            first = session.allreduce(torch.ones(1), SUM, name="first")
            was_done = session.wait_unless_wanted(first)
        second = session.wait(session.allreduce(torch.ones(1), SUM, name="second"))
        if session.rank:
            first = session.allreduce(torch.ones(1), SUM, name="first")
        return was_done, (session.wait(first) + second).item()

    with Ranks(2, backend) as pair:
        assert pair.run(program) == [(False, 4.0), (True, 4.0)]
        quick = pair.run(lambda s: s.wait_unless_wanted(s.allreduce(torch.ones(1), SUM)))
        assert quick == [True, True]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_rank_waits_for_is_told_by_name_and_by_whom_it_waits_for(backend: str) -> None:
    with Ranks(2, backend) as ranks:
        assert [rank.describe_waits() for rank in ranks.sessions] == [[], []]
        handle = ranks[1].allreduce(torch.ones(2), SUM, name="w")
        (mine,) = ranks[1].describe_waits()
        (theirs,) = ranks[0].describe_waits()
        assert mine.startswith("rank 1 of 2: allreduce 'w', submitted ")
        assert mine.endswith("s ago: rank 0 has not submitted it")
        names = backend in ("memory", "shared_memory")
        who, what = ("rank 1 waits", "'w'") if names else ("other ranks wait", "something")
        assert theirs == f"rank 0 of 2: {who} for {what}, which this one has not submitted"
        ranks[0].wait(ranks[0].allreduce(torch.ones(2), SUM, name="w"))
        ranks[1].wait(handle)
        assert [rank.describe_waits() for rank in ranks.sessions] == [[], []]


def test_a_rank_in_a_join_waits_for_those_that_have_not_joined() -> None:
    with Ranks(2, "shared_memory") as ranks:
        joining = threading.Thread(target=ranks[0].join)
        joining.start()
        while not (told := ranks[0].describe_waits()):
            threading.Event().wait(0.001)
        ranks[1].join()
        joining.join()
    assert told[0].endswith("rank 1 has not joined")
