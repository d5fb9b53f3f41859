"""Reductions of any floats in all ways to submit them, one after the other and mixed: what comes
out must be, bit by bit, what torch makes of all ranks' tensors in the order of ranks.

Most come one by one, which over shared memory takes another road than those that come together
(`collectives.shared_memory.shortcut`).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.collectives import SUM, Kind, ReduceOp, Reduction, Request
from tests.cluster.collectives.ranks import in_threads

if TYPE_CHECKING:
    from lockstitch.collectives import Session

OPS = [ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MAX, ReduceOp.PRODUCT]
FOLDS = {ReduceOp.MAX: torch.maximum, ReduceOp.PRODUCT: torch.mul}
Drawn = tuple[str, int, ReduceOp, int]
"""A name, a seed of values, an operator, a length."""


def values(rank: int, seed: int, count: int = 50) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(100 * seed + rank))


def folded(parts: list[torch.Tensor], op: ReduceOp, size: int) -> torch.Tensor:
    whole = parts[0].clone()
    for part in parts[1:]:
        whole = FOLDS.get(op, torch.add)(whole, part)
    return whole / size if op is ReduceOp.AVERAGE else whole


class Mixture:
    """What all ranks do, drawn from one seed: rounds, each submitted in one way or another."""

    def __init__(self, seed: int, size: int, rounds: int) -> None:
        self._source = random.Random(seed)
        self._seed = seed
        self._size = size
        self._seeds = 0
        self._everybody = list(range(size))
        # Most come one by one.
        ways = [self._one_by_one] * 6 + [self._of_other_kinds] * 3 + [self._between_two] * 2
        ways += [self._in_order] * 2
        ways += [self._shuffled, self._in_threads, self._as_group, self._until_data_end]
        ways += [self._in_set, self._without_names]
        self._rounds = [
            (self._source.choice(ways), self._drawn(self._source.randint(1, 5)))
            for _ in range(rounds)
        ]

    def _drawn(self, count: int) -> list[Drawn]:
        source, drawn = self._source, []
        for index in range(count):
            self._seeds += 1
            length = source.choice([1, 50, 50, 50, 1000, 16_384, 16_385, 140_000])
            # A name mostly stands for the same again.
            op = OPS[index % len(OPS)] if source.random() < 0.8 else source.choice(OPS)
            drawn.append((f"{index}.{length}", self._seeds, op, length))
        return drawn

    def run(self, session: Session, chosen: int) -> None:
        """One rank's part; `chosen`: the process set of the first two ranks."""
        own = random.Random(1000 * self._seed + session.rank)
        for way, ops in self._rounds:
            way(session, ops, own, chosen)

    def _begin(self, session: Session, each: Drawn, name: str, own: random.Random) -> Any:
        _, seed, op, length = each
        tensor = values(session.rank, seed, length)
        form: Any = own.choice([session, session.awaited, session.deferred])
        output = tensor if own.random() < 0.5 else None
        return form.allreduce(tensor, Reduction(op), name=name, output=output)

    def _end(
        self, session: Session, each: Drawn, handle: Any, own: random.Random, ranks: list[int]
    ) -> None:
        _, seed, op, length = each
        while own.random() < 0.2 and not session.poll(handle):
            pass
        wanted = folded([values(rank, seed, length) for rank in ranks], op, self._size)
        assert torch.equal(session.wait(handle), wanted), each

    def _one_by_one(
        self, session: Session, ops: list[Drawn], own: random.Random, _chosen: int
    ) -> None:
        for each in ops:
            handle = self._begin(session, each, each[0], own)
            self._end(session, each, handle, own, self._everybody)

    def _of_other_kinds(
        self, session: Session, ops: list[Drawn], own: random.Random, _chosen: int
    ) -> None:
        for name, seed, _, length in ops:
            mine, root = values(session.rank, seed, length), seed % self._size
            form: Any = own.choice([session, session.awaited, session.deferred])
            all_parts = [values(rank, seed, length) for rank in self._everybody]
            kind = seed % 5
            name = f"{kind}.{root}.{name}"
            if kind == 0:
                session.barrier()
            elif kind == 1:
                output = mine if own.random() < 0.5 else None
                handle = form.broadcast(mine, root, name=name, output=output)
                assert torch.equal(session.wait(handle), all_parts[root])
            elif kind == 2:
                gathered = session.wait(form.allgather(mine, name=name))
                assert torch.equal(gathered, torch.cat(all_parts))
            elif kind == 3:
                rows = session.wait(form.alltoall(mine.expand(self._size, -1), name=name))[0]
                assert torch.equal(rows, torch.stack(all_parts))
            else:
                whole = mine.expand(self._size, -1)
                scattered = session.wait(form.reducescatter(whole, SUM, name=name))
                wanted = folded(all_parts, ReduceOp.SUM, self._size)
                assert torch.equal(scattered, wanted[None])

    def _between_two(
        self, session: Session, ops: list[Drawn], own: random.Random, _chosen: int
    ) -> None:
        """Messages of two ranks, one by one or some at a time."""
        if session.rank > 1 or not session.has_pairs:
            return
        pair = session.open_pair(1 - session.rank).id
        sent, at_a_time = [], own.randint(1, 3)
        for _, seed, _, length in ops:
            root = seed % 2
            tensors = (values(session.rank, seed, length),)
            queue, is_awaited = f"{root} to {1 - root}", own.random() < 0.5
            request = Request(
                Kind.BROADCAST,
                tensors=tensors,
                outputs=tensors,
                root=root,
                process_set=pair,
                is_awaited=is_awaited,
                queue=queue,
            )
            sent.append((session.submit(request), values(root, seed, length)))
            if len(sent) >= at_a_time:
                handle, wanted = sent.pop(0)
                assert torch.equal(session.wait(handle), wanted)
        for handle, wanted in sent:
            assert torch.equal(session.wait(handle), wanted)

    def _without_names(
        self, session: Session, ops: list[Drawn], own: random.Random, _chosen: int
    ) -> None:
        for each in ops:
            self._end(session, each, self._begin(session, each, "", own), own, self._everybody)

    def _in_order(
        self, session: Session, ops: list[Drawn], own: random.Random, _chosen: int
    ) -> None:
        handles = [(each, self._begin(session, each, each[0], own)) for each in ops]
        for each, handle in own.sample(handles, len(handles)):
            self._end(session, each, handle, own, self._everybody)

    def _shuffled(
        self, session: Session, ops: list[Drawn], own: random.Random, _chosen: int
    ) -> None:
        mine = own.sample(ops, len(ops))
        handles = [(each, self._begin(session, each, each[0], own)) for each in mine]
        for each, handle in own.sample(handles, len(handles)):
            self._end(session, each, handle, own, self._everybody)

    def _in_threads(
        self, session: Session, ops: list[Drawn], own: random.Random, _chosen: int
    ) -> None:
        def run(index: int) -> None:
            for each in ops:
                handle = self._begin(session, each, f"{index}.{each[0]}", own)
                self._end(session, each, handle, own, self._everybody)

        in_threads(2, run)

    def _as_group(
        self, session: Session, ops: list[Drawn], _own: random.Random, _chosen: int
    ) -> None:
        tensors = [values(session.rank, seed, length) for _, seed, _, length in ops]
        name = "group." + ".".join(str(length) for *_, length in ops)
        results = session.wait(session.grouped_allreduce(tensors, SUM, name=name))
        for (_, seed, _, length), result in zip(ops, results, strict=True):
            parts = [values(rank, seed, length) for rank in self._everybody]
            assert torch.equal(result, folded(parts, ReduceOp.SUM, self._size))

    def _in_set(self, session: Session, ops: list[Drawn], _own: random.Random, chosen: int) -> None:
        for name, seed, op, length in ops if session.rank < 2 else ():
            tensor = values(session.rank, seed, length)
            handle = session.allreduce(tensor, Reduction(op), name=name, process_set=chosen)
            parts = [values(rank, seed, length) for rank in (0, 1)]
            assert torch.equal(session.wait(handle), folded(parts, op, 2))

    def _until_data_end(
        self, session: Session, ops: list[Drawn], own: random.Random, _chosen: int
    ) -> None:
        """Some ranks have data for fewer operations than others."""
        ends = [(rank + ops[0][1]) % (len(ops) + 1) for rank in self._everybody]
        for index, each in enumerate(ops[: ends[session.rank]]):
            present = [rank for rank in self._everybody if index < ends[rank]]
            handle = self._begin(session, each, f"joined.{each[0]}", own)
            self._end(session, each, handle, own, present)
        session.join()
