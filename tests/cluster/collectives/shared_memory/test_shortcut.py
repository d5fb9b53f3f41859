"""Small reductions past the table, alone and among everything that sends them back into it."""

from __future__ import annotations

import random
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.collectives import AVERAGE, SUM, ReduceOp, opening
from lockstitch.collectives.negotiation import Negotiation, Submitted
from lockstitch.collectives.shared_memory import shortcut
from lockstitch.collectives.shared_memory.driving import Driver
from lockstitch.collectives.shared_memory.segment import SMALL_PLACES, Geometry
from lockstitch.collectives.shared_memory.shortcut import Shortcut
from lockstitch.errors import CollectiveError, MismatchError, RankLostError
from tests.cluster.collectives.mixtures import Mixture, folded, values
from tests.cluster.collectives.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.collectives import Handle, Session

COUNT = 50


class Roads:
    """How many operations, of all ranks, went past the tables, and how many into them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.short = self.tables = 0
        end, handle = Shortcut.note_end, Negotiation.handle

        def ends(road: Shortcut) -> Handle[Any]:
            self.short += 1
            return end(road)

        def handles(table: Negotiation, event: Any) -> Any:
            self.tables += type(event) is Submitted
            return handle(table, event)

        monkeypatch.setattr(Shortcut, "note_end", ends)
        monkeypatch.setattr(Negotiation, "handle", handles)

    def taken(self) -> tuple[int, int]:
        """Past the tables and into them, since the last call."""
        taken = self.short, self.tables
        self.short = self.tables = 0
        return taken


@pytest.fixture
def roads(monkeypatch: pytest.MonkeyPatch) -> Roads:
    return Roads(monkeypatch)


@pytest.fixture(params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(request.param, "shared_memory") as ranks:
        yield ranks


def begin(session: Session, name: str, seed: int, count: int = COUNT) -> Handle[torch.Tensor]:
    return session.awaited.allreduce(values(session.rank, seed, count), SUM, name=name)


def all_do(ranks: Ranks, name: str, seed: int, count: int = COUNT) -> None:
    """One operation of all ranks, in this thread."""
    handles = [begin(each, name, seed, count) for each in ranks.sessions]
    check(ranks, handles, seed, count)


def check(ranks: Ranks, handles: list[Handle[torch.Tensor]], seed: int, count: int = COUNT) -> None:
    """The handles are those of the last ranks."""
    wanted = folded([values(r, seed, count) for r in range(ranks.size)], ReduceOp.SUM, ranks.size)
    for session, handle in zip(ranks.sessions[-len(handles) :], handles, strict=True):
        assert torch.equal(session.wait(handle), wanted)


# ---------------------------------------------------------------- which road is taken


def test_reductions_that_come_one_by_one_need_no_table(ranks: Ranks, roads: Roads) -> None:
    all_do(ranks, "x", 0)  # tells what the name stands for
    assert roads.taken() == (0, ranks.size**2)
    for seed in range(1, 2000 if ranks.size == 2 else 20):
        all_do(ranks, "x", seed)
    assert roads.taken() == ((seed) * ranks.size, 0)


def test_ranks_that_run_ahead_of_each_other_need_no_table_either(
    ranks: Ranks, roads: Roads
) -> None:
    def run(session: Session) -> None:
        source = random.Random(session.rank)
        for seed in range(200):
            if source.random() < 0.1:
                threading.Event().wait(1e-3)
            wanted = folded([values(r, seed) for r in range(ranks.size)], ReduceOp.SUM, ranks.size)
            handle = begin(session, "x", seed)
            assert torch.equal(session.wait(handle), wanted)

    ranks.run(run)
    short, tables = roads.taken()
    assert short >= 190 * ranks.size
    assert tables < 30 * ranks.size


def test_last_of_many_ranks_leaves_its_result_for_the_others(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(3):
        all_do(ranks, "x", seed)
    sums: list[int] = []
    reduced = shortcut.reduced

    def counted(*arguments: Any) -> torch.Tensor:
        sums.append(1)
        return reduced(*arguments)

    monkeypatch.setattr(shortcut, "reduced", counted)
    for seed in range(3, 9):
        all_do(ranks, "x", seed)
    assert len(sums) == 6 * (2 if ranks.size == 2 else 1)


def share(whole: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    return whole.view(size, -1)[rank]


OTHER_KINDS: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor]]] = {
    "barrier": (lambda session, _: session.barrier(), lambda *_: None),
    "broadcast": (
        lambda session, mine: session.wait(session.broadcast(mine, 1, name="x", output=mine)),
        lambda parts, _: parts[1],
    ),
    "broadcast to new": (
        lambda session, mine: session.wait(session.broadcast(mine, 1, name="x")),
        lambda parts, _: parts[1],
    ),
    "allgather": (
        lambda session, mine: session.wait(session.allgather(mine, name="x")),
        lambda parts, _: torch.cat(parts),
    ),
    "alltoall": (
        lambda session, mine: session.wait(session.alltoall(mine, name="x"))[0],
        lambda parts, rank: torch.cat([share(part, rank, len(parts)) for part in parts]),
    ),
    "reducescatter": (
        lambda session, mine: session.wait(session.reducescatter(mine, SUM, name="x")),
        lambda parts, rank: share(folded(parts, ReduceOp.SUM, len(parts)), rank, len(parts)),
    ),
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_other_kinds_need_no_table_either(ranks: Ranks, roads: Roads, kind: str) -> None:
    operation, wanted = OTHER_KINDS[kind]

    def run(session: Session) -> None:
        for seed in range(20):
            result = operation(session, values(session.rank, seed, 12))
            parts = [values(rank, seed, 12) for rank in range(ranks.size)]
            expected = wanted(parts, session.rank)
            assert result is expected is None or torch.equal(result, expected)

    ranks.run(run)
    short, tables = roads.taken()
    assert short >= 15 * ranks.size
    assert tables <= 5 * ranks.size**2


def test_what_differs_between_ranks_does_not_try_again(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    start = Shortcut.start

    def starts(road: Shortcut, *arguments: Any) -> None:
        tried.append(1)
        start(road, *arguments)

    monkeypatch.setattr(Shortcut, "start", starts)

    def run(session: Session) -> None:
        for seed in range(10):
            mine = values(session.rank, seed, session.rank + 1)
            gathered = session.wait(session.allgather(mine, name="uneven"))
            parts = [values(rank, seed, rank + 1) for rank in range(ranks.size)]
            assert torch.equal(gathered, torch.cat(parts))

    ranks.run(run)
    assert len(tried) <= 3 * ranks.size


def test_what_nobody_reads_is_over_at_once(ranks: Ranks) -> None:
    for name in ("x", "y"):
        all_do(ranks, name, 0)
    for _ in range(3):
        early = begin(ranks[0], "y", 1)  # what follows goes by the table
        ranks.run(lambda session: session.barrier())
        check(ranks, [early, *(begin(each, "y", 1) for each in ranks.sessions[1:])], 1)
    ranks.run(lambda session: session.remove_process_set(session.add_process_set([0]).id))
    all_do(ranks, "x", 2)
    for each in ranks.sessions:
        each._backend.advance()
        assert each._backend._sets.is_idle


def test_what_is_too_large_goes_by_the_table(ranks: Ranks, roads: Roads) -> None:
    for seed in range(3):
        all_do(ranks, "x", seed, count=(1 << 14) + 1)
    assert roads.taken() == (0, 3 * ranks.size**2)


def test_a_name_that_gets_another_shape_is_told_anew(ranks: Ranks, roads: Roads) -> None:
    for seed, count in enumerate((10, 10, 20, 20, 10, 10)):
        all_do(ranks, "x", seed, count)
    assert roads.taken() == (3 * ranks.size, 3 * ranks.size**2)


def test_other_operations_in_between_leave_the_shortcut_open(ranks: Ranks, roads: Roads) -> None:
    all_do(ranks, "x", 0)
    ranks.run(lambda session: session.barrier())
    large = [values(each.rank, 1, 300_000) for each in ranks.sessions]
    ranks.run(lambda s: s.wait(s.allreduce(large[s.rank], SUM, name="large")))
    roads.taken()
    all_do(ranks, "x", 2)
    assert roads.taken() == (ranks.size, 0)


@pytest.mark.parametrize("count", [COUNT, 10_000])
def test_several_at_once_in_one_order_need_no_table(ranks: Ranks, roads: Roads, count: int) -> None:
    names = ["a", "b", "c"]
    for seed in range(8):
        roads.taken()
        if seed % 2:  # one rank after the other
            by_rank = [[begin(s, name, seed, count) for name in names] for s in ranks.sessions]
            handles = [list(each) for each in zip(*by_rank, strict=True)]
        else:
            handles = [[begin(s, n, seed, count) for s in ranks.sessions] for n in names]
        assert not handles[-1][0].is_done or ranks.size == 1
        for each in handles:
            check(ranks, each, seed, count)
    assert roads.taken() == (len(names) * ranks.size, 0)


def test_as_many_as_there_are_places_need_no_table(ranks: Ranks, roads: Roads) -> None:
    names = [f"x{number}" for number in range(SMALL_PLACES)]
    for seed in (1, 2):
        roads.taken()
        handles = [[begin(session, name, seed) for name in names] for session in ranks.sessions]
        for each in zip(*handles, strict=True):
            check(ranks, list(each), seed)
    assert roads.taken() == (len(names) * ranks.size, 0)


def test_several_at_once_in_different_orders_go_by_the_table(ranks: Ranks, roads: Roads) -> None:
    names = ["a", "b", "c", "d"]
    for name in names:
        all_do(ranks, name, 0)
    for seed in range(1, 30):
        source = random.Random(seed)
        orders = [source.sample(names, len(names)) for _ in ranks.sessions]
        begun = [
            {name: begin(session, name, seed) for name in order}
            for session, order in zip(ranks.sessions, orders, strict=True)
        ]
        for name in names:
            check(ranks, [each[name] for each in begun], seed)
    roads.taken()
    for seed in (30, 31):
        all_do(ranks, "a", seed)
    assert roads.taken() == (2 * ranks.size, 0)


def test_ranks_that_wait_for_others_in_other_orders_all_get_on(ranks: Ranks) -> None:
    """A SHORT behind another one can be what others wait for, while that other one cannot."""
    for name in ("x", "y"):
        all_do(ranks, name, 0)
    first, *others = ranks.sessions
    for seed in range(1, 4):
        ahead = [begin(first, "y", seed), begin(first, "x", seed)]
        large = [values(each.rank, seed, 300_000) for each in ranks.sessions]
        rest = [
            each.awaited.allreduce(mine, SUM, name="large")
            for each, mine in zip(others, large[1:], strict=True)
        ]
        check(ranks, [ahead[1], *(begin(each, "x", seed) for each in others)], seed)
        check(ranks, [ahead[0], *(begin(each, "y", seed) for each in others)], seed)
        last = first.awaited.allreduce(large[0], SUM, name="large")
        ranks.run(lambda s, last=last, rest=rest: s.wait([last, *rest][s.rank]))


def test_more_at_once_than_lanes_have_places_for(ranks: Ranks, roads: Roads) -> None:
    def run(session: Session) -> None:
        for seed in range(3):
            numbers = range(SMALL_PLACES + 20)
            handles = [begin(session, f"x{number}", 100 * seed + number) for number in numbers]
            for number, handle in enumerate(handles):
                parts = [values(rank, 100 * seed + number) for rank in range(ranks.size)]
                assert torch.equal(session.wait(handle), folded(parts, ReduceOp.SUM, ranks.size))

    ranks.run(run)
    roads.taken()
    all_do(ranks, "x0", 8)
    all_do(ranks, "x0", 9)
    assert roads.taken()[0] >= ranks.size


def test_nothing_is_written_where_a_late_rank_still_reads(ranks: Ranks) -> None:
    """Ranks that run ahead come around their lanes while one has not read what is there."""

    def run(session: Session) -> None:
        source = random.Random(session.rank)
        under_way: list[tuple[int, Any]] = []
        for seed in range(600):
            mine = values(session.rank, seed, 700)
            form = session if seed % 3 else session.awaited
            under_way.append((seed, form.allreduce(mine, SUM, name=f"w{seed % 40}", output=mine)))
            if session.rank == 1 and source.random() < 0.02:
                threading.Event().wait(1e-3)
            while len(under_way) > source.randrange(30):
                seed, handle = under_way.pop(0)
                parts = [values(rank, seed, 700) for rank in range(ranks.size)]
                assert torch.equal(session.wait(handle), folded(parts, ReduceOp.SUM, ranks.size))
        for _, handle in under_way:
            session.wait(handle)

    ranks.run(run)


def test_an_operation_that_only_some_have_begun_there_ends_by_the_table(roads: Roads) -> None:
    with Ranks(3, "shared_memory") as ranks:
        for name in ("x", "y"):
            all_do(ranks, name, 0)
        for seed in range(1, 12):  # again and again: no place of a lane is lost
            early = begin(ranks[0], "y", seed)
            late = [begin(each, "x", seed) for each in ranks.sessions]
            check(ranks, late, seed)
            check(ranks, [early, begin(ranks[1], "y", seed), begin(ranks[2], "y", seed)], seed)
        roads.taken()
        all_do(ranks, "x", 20)
        all_do(ranks, "x", 21)
        assert roads.taken()[0] >= 3


# ---------------------------------------------------------------- what others see of it


def test_who_is_missing_is_known(ranks: Ranks) -> None:
    all_do(ranks, "x", 0)
    early = begin(ranks[0], "x", 1)
    others = tuple(range(1, ranks.size))
    assert ranks[0].missing(early) == others
    assert ranks[1].wanted() == [("x", (0,))]
    (wait,) = ranks[0].waits()
    assert (wait.name, wait.missing) == ("x", others)
    check(ranks, [early, *(begin(each, "x", 1) for each in ranks.sessions[1:])], 1)


def test_mismatch_is_raised_by_all(ranks: Ranks) -> None:
    for name in ("x", "y"):
        all_do(ranks, name, 0)
    for _ in range(6):
        handles = [begin(each, "x", 1, COUNT + each.rank) for each in ranks.sessions]
        for session, handle in zip(ranks.sessions, handles, strict=True):
            with pytest.raises(MismatchError, match="shape"):
                session.wait(handle)
        handles = [
            each.awaited.allreduce(values(each.rank, 2), AVERAGE if each.rank else SUM, name="y")
            for each in ranks.sessions
        ]
        for session, handle in zip(ranks.sessions, handles, strict=True):
            with pytest.raises(MismatchError, match="operator"):
                session.wait(handle)
    all_do(ranks, "x", 3)


def test_rank_that_leaves_is_named(ranks: Ranks) -> None:
    all_do(ranks, "x", 0)
    early = begin(ranks[0], "x", 1)
    ranks[1].shutdown()
    with pytest.raises(CollectiveError, match="rank 1 shut down"):
        ranks[0].wait(early)


@pytest.mark.parametrize("is_told_before", [False, True])
def test_death_that_another_rank_tells_of_is_raised(ranks: Ranks, is_told_before: bool) -> None:
    for seed in range(2):
        all_do(ranks, "x", seed)
    if is_told_before:
        ranks[1]._backend._sets.end(RankLostError("rank 7 died elsewhere"))
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(RankLostError, match="rank 7 died"):
            ranks[0].wait(begin(ranks[0], "x", 2))
        ended.set()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    if not is_told_before:
        threading.Event().wait(0.01)
        ranks[1]._backend._sets.end(RankLostError("rank 7 died elsewhere"))
    assert ended.wait(30)
    waiting.join()


@pytest.mark.parametrize("size", [2, 3])
def test_rank_that_waits_for_room_in_its_log_is_read(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "Geometry", partial(Geometry, log_words=1 << 12))
    with Ranks(size, "shared_memory") as ranks:
        all_do(ranks, "x", 0)
        early = [begin(each, "x", 1) for each in ranks.sessions[:-1]]
        first, last = ranks[0], ranks[size - 1]
        met = threading.Event()

        def meet(session: Session, peer: int) -> None:
            set_id = session.open_pair(peer).id
            session.wait(session.allreduce(torch.ones(1), SUM, name="meeting", process_set=set_id))

        def run_first() -> None:
            for number in range(500):  # more than the log takes
                begin(first, f"{number} of many", 2)
            meet(first, last.rank)

        def run_last() -> None:
            meet(last, first.rank)
            met.set()
            begin(last, "x", 1)

        works: list[Callable[[], Any]] = [run_first, run_last]
        if size > 2:  # which waits in the shortcut
            works.append(partial(ranks[1].wait, early[1]))
        threads = [threading.Thread(target=each, daemon=True) for each in works]
        for thread in threads:
            thread.start()
        assert met.wait(30)
        for thread in threads:
            thread.join(30)


def test_rank_that_joins_is_done_without(ranks: Ranks) -> None:
    for seed in range(6):
        all_do(ranks, "x", seed)

        def run(session: Session) -> torch.Tensor | None:
            if session.rank == 0:
                session.join()
                return None
            result = session.wait(begin(session, "x", 7))
            session.join()
            return result

        wanted = folded([values(r, 7) for r in range(1, ranks.size)], ReduceOp.SUM, ranks.size)
        for result in ranks.run(run)[1:]:
            assert torch.equal(result, wanted)


def test_error_of_one_rank_is_its_own(ranks: Ranks) -> None:
    all_do(ranks, "x", 0)
    output = torch.zeros(COUNT)
    mine = ranks[0].awaited.allreduce(values(0, 1), SUM, name="x", output=output)
    handles = [begin(each, "x", 1) for each in ranks.sessions[1:]]
    output.requires_grad_()  # torch writes no result there
    with pytest.raises(RuntimeError, match="out="):
        ranks[0].wait(mine)
    check(ranks, handles, 1)
    all_do(ranks, "x", 2)


def test_set_that_is_closed_takes_nothing_along() -> None:
    with Ranks(3, "shared_memory") as ranks:
        chosen = ranks.run(lambda session: session.add_process_set([0, 2]).id)[0]

        def run(session: Session) -> None:
            for seed in range(30):
                if session.rank != 1:
                    part = values(session.rank, seed)
                    handle = session.awaited.allreduce(part, SUM, name="x", process_set=chosen)
                    wanted = folded([values(0, seed), values(2, seed)], ReduceOp.SUM, 2)
                    assert torch.equal(session.wait(handle), wanted)
                session.wait(begin(session, "x", seed))
            session.remove_process_set(chosen)

        ranks.run(run)
        all_do(ranks, "x", 50)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 20))]
)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_any_mixture_gives_what_torch_gives(size: int, seed: int, roads: Roads) -> None:
    mixture = Mixture(seed, size, 25)
    with Ranks(size, "shared_memory") as ranks:
        chosen = 0
        if size > 2:
            chosen = ranks.run(lambda session: session.add_process_set([0, 1]).id)[0]
        ranks.run(lambda session: mixture.run(session, chosen))
        all_do(ranks, "last", 1)
        all_do(ranks, "last", 2)
        assert roads.taken()[0] >= size


def test_of_several_threads_that_wait_one_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    spinning, may_go_on = threading.Event(), threading.Event()
    spins: list[int] = []
    spin = Driver._spin

    def stopped(driver: Driver, handle: Any, **named: Any) -> bool:
        if named:  # who holds the token says nothing
            spins.append(threading.get_ident())
            spinning.set()
            may_go_on.wait(60)
        return spin(driver, handle, **named)

    with Ranks(2, "shared_memory") as ranks:
        mine = {name: begin(ranks[0], name, 1) for name in ("x", "y")}
        monkeypatch.setattr(Driver, "_spin", stopped)
        first = threading.Thread(target=ranks[0].wait, args=(mine["x"],))
        first.start()
        assert spinning.wait(60)
        second = threading.Thread(target=ranks[0].wait, args=(mine["y"],))
        second.start()
        others = [begin(ranks[1], name, 1) for name in ("x", "y")]
        second.join(60)  # by the words of rank 1, though the first looks at nothing
        assert not second.is_alive()
        assert spins == [first.ident]
        may_go_on.set()
        first.join(60)
        check(ranks, others[1:], 1)
