"""Random programs with derivatives up to the third order, over workers and in one process.

A program is drawn from a seed. Its body is a list of steps on a growing list of variables; some
steps call a body on another worker. Then come *passes*: each takes gradients of the scalars so far,
by `grad` or by `backward`, and makes of them the scalar of the next one. `Remotely` runs it over a
cluster, `InOneProcess` with plain PyTorch, where what crosses is cloned. Both tell all gradients,
and how often hooks and custom functions ran.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import torch

from lockstitch import autograd, rpc

SIZE = 3
WORKERS = 3
LEAVES_PER_WORKER = 3
WAYS = ("sync", "sync", "async", "remote", "no_grad")
KINDS = (
    *(
        "sin",
        "mul",
        "mul",
        "add",
        "leaf",
        "leaf",
        "scale",
        "swap",
        "hook",
        "count",
        "view",
        "write",
    ),
    *("write_part", "split", "cat", "complex", "float", "detach", "quiet", "table", "far leaf"),
)


class Body(NamedTuple):
    """Steps, and the positions of the variables that it returns; none means all of them."""

    steps: tuple[Step, ...]
    results: tuple[int, ...]


class Step(NamedTuple):
    """`kind`, the variables that it takes by their positions (modulo how many there are), and what
    calls need."""

    kind: str
    a: int
    b: int
    worker: int = 0
    way: str = ""
    body: Body | None = None
    arguments: tuple[int, ...] = ()


class Pass(NamedTuple):
    """One pass: `way` is "grad" or "backward"; `inputs` of a grad are leaves by (worker, number),
    or variables of the main body by (-1, position). `keeps_sum`: the next scalar is this one too.
    """

    way: str
    inputs: tuple[tuple[int, int], ...]
    creates_graph: bool
    keeps_sum: bool


class Program(NamedTuple):
    """What runs on worker 0, and its passes; a leaf of `hooked` has a hook."""

    main: Body
    passes: tuple[Pass, ...]
    hooked: frozenset[tuple[int, int]]


# ---------------------------------------------------------------- drawing


def draw(seed: int, order: int = 3) -> Program:
    """The program of a seed."""
    source = random.Random(seed)
    main = _body(source, 2, source.randint(3, 8))
    first = Step("leaf", 0, 0), Step("leaf", 1, 0)
    last = Step("call", 0, 0, source.randint(1, 2), "sync", _body(source, 1, 4), (0, 1, 5))
    results = (*source.sample(range(-4, 4), 2), -1)
    passes = [_pass(source, number + 1 < order) for number in range(order)]
    leaves = [(worker, number) for worker in range(WORKERS) for number in range(LEAVES_PER_WORKER)]
    hooked = frozenset(source.sample(leaves, source.choice((0, 0, 1, 2))))
    return Program(Body((*first, *main.steps, last), results), tuple(passes), hooked)


def _body(source: random.Random, depth: int, count: int) -> Body:
    steps = tuple([_step(source, depth) for _ in range(count)])
    return Body(steps, tuple([source.randint(-5, 5) for _ in range(source.randint(1, 3))]))


def _step(source: random.Random, depth: int) -> Step:
    a, b, worker = source.randint(0, 11), source.randint(0, 11), source.randrange(WORKERS)
    if not depth or source.random() < 0.65:
        return Step(source.choice(KINDS), a, b, worker)
    arguments = tuple([source.randint(0, 11) for _ in range(source.randint(1, 3))])
    body = _body(source, depth - 1, source.randint(1, 5))
    return Step("call", a, b, worker, source.choice(WAYS), body, arguments)


def thrifty(program: Program) -> Program:
    """The same program with every variable used, and every gradient: all that is sent takes part in
    every pass."""
    passes = tuple([each._replace(way="backward", keeps_sum=True) for each in program.passes])
    return Program(_use_all(program.main), passes, program.hooked)


def _use_all(body: Body) -> Body:
    steps = tuple(
        [
            step if step.body is None else step._replace(way="sync", body=_use_all(step.body))
            for step in body.steps
            if step.kind not in ("detach", "quiet", "table")
        ]
    )
    return Body(steps, ())


def _pass(source: random.Random, creates_graph: bool) -> Pass:
    inputs = [
        (source.randrange(-1, WORKERS), source.randrange(LEAVES_PER_WORKER))
        for _ in range(source.randint(1, 4))
    ]
    way = source.choice(("grad", "backward"))
    return Pass(way, tuple(inputs), creates_graph, source.random() < 0.5)


# ---------------------------------------------------------------- what runs on workers


class _Swap(torch.autograd.Function):
    """Two outputs, either of which may be unused; twice differentiable."""

    @staticmethod
    def forward(ctx, one, other):
        ctx.save_for_backward(one, other)
        return other * one, one * 0.5

    @staticmethod
    def backward(ctx, first, second):
        one, other = ctx.saved_tensors
        first = torch.zeros_like(one) if first is None else first
        second = torch.zeros_like(one) if second is None else second
        return first * other + second * 0.5, first * one


class _Counted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, counts, name):
        ctx.counts, ctx.name = counts, name
        return tensor * 1.25

    @staticmethod
    def backward(ctx, gradient):
        ctx.counts[ctx.name] = ctx.counts.get(ctx.name, 0) + 1
        return gradient * 1.25, None, None


class World:
    """The leaves of all workers, and what ran: there is one at a time, in this very process."""

    now: World

    def __init__(self, program: Program, way: Any) -> None:
        generator = torch.Generator().manual_seed(7)
        self.way = way
        self.counts: dict[str, int] = {}
        self.leaves = [
            [
                (torch.rand(SIZE, dtype=torch.float64, generator=generator) + 0.2).requires_grad_()
                for _ in range(LEAVES_PER_WORKER)
            ]
            for _ in range(WORKERS)
        ]
        self.tables = [
            torch.rand(4, SIZE, dtype=torch.float64, generator=generator).requires_grad_()
            for _ in range(WORKERS)
        ]
        self._names = 0
        for worker, number in program.hooked:
            leaf = self.leaves[worker][number]
            leaf.register_hook(self.hook(f"leaf {worker}.{number}"))
        World.now = self

    def name(self) -> str:
        self._names += 1
        return f"step {self._names}"

    def hook(self, name: str) -> Any:
        def change(gradient):
            self.counts[name] = self.counts.get(name, 0) + 1
            return gradient.tanh() * 1.5  # not linear: wrong on partial sums

        return change


def run(body: Body, worker: int, *arguments: torch.Tensor) -> list[torch.Tensor]:
    """The variables that `body` returns, on a worker."""
    variables = run_all(body, worker, *arguments)
    return _chosen(body, variables)


def _chosen(body: Body, variables: list[torch.Tensor]) -> list[torch.Tensor]:
    return [variables[place % len(variables)] for place in body.results] or variables


def run_all(body: Body, worker: int, *arguments: torch.Tensor) -> list[torch.Tensor]:
    variables = list(arguments)
    for step in body.steps:
        variables.extend(_do(step, worker, variables))
    return variables


def far_leaf(worker: int, number: int) -> torch.Tensor:
    return World.now.leaves[worker][number]


def _do(step: Step, worker: int, variables: list[torch.Tensor]) -> list[torch.Tensor]:  # noqa: PLR0911, PLR0912
    world, kind = World.now, step.kind
    own = world.leaves[worker]
    a = variables[step.a % len(variables)] if variables else own[0]
    b = variables[step.b % len(variables)] if variables else own[1]
    if kind == "call":
        given = [variables[place % len(variables)] for place in step.arguments] if variables else []
        way = "own" if step.way == "remote" and step.worker == worker else step.way
        return world.way.call(way, step.worker, run, step.body, step.worker, *given)
    if kind == "far leaf":
        if step.worker == worker:  # its own value is not sent
            return [own[step.b % LEAVES_PER_WORKER]]
        return [world.way.fetch(step.worker, step.b % LEAVES_PER_WORKER)]
    if kind == "leaf":
        return [own[step.a % LEAVES_PER_WORKER]]
    if kind == "table":
        places = torch.tensor([step.a % 4, step.b % 4])
        rows = torch.nn.functional.embedding(places, world.tables[worker], sparse=step.a % 2 == 0)
        return [rows.prod(0)]
    if kind == "mul":
        return [a * b]
    if kind == "add":
        return [a + b.roll(1)]
    if kind == "swap":
        return list(_Swap.apply(a, b))
    if kind == "count":
        return [_Counted.apply(a, world.counts, world.name())]
    if kind == "hook":
        fresh, hook = a * 1.0, world.hook(world.name())
        if fresh.requires_grad:
            fresh.register_hook(hook)
        return [fresh]
    if kind == "write":
        written = a.clone()
        written.mul_(b).add_(0.1)
        return [written]
    if kind == "write_part":
        written = a.sin()
        written[step.b % 2 :].mul_(b[0])
        return [written]
    if kind == "split":
        return list((a * torch.ones(2, SIZE, dtype=torch.float64)).unbind())
    if kind == "cat":
        return [torch.cat([a[1:], b[:1]])]
    if kind == "complex":
        number = torch.complex(a, b)
        return [(number * number.conj().flip(0)).real.contiguous()]
    if kind == "quiet":
        with torch.no_grad():
            return [a.cos() + b]
    return [
        {
            "sin": lambda: a.sin(),
            "scale": lambda: a * 0.7,
            "view": lambda: a.view(1, SIZE).t()[:, 0],
            "float": lambda: a.to(torch.float32).to(torch.float64),
            "detach": lambda: a.detach(),
        }[kind]()
    ]


# ---------------------------------------------------------------- the two ways


class InOneProcess:
    """Plain PyTorch; what crosses is cloned."""

    def __init__(self) -> None:
        self._total: dict[torch.Tensor, torch.Tensor] = {}

    def call(self, way: str, _worker: int, function: Any, *arguments: Any) -> list[torch.Tensor]:
        if way == "no_grad":
            cut = [each.detach() if isinstance(each, torch.Tensor) else each for each in arguments]
            return _crossed([each.detach() for each in function(*_crossed(cut))])
        results = function(*_crossed(arguments))
        return results if way == "own" else _crossed(results)

    def fetch(self, worker: int, number: int) -> torch.Tensor:
        return far_leaf(worker, number).clone()

    def grad(self, scalars: Any, inputs: Any, creates_graph: bool) -> list[torch.Tensor | None]:
        tensors = [each if isinstance(each, torch.Tensor) else far_leaf(*each) for each in inputs]
        return torch.autograd.grad(
            scalars, tensors, retain_graph=True, create_graph=creates_graph, allow_unused=True
        )

    def measure(self, gradients: Any) -> list[torch.Tensor]:
        return [measure(each) for each in gradients if each is not None]

    def values(self, gradients: Any) -> list[Any]:
        return list(gradients)

    def backward(self, scalars: Any, creates_graph: bool) -> None:
        leaves = _leaves()
        gradients = torch.autograd.grad(
            scalars, leaves, retain_graph=True, create_graph=creates_graph, allow_unused=True
        )
        for leaf, gradient in zip(leaves, gradients, strict=True):
            if gradient is not None:
                known = self._total.get(leaf)
                self._total[leaf] = gradient if known is None else gradient + known

    def gradients(self) -> dict[torch.Tensor, torch.Tensor]:
        return dict(self._total)

    def measure_total(self) -> list[torch.Tensor]:
        return [measure(self._total[leaf]) for leaf in _leaves() if leaf in self._total]


def _crossed(values: Any) -> list[Any]:
    """What is sent twice arrives as one tensor."""
    known: dict[int, torch.Tensor] = {}
    for each in values:
        if isinstance(each, torch.Tensor) and id(each) not in known:
            known[id(each)] = each.clone()
    return [known.get(id(each), each) for each in values]


class Remotely:
    """Over the workers of a cluster, from worker 0."""

    def __init__(self, cluster: Any, context: int, mode: Any = "smart") -> None:
        self._cluster = cluster
        self._context = context
        self._mode = mode

    def call(self, way: str, worker: int, function: Any, *arguments: Any) -> list[torch.Tensor]:
        name = f"worker{worker}"
        if way == "async":
            return rpc.rpc_async(name, function, args=arguments).wait()
        if way in ("remote", "own"):
            return rpc.remote(name, function, args=arguments).to_here()
        if way == "no_grad":
            with torch.no_grad():
                return rpc.rpc_sync(name, function, args=arguments)
        return rpc.rpc_sync(name, function, args=arguments)

    def fetch(self, worker: int, number: int) -> torch.Tensor:
        return _reference(worker, number).to_here()

    def grad(self, scalars: Any, inputs: Any, creates_graph: bool) -> list[Any]:
        chosen = [
            each
            if isinstance(each, torch.Tensor)
            else far_leaf(*each)
            if each[0] == 0
            else _reference(*each)
            for each in inputs
        ]
        return autograd.grad(
            self._context,
            scalars,
            chosen,
            retain_graph=True,
            create_graph=creates_graph,
            allow_unused=True,
            mode=self._mode,
        )

    def measure(self, gradients: Any) -> list[torch.Tensor]:
        return [
            measure(each)
            if isinstance(each, torch.Tensor)
            else rpc.rpc_sync(each.owner(), measure_value, args=(each,))
            for each in gradients
            if each is not None
        ]

    def values(self, gradients: Any) -> list[Any]:
        return [each.to_here() if isinstance(each, rpc.RRef) else each for each in gradients]

    def backward(self, scalars: Any, creates_graph: bool) -> None:
        autograd.backward(
            self._context, scalars, retain_graph=True, create_graph=creates_graph, mode=self._mode
        )

    def gradients(self) -> dict[torch.Tensor, torch.Tensor]:
        found: dict[torch.Tensor, torch.Tensor] = {}
        for worker in range(WORKERS):
            with self._cluster[worker].active():
                known = [each.id for each in autograd.api.service().contexts]
                if self._context in known:
                    found |= autograd.get_gradients(self._context)
        return found

    def measure_total(self) -> list[torch.Tensor]:
        found = []
        for worker in range(WORKERS):
            found += rpc.rpc_sync(f"worker{worker}", measure_here, args=(worker, self._context))
        return found


def _reference(worker: int, number: int) -> Any:
    return rpc.remote(f"worker{worker}", far_leaf, args=(worker, number))


def _leaves() -> list[torch.Tensor]:
    world = World.now
    return [
        leaf
        for own, table in zip(world.leaves, world.tables, strict=True)
        for leaf in (*own, table)
    ]


def measure(gradient: torch.Tensor) -> torch.Tensor:
    """A number that depends on all of a gradient, not linearly."""
    dense = gradient.to_dense() if gradient.layout is not torch.strided else gradient
    return (dense * 0.5).sin().sum() + (dense * dense).mean()


def measure_value(reference: Any) -> torch.Tensor:
    return measure(reference.local_value())


def measure_here(worker: int, context: int) -> list[torch.Tensor]:
    found = autograd.get_gradients(context)
    own = (*World.now.leaves[worker], World.now.tables[worker])
    return [measure(found[leaf]) for leaf in own if leaf in found]


# ---------------------------------------------------------------- running


class Outcome(NamedTuple):
    """Every gradient that a pass returned, the gradients at the end, and counts by name."""

    returned: list[torch.Tensor | None]
    gradients: dict[str, torch.Tensor]
    counts: dict[str, int]


def perform(program: Program, way: Any) -> Outcome:
    """Runs the program in one of the two ways."""
    world = World(program, way)
    variables = run_all(program.main, 0)
    results = _chosen(program.main, variables)
    scalars = [each.sum() for each in results if each.requires_grad]
    returned: list[torch.Tensor | None] = []
    for each in program.passes if scalars else ():
        if each.way == "grad":
            gradients = way.grad(scalars, _inputs(each, variables), each.creates_graph)
            measured = way.measure(gradients)
            returned += way.values(gradients)
        else:
            way.backward(scalars, each.creates_graph)
            measured = way.measure_total()
        measured = [number for number in measured if number.requires_grad]
        scalars = (scalars if each.keeps_sum or not measured else []) + measured
    names = {
        leaf: f"leaf {place} of worker {worker}"
        for worker, own in enumerate(world.leaves)
        for place, leaf in enumerate((*own, world.tables[worker]))
    }
    found = {names[leaf]: gradient for leaf, gradient in way.gradients().items()}
    return Outcome(returned, found, world.counts)


def _inputs(each: Pass, variables: list[torch.Tensor]) -> list[Any]:
    chosen = []
    for worker, place in each.inputs:
        if worker >= 0:
            chosen.append((worker, place))
        else:
            variable = variables[-1 - place % len(variables)]
            chosen.append(variable if variable.requires_grad else (0, 0))
    return chosen


def assert_same(remote: Outcome, plain: Outcome, program: Program) -> None:
    """Same gradients, and the same numbers of calls; where a pass selects, some may run in vain."""
    assert len(remote.returned) == len(plain.returned)
    for place, (found, expected) in enumerate(zip(remote.returned, plain.returned, strict=True)):
        _compare(found, expected, f"returned gradient {place}")
    assert remote.gradients.keys() == plain.gradients.keys()
    for name, gradient in plain.gradients.items():
        _compare(remote.gradients[name], gradient, name)
    if any(each.way == "grad" for each in program.passes):
        assert remote.counts.keys() >= plain.counts.keys()
        assert all(remote.counts[name] >= count for name, count in plain.counts.items())
    else:
        assert remote.counts == plain.counts


def _compare(found: torch.Tensor | None, expected: torch.Tensor | None, name: str) -> None:
    assert (found is None) == (expected is None), f"{name}: {found} instead of {expected}"
    if found is not None and expected is not None:
        dense = [each.to_dense() if each.is_sparse else each for each in (found, expected)]
        torch.testing.assert_close(*dense, rtol=1e-9, atol=1e-9, msg=lambda text: f"{name}: {text}")
