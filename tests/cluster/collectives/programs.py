"""Random programs of reductions, and what they must give: computed from all ranks' inputs by torch,
in one place, without any of the code that is tested.

A program is a list of operations. Each rank submits those of its process sets in an order of its
own, several before it waits for one, and may stop early, by joining. It may be in a mode of torch
meanwhile. Numbers are small and whole, so that results are exact in every dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies as st

from lockstitch.collectives import ReduceOp, Reduction
from lockstitch.errors import CollectiveError, MismatchError
from tests.modes import MODES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.collectives import Handle, Session

KB = 1 << 10
# At these sizes tensors begin to be moved in another way: in place, in chunks.
EDGES = [128 * KB, 512 * KB, 1024 * KB, 4096 * KB]
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.uint8, torch.complex64]
FOLDS = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVERAGE: torch.add,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.PRODUCT: torch.mul,
}
KINDS = ["allreduce", "group", "allgather", "broadcast", "alltoall", "reducescatter", "barrier"]
PLACES = ["private", "output", "resident"]


@dataclass(frozen=True)
class Op:
    """One operation, as all ranks ask for it."""

    kind: str
    members: tuple[int, ...]
    dtype: torch.dtype
    count: int
    reduction: Reduction
    root: int
    rows: tuple[int, ...]
    """By rank: of an allgather; of an alltoall, by sender and receiver, added up."""
    places: tuple[str, ...]
    """By rank: where the tensor of an allreduce lives, and whether the result goes there."""
    defect: tuple[int, str] | None
    """A rank that asks for something else, and in what."""

    def shape(self, rank: int) -> tuple[int, ...]:
        if self.kind == "allgather":
            return (self.rows[rank], 3)
        if self.kind == "alltoall":
            return (sum(self.splits(rank)), 2)
        if self.kind == "reducescatter":
            return (self.rows[0] + len(self.members), 3)
        return (self.count,)

    def splits(self, rank: int) -> list[int]:
        return [(self.rows[rank] + self.rows[each]) % 4 for each in self.members]

    def inputs(self, rank: int, turn: int) -> list[torch.Tensor]:
        """What a rank brings along; the same whenever it is asked for."""
        dtypes = [self.dtype, torch.int64, self.dtype] if self.kind == "group" else [self.dtype]
        return [
            numbers(self.shape(rank), dtype, rank + 3 * turn + 5 * index)
            for index, dtype in enumerate(dtypes)
        ]


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """0, 1 and 2 in an order that depends on the seed."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + seed * 5) % 11 % 3).view(shape).to(dtype)


# ---------------------------------------------------------------- drawing


@st.composite
def ops(draw: Any, size: int, sets: Sequence[tuple[int, ...]]) -> Op:
    kind = draw(st.sampled_from(KINDS))
    dtype = draw(st.sampled_from(DTYPES))
    exotic = [ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT]
    op = draw(st.sampled_from([ReduceOp.SUM, ReduceOp.AVERAGE, *exotic]))
    if dtype.is_complex or kind == "reducescatter":
        op = ReduceOp.SUM
    scales = st.sampled_from([1.0, 2.0]) if op is ReduceOp.SUM else st.just(1.0)
    edge = draw(st.sampled_from([0, 1, 7, 1000, *EDGES]))
    count = max(0, edge // dtype.itemsize + draw(st.integers(-1, 1))) if edge > 1000 else edge
    members = draw(st.sampled_from(sets))
    defect = None
    if kind in ("allreduce", "broadcast") and not draw(st.integers(0, 7)):
        defect = draw(st.tuples(st.sampled_from(members), st.sampled_from(["shape", "dtype"])))
    return Op(
        kind,
        members,
        dtype,
        count,
        Reduction(op, draw(scales), draw(scales)),
        draw(st.sampled_from(members)),
        tuple(draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))),
        tuple(draw(st.lists(st.sampled_from(PLACES), min_size=size, max_size=size))),
        defect,
    )


@dataclass(frozen=True)
class Program:
    """Operations, in which order each rank submits them, and how many it submits at all. Who does
    not submit all joins, and in that case all do. `modes`, by rank, are those in which it does."""

    ops: list[Op]
    orders: list[list[int]]
    most_under_way: int
    ends: list[int]
    joins: bool
    modes: list[str]

    def submitted(self, rank: int) -> list[int]:
        """The numbers of the operations, in this rank's order. Whoever joins sooner submits what
        all others submit, too: else two could each wait for the other to join."""
        return [
            each
            for each in self.orders[rank]
            if rank in self.ops[each].members and (not self.joins or each < self.ends[rank])
        ]


@st.composite
def programs(draw: Any, size: int, sets: Sequence[tuple[int, ...]]) -> Program:
    joins = draw(st.integers(0, 3)) == 0
    chosen = [tuple(range(size))] if joins else sets
    drawn = draw(st.lists(ops(size, chosen), min_size=1, max_size=6))
    orders = [draw(st.permutations(range(len(drawn)))) for _ in range(size)]
    # Whoever waits for an operation that another one submits after its own wait waits for ever.
    most = draw(st.sampled_from([len(drawn), 1])) if all(o == orders[0] for o in orders) else 99
    ends = [draw(st.integers(0, len(drawn))) if joins else len(drawn) for _ in range(size)]
    modes = [draw(st.sampled_from(["none", *MODES])) for _ in range(size)]
    return Program(drawn, orders, most, ends, joins, modes)


