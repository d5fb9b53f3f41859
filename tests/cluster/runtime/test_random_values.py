"""Random values of all kinds by all ways of calling, against what `torch.save` and `load` make of
them: what arrives, what is done to it there, and what lies in the same memory before and after."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from lockstitch import rpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.testing.cluster import LocalCluster

DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn),
    *(torch.complex64, torch.complex128, torch.bool, torch.uint8, torch.int16, torch.int64),
]
SHAPES = [(), (0,), (3,), (2, 3), (4, 0, 2), (2, 3, 4), (70_000,)]


class Marked(torch.Tensor):
    """Adds nothing."""


def dense(number: int, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    drawn = torch.randint(0, 9, shape, generator=generator)
    return drawn.to(DTYPES[number % len(DTYPES)] if dtype is None else dtype)


def drawn(number: int) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(number))


def inference(number: int) -> torch.Tensor:
    with torch.inference_mode():
        return drawn(number) * 2


KINDS: dict[str, Callable[[int], Any]] = {
    "dense": lambda n: dense(n, SHAPES[n // 16 % len(SHAPES)]),
    "transposed": lambda n: dense(n, (3, 5)).t(),
    "slice": lambda n: dense(n, (6, 8))[1:5:2, 2:7:3],
    "expanded": lambda n: dense(n, (3, 1)).expand(2, 3, 4),
    "overlapping": lambda n: torch.as_strided(dense(n, (30,)), (4, 5), (1, 1), n % 3),
    "conjugate": lambda n: torch.complex(drawn(n), drawn(n + 1)).conj(),
    "negative": lambda n: torch.complex(drawn(n), drawn(n + 1)).conj().imag,
    "channels last": lambda n: dense(n, (2, 3, 4, 4)).to(memory_format=torch.channels_last),
    "sparse": lambda n: drawn(n).relu().to_sparse(1 + n % 2),
    "uncoalesced": lambda n: torch.sparse_coo_tensor(
        [[0, 0, 1], [1, 1, 2]], drawn(n)[0, :3], (3, 4)
    ),
    "csr": lambda n: drawn(n).relu().to_sparse_csr(),
    "bsr": lambda n: drawn(n).relu().to_sparse_bsr((2, 2)),
    "marked": lambda n: dense(n, (2, 3)).as_subclass(Marked),
    "parameter": lambda n: nn.Parameter(drawn(n), requires_grad=n % 2 > 0),
    "buffer": lambda n: nn.Buffer(drawn(n)),
    "leaf": lambda n: drawn(n).requires_grad_(),
    "inference": inference,
    "array": lambda n: np.arange(12.0).reshape(3, 4)[:, :: 1 + n % 2],
    "batch norm": lambda n: nn.BatchNorm1d(2),
}
OF_ANOTHER: dict[str, Callable[[torch.Tensor], Any]] = {
    "the same": lambda t: t,
    "a part": lambda t: t.detach()[:1],
    "the rest": lambda t: t.detach()[1:],
    "as a leaf": lambda t: t.detach().unsqueeze(0),
}


class Program(NamedTuple):
    """`values`: kinds, and numbers that say more; `writes`: to which the callee writes."""

    values: list[tuple[str, int]]
    nesting: str
    way: str
    writes: list[int]
    returns: str

    def made(self) -> Any:
        made: list[Any] = []
        for kind, number in self.values:
            if kind in KINDS:
                made.append(KINDS[kind](number))
                continue
            plain = [each for each in made if is_plain(each) and each.dim()]
            if plain:
                made.append(OF_ANOTHER[kind](plain[number % len(plain)]))
        nestings = {
            "list": made,
            "dict": {"a": made[:1], "b": tuple(made[1:])},
            "twice": [made, made],
        }
        return nestings[self.nesting]


PROGRAMS = st.builds(
    Program,
    st.lists(
        st.tuples(st.sampled_from([*KINDS, *OF_ANOTHER]), st.integers(0, 1000)),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(("list", "dict", "twice")),
    st.sampled_from(("sync", "async", "remote", "itself", "group", "coroutine", "stream", "on")),
    st.lists(st.integers(0, 9), max_size=3),
    st.sampled_from(("all", "some")),
)


def is_plain(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def flat(value: Any) -> list[Any]:
    if isinstance(value, nn.Module):
        return [*value.state_dict(keep_vars=True).values()]
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, (list, tuple)):
        return [each for part in value for each in flat(part)]
    return [value]


def work(value: Any, writes: list[int], returns: str) -> Any:
    tensors = flat(value)
    for number in writes:
        tensor = tensors[number % len(tensors)] if tensors else None
        if isinstance(tensor, np.ndarray):
            tensor[...] = 1
        elif is_plain(tensor) and not tensor.requires_grad and tensor.numel():
            try:
                with torch.inference_mode(tensor.is_inference()):
                    tensor.fill_(1)
            except RuntimeError:  # several of its elements are one place in memory
                continue
    return value if returns == "all" else tensors[:2]


async def work_later(value: Any, writes: list[int], returns: str) -> Any:
    return work(value, writes, returns)


def work_in_stream(value: Any, writes: list[int], returns: str) -> Iterator[Any]:
    yield work(value, writes, returns)


def work_further_on(*arguments: Any) -> Any:
    return rpc.rpc_sync("worker0", work, args=arguments)


def call(way: str, arguments: tuple[Any, ...]) -> Any:
    if way == "async":
        return rpc.rpc_async("worker1", work, args=arguments).wait()
    if way == "remote":
        return rpc.remote("worker1", work, args=arguments).to_here()
    if way == "group":
        return rpc.group().call(work, arguments)[1]
    if way == "stream":
        return next(iter(rpc.group(["worker1"]).stream(work_in_stream, arguments).streams[0]))
    to = "worker0" if way == "itself" else "worker1"
    function = {"coroutine": work_later, "on": work_further_on}.get(way, work)
    return rpc.rpc_sync(to, function, args=arguments)


def crossed(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def described(value: Any) -> list[Any]:
    """Kinds and contents, and which of them share memory."""
    tensors = flat(value)
    places = [each.untyped_storage().data_ptr() if is_plain(each) else 0 for each in tensors]
    are_there = [is_plain(each) and each.numel() > 0 for each in tensors]
    shared = [
        (i, j)
        for i, one in enumerate(places)
        for j, other in enumerate(places[:i])
        if one == other and are_there[i] and are_there[j]
    ]
    return [[_one(each) for each in tensors], shared]


def _one(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype, value.tolist()
    kind = type(value), value.dtype, value.layout, value.shape, value.requires_grad
    if value.layout is torch.sparse_coo:
        kind = (*kind, value.is_coalesced())
    content = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
    content = content.resolve_conj().resolve_neg().as_subclass(torch.Tensor)
    return kind, content.to(torch.complex128).flatten().tolist()


@pytest.mark.filterwarnings("ignore:Sparse")
def test_what_arrives_is_what_was_sent_and_what_was_sent_stays_what_it_was(
    cluster: LocalCluster,
) -> None:
    @settings(suppress_health_check=list(HealthCheck))
    @given(PROGRAMS)
    def compare(program: Program) -> None:
        value = program.made()
        before = described(value)
        arguments = (program.writes, program.returns)
        expected = described(crossed(work(crossed(value), *arguments)))
        assert described(call(program.way, (value, *arguments))) == expected
        assert described(value) == before

    with cluster[0].active():
        compare()
