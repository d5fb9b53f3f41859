"""Connections break at each message of a backward pass, in each way: the pass ends, in the right
gradients or in an error that names a worker, and the next one is right."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch import autograd, rpc
from tests.cluster.autograd.comparison import gradients_of
from tests.cluster.breaks import WAYS, Moment, World, moments_of, run_broken
from tests.unit.runtime.stage import Background

if TYPE_CHECKING:
    from collections.abc import Callable

W = torch.linspace(1.0, 2.0, 3, dtype=torch.float64).requires_grad_()
KEPT: dict[str, torch.Tensor] = {}


def leaf() -> torch.Tensor:
    return torch.linspace(0.1, 0.9, 3, dtype=torch.float64).requires_grad_()


class Here:
    """How functions call others: on a worker, or in one process."""

    is_remote = True


def ask(worker: str, function: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    if Here.is_remote:
        return rpc.rpc_sync(worker, function, tensors)
    return function(*(tensor.clone() for tensor in tensors))


def times_w(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * W


def pass_on(tensor: torch.Tensor) -> torch.Tensor:
    return ask("worker2", times_w, tensor * W).sin()


def pass_on_to_caller(tensor: torch.Tensor) -> torch.Tensor:
    return ask("worker0", times_w, tensor.exp()) * W


def pass_on_and_back(tensor: torch.Tensor) -> torch.Tensor:
    return ask("worker2", pass_on_to_caller, tensor * W).sin()


def product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return one * other * W


def keep(tensor: torch.Tensor) -> torch.Tensor:
    KEPT["kept"] = tensor * W
    return KEPT["kept"] * 2


def use_kept() -> torch.Tensor:
    return KEPT["kept"] * 3


def one_callee(x: torch.Tensor) -> torch.Tensor:
    return ask("worker1", times_w, x)


def chain(x: torch.Tensor) -> torch.Tensor:
    return ask("worker1", pass_on, x)


def back_to_the_caller(x: torch.Tensor) -> torch.Tensor:
    return ask("worker1", pass_on_and_back, x)


def diamond(x: torch.Tensor) -> torch.Tensor:
    h = x.sin()
    one, other = ask("worker1", times_w, h), ask("worker2", times_w, h)
    return ask("worker1", product, one, other) * h


def kept(x: torch.Tensor) -> torch.Tensor:
    """What is kept on worker1 has two ways out, of which one is not used: worker1 must ask."""
    y = ask("worker1", keep, x)
    ask("worker1", use_kept)
    return y


def questions(x: torch.Tensor) -> torch.Tensor:
    """The same, and what goes out there comes back on several ways."""
    h = x.sin()
    y = ask("worker1", keep, h)
    ask("worker1", use_kept)
    z = ask("worker2", product, y, h)
    ask("worker2", times_w, z)
    return ask("worker1", product, z, y) + z


FORMS = (one_callee, chain, back_to_the_caller, diamond, kept, questions)


def expected(form: Callable[[torch.Tensor], torch.Tensor], times: int) -> list[torch.Tensor]:
    x = leaf()
    Here.is_remote = False
    try:
        gradients = torch.autograd.grad(form(x).sum(), (x, W))
    finally:
        Here.is_remote = True
    return [times * gradient for gradient in gradients]


def slope_of(form: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(form(x).sum(), x, create_graph=True)[0]


def once(form: Callable[[torch.Tensor], torch.Tensor], times: int = 1) -> Callable[[World], Any]:
    """A program: `times` passes over one graph."""

    def program(world: World) -> list[torch.Tensor]:
        with world.cluster[0].active(), autograd.context() as context:
            x = leaf()
            loss = form(x).sum()
            with world.script.watched():
                for more in reversed(range(times)):
                    autograd.backward(context, [loss], retain_graph=more > 0)
            found = gradients_of(world.cluster, context)
        return [found[x], found[W]]

    return program


def twice_differentiated(form: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[World], Any]:
    """A program: a penalty on the slope of a loss, by a pass that asks first and one more."""

    def program(world: World) -> list[torch.Tensor]:
        with world.cluster[0].active(), autograd.context() as context:
            x = leaf()
            loss = form(x).sum()
            with world.script.watched():
                (slope,) = autograd.grad(context, loss, x, create_graph=True)
                autograd.backward(context, [(slope**2).sum()])
            found = gradients_of(world.cluster, context)
        return [found[x], found[W]]

    return program


def twice_at_once(world: World) -> list[torch.Tensor]:
    """Two passes in two contexts, begun by two workers."""

    def train(rank: int, ready: threading.Barrier) -> torch.Tensor:
        with world.cluster[rank].active(), autograd.context() as context:
            x = leaf()
            loss = rpc.rpc_sync("worker1", pass_on, (x,)).sum()
            ready.wait(30)
            autograd.backward(context, [loss])
            return autograd.get_gradients(context)[x]

    barrier = threading.Barrier(2, world.script.watch)
    runs = [Background(train, rank, barrier) for rank in (0, 2)]
    try:
        outcomes, errors = [], []
        for run in runs:
            try:
                outcomes.append(run.result(repr(world)))
            except Exception as error:  # noqa: BLE001 - raised when both have ended
                errors.append(error)
    finally:
        world.script.is_watching = False
    if errors:
        raise errors[0]
    return outcomes


def check_of(name: str) -> Callable[[Any], None]:
    program, _, times = name.partition(" ")
    if program == "twice_differentiated":
        wanted = expected(lambda x: slope_of(chain, x) ** 2, 1)
    elif program == "twice_at_once":
        wanted = [expected(chain, 1)[0]] * 2
    else:
        wanted = expected(next(each for each in FORMS if each.__name__ == program), int(times or 1))

    def check(found: Any) -> None:
        assert not isinstance(found, Exception), found
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)

    return check


PROGRAMS: dict[str, Callable[[World], Any]] = {
    **{form.__name__: once(form) for form in FORMS},
    **{f"{form.__name__} 2": once(form, 2) for form in (one_callee, kept)},
    "twice_differentiated": twice_differentiated(chain),
    "twice_at_once": twice_at_once,
}


@pytest.fixture(autouse=True)
def forget() -> Any:
    yield
    KEPT.clear()


def test_what_asks_who_takes_part_is_among_the_programs() -> None:
    kinds = {each.kind for each in moments_of(PROGRAMS["kept"], check_of("kept"))}
    assert kinds >= {"Gradient", "NeedParts", "AskReach", "Reach", "Parts"}


QUESTIONS = [
    Moment("worker1", "worker0", "NeedParts", 1),
    Moment("worker0", "worker1", "AskReach", 1),
    Moment("worker1", "worker0", "Reach", 1),
    Moment("worker0", "worker1", "Parts", 1),
]


@pytest.mark.parametrize("moment", QUESTIONS, ids=lambda moment: moment.kind)
def test_a_question_or_an_answer_is_lost(moment: Moment) -> None:
    for way in WAYS[:2]:
        run_broken(PROGRAMS["kept"], check_of("kept"), moment, way)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_message_meets_every_break(name: str) -> None:
    program, check = PROGRAMS[name], check_of(name)
    for moment in moments_of(program, check):
        for way in WAYS:
            run_broken(program, check, moment, way)