# ---------------------------------------------------------------- running


def submit(
    session: Session, op: Op, turn: int, name: str, set_id: int, mode: str = "none"
) -> Handle[Any]:
    """Asks for the operation as this rank does."""
    rank = session.rank
    with torch.inference_mode(mode == "inference"):
        tensors = op.inputs(rank, turn)
    if op.defect is not None and op.defect[0] == rank:
        wrong = torch.int16 if op.defect[1] == "dtype" else op.dtype
        tensors = [torch.ones(op.count + (op.defect[1] == "shape"), dtype=wrong)]
    (tensor, *_), named = tensors, {"name": name, "process_set": set_id}
    place = op.places[rank]
    if op.kind == "allreduce" and place == "resident":
        tensor = session.resident(tensor.shape, tensor.dtype).copy_(tensor)
    output = None if place == "private" else tensor
    outputs = None if place == "private" else tensors
    routes: dict[str, Callable[[], Handle[Any]]] = {
        "allreduce": lambda: session.allreduce(tensor, op.reduction, output=output, **named),
        "group": lambda: session.grouped_allreduce(tensors, op.reduction, outputs=outputs, **named),
        "allgather": lambda: session.allgather(tensor, **named),
        "broadcast": lambda: session.broadcast(tensor, op.root, output=output, **named),
        "alltoall": lambda: session.alltoall(tensor, op.splits(rank), **named),
        "reducescatter": lambda: session.reducescatter(tensor, op.reduction, **named),
    }
    with MODES[mode]():
        return routes[op.kind]()


def run(session: Session, program: Program, turn: int, ids: dict[tuple[int, ...], int]) -> dict:
    """What this rank gets: by number of the operation, its result or the type of its error."""
    results: dict[int, Any] = {}
    handles: dict[int, Handle[Any]] = {}
    mode = program.modes[session.rank]

    def take(number: int) -> None:
        try:
            with MODES[mode]():
                results[number] = session.wait(handles.pop(number))
        except CollectiveError as error:
            results[number] = type(error)

    for number in program.submitted(session.rank):
        op = program.ops[number]
        if op.kind == "barrier":
            continue  # they would tie the orders of ranks to each other
        set_id = ids[op.members]
        handles[number] = submit(session, op, turn, f"op {number}", set_id, mode)
        if len(handles) >= program.most_under_way:
            take(next(iter(handles)))
    for number in list(handles):
        take(number)
    with MODES[mode]():
        if program.joins:
            results[-1] = session.join()
        for op in program.ops:
            if op.kind == "barrier" and session.rank in op.members:
                session.barrier(process_set=ids[op.members])
    return results


# ---------------------------------------------------------------- what must come out


def expected(program: Program, number: int, rank: int, turn: int) -> Any:
    """The result of an operation on one rank, or the type of its error."""
    op = program.ops[number]
    present = [each for each in op.members if number in program.submitted(each)]
    if op.defect is not None and op.defect[0] in present and len(present) > 1:
        return MismatchError
    inputs = {each: op.inputs(each, turn) for each in present}
    if op.defect is not None and op.defect[0] in present:
        wrong = torch.int16 if op.defect[1] == "dtype" else op.dtype
        inputs = {rank: [torch.ones(op.count + (op.defect[1] == "shape"), dtype=wrong)]}
    if op.kind in ("allreduce", "group"):
        reduced = [
            reduce(op, [inputs[each][index] for each in present])
            for index in range(len(inputs[rank]))
        ]
        return reduced if op.kind == "group" else reduced[0]
    if len(present) < len(op.members):
        return CollectiveError
    return together(op, {each: inputs[each][0] for each in op.members}, rank)


def together(op: Op, whole: dict[int, torch.Tensor], rank: int) -> Any:
    """What needs a part of every member."""
    place = op.members.index(rank)
    if op.kind == "allgather":
        return torch.cat(list(whole.values()))
    if op.kind == "broadcast":
        return whole[op.root]
    if op.kind == "alltoall":
        pieces = [whole[each].split(op.splits(each))[place] for each in op.members]
        return torch.cat(pieces), [len(piece) for piece in pieces]
    return torch.tensor_split(reduce(op, list(whole.values())), len(op.members))[place]


def reduce(op: Op, tensors: list[torch.Tensor]) -> torch.Tensor:
    """The tensors of those who are there."""
    what = op.reduction
    total = torch.empty_like(tensors[0])
    total.copy_(tensors[0] * what.prescale)
    for each in tensors[1:]:
        total = FOLDS[what.op](total, (each * what.prescale).to(total.dtype))
    if what.op is ReduceOp.AVERAGE:
        is_whole = not total.dtype.is_floating_point and not total.dtype.is_complex
        total = total.div(len(op.members), rounding_mode="trunc" if is_whole else None)
    return (total * what.postscale).to(tensors[0].dtype)
