"""What a rank asks for: values only.

A `Request` is what one rank submits, with its tensors. A `Description` is what the others must know
of it: name, kind, dtypes, shapes, operator, scales. Descriptions of one name are compared on every
rank (`disagreement`), and from them alone each rank knows the sizes of what the others send.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.collectives.rank_names import RankNames
from lockstitch.errors import ProtocolError
from lockstitch.link.codec import Codec

if TYPE_CHECKING:
    from collections.abc import Mapping

GLOBAL_SET: Final = 0
"""The process set of all ranks."""
_MOST: Final = 1 << 63


class Kind(enum.Enum):
    """The kinds of operations."""

    __hash__ = object.__hash__

    ALLREDUCE = "allreduce"
    ALLGATHER = "allgather"
    BROADCAST = "broadcast"
    ALLTOALL = "alltoall"
    REDUCESCATTER = "reducescatter"
    BARRIER = "barrier"
    JOIN = "join"
    ADD_SET = "add_process_set"
    REMOVE_SET = "remove_process_set"


class ReduceOp(enum.Enum):
    """How the tensors of several ranks become one."""

    # The default goes through Python code, which shows in every small reduction.
    __hash__ = object.__hash__

    AVERAGE = "average"
    SUM = "sum"
    ADASUM = "adasum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"
    BAND = "bitwise and"
    BOR = "bitwise or"
    BXOR = "bitwise exclusive or"


@dataclass(frozen=True, slots=True)
class Reduction:
    """An operator, and factors for what goes in and what comes out.

    Integers are scaled in double precision and cut towards zero. An average divides by the number
    of ranks in the process set, including those that have joined.
    """

    op: ReduceOp = ReduceOp.AVERAGE
    prescale: float = 1.0
    postscale: float = 1.0


SUM: Final = Reduction(ReduceOp.SUM)
AVERAGE: Final = Reduction(ReduceOp.AVERAGE)


@dataclass(slots=True)
class Request:
    """One rank's part in an operation; nobody changes it once it is submitted."""

    kind: Kind
    name: str = ""
    """Empty: it is in a queue; if none is given, in that of all nameless ones of its kind."""
    tensors: tuple[torch.Tensor, ...] = ()
    outputs: tuple[torch.Tensor, ...] | None = None
    """Where the results go (may be `tensors` themselves); None makes new tensors. Of an
    allgather or alltoall: for each tensor a contiguous piece for each position of the set, as large
    as what comes from there. Of a reducescatter: this rank's rows of each tensor."""
    reduction: Reduction | None = None
    root: int = -1
    splits: tuple[int, ...] | None = None
    """Of an alltoall: how many rows go to each position. Of a reducescatter: how many each position
    keeps, the same on all ranks; None deals them out evenly."""
    process_set: int = GLOBAL_SET
    ranks: tuple[int, ...] = ()
    is_group: bool = False
    """Whether the result is a list of tensors."""
    is_awaited: bool = False
    """Whether whoever submits it goes on to submit or to wait soon, so that no thread has to look
    after it meanwhile."""
    is_packed: bool = False
    """Whether the tensors, contiguous, lie one behind the other as `fusion.Layout` has them, and
    nobody needs what is between them."""
    is_deferred: bool = False
    """Whether the call that submits it only says that it is there: what is to be done for it is
    left to the calls that follow, or to a thread."""
    queue: str = ""
    """Operations of one queue have no names of their own: the kth that a rank submits there meets
    the kth of every other rank, whatever they are; where they differ that is an error."""


@dataclass(frozen=True, slots=True)
class Description:
    """What the other ranks must know of a request."""

    kind: Kind
    name: str
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    reduction: Reduction | None = None
    root: int = -1
    splits: tuple[int, ...] | None = None
    ranks: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """Returns the description as bytes; equal descriptions give equal bytes."""
        return _CODEC.encode(self)

    @classmethod
    def decode(cls, content: bytes) -> Description:
        """Returns the description that `encode` has written. Raises `ProtocolError` for anything
        else."""
        described = _CODEC.decode(content)
        described.check()
        return described

    def check(self) -> None:
        """Raises `ProtocolError` where numbers cannot be, or there is no such dtype."""
        numbers = (self.root, *self.ranks, *(self.splits or ()), *itertools.chain(*self.shapes))
        if len(self.dtypes) != len(self.shapes) or not all(-1 <= each < _MOST for each in numbers):
            raise ProtocolError(f"{_COMPLAINT}: {self!r}")
        for dtype in self.dtypes:
            if not isinstance(getattr(torch, dtype, None), torch.dtype):
                raise ProtocolError(f"there is no dtype {dtype!r}")


_COMPLAINT: Final = "no operation can be described so"
_CODEC: Final = Codec(Description, complaint=_COMPLAINT, error=ProtocolError)


def describe(request: Request) -> Description:
    """The part of a request that crosses to the other ranks."""
    return Description(
        request.kind,
        request.queue or request.name,
        tuple(dtype_name(tensor.dtype) for tensor in request.tensors),
        tuple(tuple(tensor.shape) for tensor in request.tensors),
        request.reduction,
        request.root,
        request.splits,
        request.ranks,
    )


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name of a dtype: `float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """The inverse of `dtype_name`."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


# Whatever stands here must be the same on all ranks; of these kinds only the trailing dimensions.
_FREE_FIRST_DIMENSION = (Kind.ALLGATHER, Kind.ALLTOALL)


def disagreement(
    described: Mapping[int, Description], names: RankNames | None = None
) -> str | None:
    """Returns what the ranks do not agree about, in words; None where everything fits."""
    ranks = list(described)
    first = described[ranks[0]]
    called = names or RankNames()
    if all(each is first for each in described.values()):
        return None
    for aspect, value_of in _ASPECTS:
        values = {rank: value_of(each, called) for rank, each in described.items()}
        if any(value != values[ranks[0]] for value in values.values()):
            return f"{aspect} {_by_value(values, called)}"
    return None


def _by_value(values: Mapping[int, Any], names: RankNames) -> str:
    """`3 on rank 0; 4 on ranks 1, 2`: few values, possibly many ranks."""
    holders: dict[str, list[int]] = {}
    for rank, value in values.items():
        holders.setdefault(str(value), []).append(rank)
    return "; ".join(f"{value} on {names.in_words(ranks)}" for value, ranks in holders.items())


def _comparable_shapes(description: Description) -> tuple[tuple[int | str, ...], ...]:
    if description.kind in _FREE_FIRST_DIMENSION:
        return tuple(("any", *shape[1:]) for shape in description.shapes)
    return description.shapes


_ASPECTS = (
    ("kind of operation:", lambda each, _: each.kind.value),
    ("number of tensors:", lambda each, _: len(each.shapes)),
    ("dtype:", lambda each, _: ", ".join(each.dtypes)),
    ("shape:", lambda each, _: ", ".join(map(str, _comparable_shapes(each)))),
    ("operator:", lambda each, _: each.reduction and each.reduction.op.value),
    ("prescale factor:", lambda each, _: each.reduction and each.reduction.prescale),
    ("postscale factor:", lambda each, _: each.reduction and each.reduction.postscale),
    ("root rank:", lambda each, names: names.number(each.root)),
    ("shares of the rows:", lambda each, _: each.kind is Kind.REDUCESCATTER and each.splits),
    ("ranks of the process set:", lambda each, _: each.ranks),
)
