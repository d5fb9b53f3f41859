"""Random programs that run alike in one process and over many workers.

A `Program` is a tree of function bodies; each body is a list of steps on a growing list of
variables, and some steps call another body on another worker. `run_plain` runs it with plain
PyTorch, `run_distributed` over the workers of a post office; both end with a backward pass and tell
the gradients, and how often hooks and custom backward functions ran.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from tests.unit.autograd.post_office import call, context_on, gradients_on

SIZE = 3
PARAMETERS_PER_WORKER = 3


@dataclass(frozen=True)
class Step:
    """`kind`, the positions of the variables it takes (modulo how many there are), and its data."""

    kind: str
    a: int = 0
    b: int = 0
    worker: int = 0
    body: Body | None = None
    arguments: tuple[int, ...] = ()
    in_thread: bool = False

    def __repr__(self):
        parts = [self.kind, str(self.a), str(self.b)]
        if self.kind == "call":
            thread = " in a thread" if self.in_thread else ""
            return f"call({list(self.arguments)} on {self.worker}{thread}: {self.body!r})"
        return f"{self.kind}({', '.join(parts[1:])})"


@dataclass(frozen=True)
class Body:
    """`results` are positions of variables; none means all of them."""

    steps: tuple[Step, ...]
    results: tuple[int, ...]

    def __repr__(self):
        return f"Body({list(self.steps)} -> {list(self.results)})"


@dataclass(frozen=True)
class Program:
    size: int
    main: Body
    hooked_leaves: frozenset[tuple[int, int]] = frozenset()


@dataclass
class Outcome:
    """Gradients by (worker, parameter), and counts by name."""

    gradients: dict
    counts: dict = field(default_factory=dict)


class _Counted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, counts, name):
        ctx.counts, ctx.name = counts, name
        return tensor * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.counts[ctx.name] = ctx.counts.get(ctx.name, 0) + 1
        return gradient * 2, None, None


class _Swap(torch.autograd.Function):
    """Two outputs; either may be unused."""

    @staticmethod
    def forward(ctx, one, other):
        return other * 1.5, one * 0.5

    @staticmethod
    def backward(ctx, one, other):
        return other * 0.5, one * 1.5


def _parameters(program):
    generator = torch.Generator().manual_seed(7)
    return [
        [
            torch.rand(SIZE, dtype=torch.float64, generator=generator).requires_grad_()
            for _ in range(PARAMETERS_PER_WORKER)
        ]
        for _ in range(program.size)
    ]


class _Interpreter:
    """Runs bodies. `transport(caller, callee, function, tensors, in_thread)` makes a call."""

    def __init__(self, program, transport):
        self.parameters = _parameters(program)
        self.counts = {}
        self._transport = transport
        self._names = 0
        for worker, number in program.hooked_leaves:
            leaf = self.parameters[worker][number % PARAMETERS_PER_WORKER]
            leaf.register_hook(self._hook(f"leaf {worker}.{number}"))

    def _hook(self, name):
        def hook(gradient):
            self.counts[name] = self.counts.get(name, 0) + 1
            return gradient.tanh() * 3  # not linear: wrong on partial sums

        return hook

    def run(self, body, worker, arguments):
        variables = list(arguments)
        for step in body.steps:
            variables.extend(self._step(step, worker, variables))
        if not body.results:
            return variables
        return [variables[index % len(variables)] for index in body.results]

    def _name(self):
        self._names += 1
        return f"step {self._names}"

    def _step(self, step, worker, variables):  # noqa: PLR0911
        own = self.parameters[worker]
        a = variables[step.a % len(variables)] if variables else own[0]
        b = variables[step.b % len(variables)] if variables else own[0]
        if step.kind == "sin":
            return [a.sin()]
        if step.kind == "scale":
            return [a * 0.7]
        if step.kind == "add":
            return [a + b]
        if step.kind == "mul":
            return [a * b]
        if step.kind == "swap":
            return list(_Swap.apply(a, b))
        if step.kind == "parameter":
            return [own[step.a % PARAMETERS_PER_WORKER]]
        if step.kind == "detach":
            return [a.detach()]
        if step.kind == "split":
            return list((a * torch.ones(2, SIZE, dtype=torch.float64)).unbind())
        if step.kind == "count":
            return [_Counted.apply(a, self.counts, self._name())]
        if step.kind == "hook":
            fresh = a * 1.0
            if fresh.requires_grad:
                fresh.register_hook(self._hook(self._name()))
            return [fresh]
        assert step.kind == "call"
        tensors = (
            [variables[index % len(variables)] for index in step.arguments] if variables else []
        )
        callee = step.worker % len(self.parameters)
        return self._transport(
            worker,
            callee,
            lambda *received: self.run(step.body, callee, received),
            tensors,
            step.in_thread,
        )


def run_plain(program, passes=1):
    """The program in one process; calls are calls, and what crosses is copied."""

    def transport(_caller, _callee, function, tensors, _in_thread):
        return [result.clone() for result in function(*[tensor.clone() for tensor in tensors])]

    interpreter = _Interpreter(program, transport)
    roots = _roots(interpreter.run(program.main, 0, []))
    for count in range(passes if roots else 0):
        torch.autograd.backward(roots, retain_graph=count + 1 < passes)
    gradients = {
        (worker, number): leaf.grad
        for worker, leaves in enumerate(interpreter.parameters)
        for number, leaf in enumerate(leaves)
        if leaf.grad is not None
    }
    return Outcome(gradients, interpreter.counts)


def run_distributed(program, office, mode="smart", passes=1):
    """The program over the workers of `office`, started by worker 0."""

    def transport(caller, callee, function, tensors, in_thread):
        return call(office[caller], office[callee], function, *tensors, in_thread=in_thread)

    interpreter = _Interpreter(program, transport)
    with context_on(office[0]) as context:
        roots = _roots(interpreter.run(program.main, 0, []))
        for count in range(passes if roots else 0):
            retain_graph = count + 1 < passes
            office[0].autograd.backward(context.id, roots, retain_graph, mode)
        gradients = {}
        for worker, leaves in enumerate(interpreter.parameters):
            found = gradients_on(office[worker], context.id)
            for number, leaf in enumerate(leaves):
                assert leaf.grad is None
                if leaf in found:
                    gradients[worker, number] = found[leaf]
    return Outcome(gradients, interpreter.counts)


def _roots(results):
    return [result.sum() for result in results if result.requires_grad]


def assert_same(distributed, plain):
    """Same leaves, same gradients, same numbers of calls."""
    assert distributed.gradients.keys() == plain.gradients.keys()
    for key, gradient in plain.gradients.items():
        torch.testing.assert_close(distributed.gradients[key], gradient, rtol=1e-12, atol=1e-12)
    assert distributed.counts == plain.counts


# ---------------------------------------------------------------- strategies

_INDEX = st.integers(0, 11)
_LOCAL_KINDS = [
    "sin",
    "scale",
    "add",
    "mul",
    "swap",
    "parameter",
    "detach",
    "split",
    "count",
    "hook",
]


def _local_steps(kinds):
    return st.builds(Step, kind=st.sampled_from(kinds), a=_INDEX, b=_INDEX)


def _bodies(size, depth, kinds):
    steps = _local_steps(kinds)
    if depth:
        calls = st.builds(
            Step,
            kind=st.just("call"),
            worker=st.integers(0, size - 1),
            body=st.deferred(lambda: _bodies(size, depth - 1, kinds)),
            arguments=st.lists(_INDEX, max_size=4).map(tuple),
            in_thread=st.booleans(),
        )
        steps = st.one_of(steps, calls)
    return st.builds(
        Body,
        steps=st.lists(steps, min_size=1, max_size=7).map(tuple),
        results=st.lists(_INDEX, min_size=1, max_size=3).map(tuple),
    )


def programs(kinds=tuple(_LOCAL_KINDS)):
    """Any program: parts of it may be unused, partly used, cyclic between workers."""
    return st.integers(2, 4).flatmap(
        lambda size: st.builds(
            Program,
            size=st.just(size),
            main=_bodies(size, 3, kinds).map(_with_a_call),
            hooked_leaves=st.frozensets(
                st.tuples(st.integers(0, size - 1), st.integers(0, PARAMETERS_PER_WORKER - 1)),
                max_size=3,
            ),
        )
    )


def _with_a_call(body):
    """Starts with something that wants gradients, so that few programs are empty."""
    return Body((Step("parameter", 0), Step("parameter", 1), *body.steps), body.results)


def thrifty(program):
    """The same program with every variable used, so that every tensor sent takes part."""
    return Program(program.size, _use_all(program.main), program.hooked_leaves)


def _use_all(body):
    steps = []
    for step in body.steps:
        if step.kind == "detach":
            continue
        steps.append(
            step
            if step.body is None
            else Step(
                "call", 0, 0, step.worker, _use_all(step.body), step.arguments, step.in_thread
            )
        )
    return Body(tuple(steps), ())
