"""A pipeline as programs use it, and what bad input and faults get."""

from __future__ import annotations

import copy
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from lockstitch import autograd, rpc
from lockstitch.errors import NotInitializedError, PeerDiedError, SerializationError
from lockstitch.nn import Pipeline, RemoteModule, Replicate
from lockstitch.nn.pipelining import steps
from lockstitch.nn.pipelining.inbox import Inboxes
from lockstitch.nn.pipelining.running import _Receipt
from lockstitch.optim import DistributedOptimizer, GradScaler
from lockstitch.runtime.agent import AgentOptions
from lockstitch.testing.cluster import LocalCluster
from lockstitch.testing.faults import Faults
from lockstitch.trust.registry import DECLARED
from lockstitch.wire.messages import Call, HandOver
from tests.cluster.nn.pipelining.pipelines import gradients_of

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ["driver", "a", "b", "c"]
mse = nn.functional.mse_loss


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(NAMES) as running, running["driver"].active():
        yield running


def layers(*widths: int) -> list[nn.Module]:
    torch.manual_seed(1)
    return [nn.Sequential(nn.Linear(*pair), nn.Tanh()).double() for pair in pairwise(widths)]


def remote(modules: list[nn.Module], workers: list[str] = NAMES[1:]) -> list[RemoteModule]:
    pairs = zip(modules, workers, strict=False)
    return [RemoteModule(worker, copy.deepcopy, (module,)) for module, worker in pairs]


def batch_of(rows: int, *widths: int) -> list[torch.Tensor]:
    return [torch.randn(rows, width).double() for width in widths]


def step_of(
    pipeline: Pipeline, optimizer: DistributedOptimizer, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    with autograd.context() as context_id:
        loss = pipeline.step(context_id, x, y, mse)
        optimizer.step(context_id)
    return loss


def own_step_of(
    twin: nn.Module, own: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """The same in one process."""
    own.zero_grad()
    loss = mse(twin(x), y)
    loss.backward()
    own.step()
    return loss.detach()


def test_optimizers_find_the_gradients_in_the_context(cluster):
    modules = layers(5, 4, 3, 2)
    pipeline = Pipeline(remote(modules), chunks=4)
    optimizer = DistributedOptimizer(torch.optim.Adam, pipeline.remote_parameters(), lr=0.1)
    twin = nn.Sequential(*modules)
    own = torch.optim.Adam(twin.parameters(), lr=0.1)
    for _ in range(3):
        x, y = batch_of(8, 5, 2)
        loss = step_of(pipeline, optimizer, x, y)
        expected = own_step_of(twin, own, x, y)
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(pipeline(x), twin(x), rtol=1e-12, atol=1e-12)


def mse_of_marked(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Writes to the target first."""
    target[target < 0] = 0
    return mse(output, target)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_loss_function_may_write_to_its_target(cluster, recompute):
    modules = layers(3, 2)
    pipeline = Pipeline(remote(modules), "gpipe", chunks=4, recompute=recompute)
    x, y = batch_of(8, 3, 2)
    before = y.clone()
    with autograd.context() as context_id:
        loss = pipeline.step(context_id, x, y, mse_of_marked)
    assert torch.equal(y, before)
    torch.testing.assert_close(loss, mse(modules[0](x), y.clamp(min=0)).detach())


def test_the_batch_crosses_as_it_is(cluster, monkeypatch):
    orders: list[Any] = []
    send = steps._send

    def note(team: Any, given: Any, context: Any) -> Any:
        orders.extend(given)
        return send(team, given, context)

    monkeypatch.setattr(steps, "_send", note)
    pipeline = Pipeline(remote(layers(3, 2, 2)), chunks=4)
    x, y = batch_of(8, 3, 2)
    with autograd.context() as context_id:
        pipeline.step(context_id, x, y, mse)
    first, last = orders
    assert first.batch is x
    assert first.target is None
    assert last.target is y
    assert last.batch is None


def test_two_steps_of_one_context_add_up(cluster):
    modules = layers(3, 3)
    pipeline = Pipeline(remote(modules), chunks=2)
    x, y = batch_of(4, 3, 3)
    with autograd.context() as context_id:
        for _ in range(2):
            pipeline.step(context_id, x, y, mse)
        found = rpc.rpc_sync("a", gradients_of, (pipeline._team.references[0], context_id))
    (2 * mse(modules[0](x), y)).backward()
    for gradient, parameter in zip(found, modules[0].parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


def test_gradients_may_be_scaled_and_the_loss_is_not(cluster):
    modules = layers(3, 2)
    pipeline = Pipeline(remote(modules), chunks=2)
    x, y = batch_of(4, 3, 2)
    with autograd.context() as context_id:
        loss = pipeline.step(context_id, x, y, mse, scale=8.0)
        found = rpc.rpc_sync("a", gradients_of, (pipeline._team.references[0], context_id))
    expected = mse(modules[0](x), y)
    torch.testing.assert_close(loss, expected.detach())
    (8 * expected).backward()
    torch.testing.assert_close(found[0], modules[0][0].weight.grad)


def test_the_scale_of_a_scaler_that_has_scaled_nothing_itself(cluster):
    modules = layers(4, 3)
    x, y = batch_of(6, 4, 3)
    pipeline = Pipeline(remote(modules), chunks=2)
    optimizer = DistributedOptimizer(torch.optim.SGD, pipeline.remote_parameters(), lr=0.5)
    scaler = GradScaler(init_scale=1024.0)
    with autograd.context() as context_id:
        pipeline.step(context_id, x, y, mse, scale=scaler.get_scale())
        scaler.step(optimizer, context_id)
        scaler.update()
    own = torch.optim.SGD(modules[0].parameters(), lr=0.5)
    mse(modules[0](x), y).backward()
    own.step()
    torch.testing.assert_close(pipeline(x), modules[0](x).detach())


class Force(nn.Module):
    """The gradient of an energy, where a graph is made; else zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        energy = (x * self.weight).tanh().sum()
        if not energy.requires_grad:
            return torch.zeros_like(x)
        x = x if x.requires_grad else x.detach().requires_grad_()
        energy = (x * self.weight).tanh().sum()
        return torch.autograd.grad(energy, x, create_graph=True)[0]


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_what_is_recomputed_made_a_graph_the_first_time_too(cluster, schedule):
    modules = [*layers(3, 3), Force().double()]
    twin = nn.Sequential(*modules)
    pipeline = Pipeline(remote(modules), schedule, recompute=True)
    optimizer = DistributedOptimizer(torch.optim.SGD, pipeline.remote_parameters(), lr=0.5)
    own = torch.optim.SGD(twin.parameters(), lr=0.5)
    for _ in range(2):
        x, y = batch_of(6, 3, 3)
        loss = step_of(pipeline, optimizer, x, y)
        torch.testing.assert_close(loss, own_step_of(twin, own, x, y))


def test_uneven_micro_batches_count_by_their_rows(cluster):
    modules = layers(3, 2)
    x, y = batch_of(7, 3, 2)
    for reduction in ("mean", "sum"):
        loss_fn = nn.MSELoss(reduction=reduction)
        pipeline = Pipeline(remote(modules), chunks=4)
        with autograd.context() as context_id:
            loss = pipeline.step(context_id, x, y, loss_fn)
        torch.testing.assert_close(loss, loss_fn(modules[0](x), y).detach())


@pytest.mark.parametrize(
    "reduction", [None, lambda part: float((part >= 0).sum())], ids=["known", "told"]
)
def test_losses_that_leave_targets_out_are_weighted_by_what_is_counted(cluster, reduction):
    modules, target = layers(3, 4), torch.tensor([0, -1, 2, -1, -1, 3, 1])
    loss_fn = nn.CrossEntropyLoss(ignore_index=-1)
    pipeline = Pipeline(remote(modules), chunks=3, reduction=reduction)
    (x,) = batch_of(7, 3)
    with autograd.context() as context_id:
        loss = pipeline.step(context_id, x, target, loss_fn)
    torch.testing.assert_close(loss, loss_fn(modules[0](x), target).detach())


def test_a_step_whose_targets_are_all_left_out_is_what_it_is_in_one_process(cluster):
    modules, target = layers(3, 4), torch.full((6,), -1)
    loss_fn = nn.CrossEntropyLoss(ignore_index=-1)
    pipeline = Pipeline(remote(modules), chunks=3)
    (x,) = batch_of(6, 3)
    with autograd.context() as context_id:
        loss = pipeline.step(context_id, x, target, loss_fn)
        found = rpc.rpc_sync("a", gradients_of, (pipeline._team.references[0], context_id))
    expected = loss_fn(modules[0](x), target)
    expected.backward()
    assert expected.isnan()
    torch.testing.assert_close(loss, expected.detach(), equal_nan=True)
    for gradient, parameter in zip(found, modules[0].parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, equal_nan=True)


class Pair(nn.Module):
    """Several arguments and outputs, of different kinds."""

    def forward(self, x, table, *, power=1, name="?"):
        return {"x": x**power, "name": name}, table[0]


class Single(nn.Module):
    """One output of two arguments."""

    def forward(self, told, scale):
        assert told["name"] == "n"
        return told["x"] * scale


def test_arguments_and_outputs_may_be_anything(cluster):
    pipeline = Pipeline(remote([Pair(), Single()]), chunks=2)
    x, table = torch.arange(6.0).view(3, 2), torch.full((5,), 3.0)
    output = pipeline((x, Replicate(table)), kwargs={"power": 2, "name": "n"})
    torch.testing.assert_close(output, 3 * x**2)


def test_modes_of_the_caller_hold_in_the_stages(cluster):
    pipeline = Pipeline(remote([nn.Linear(4, 4), nn.Linear(4, 4)]), chunks=2)
    with torch.autocast("cpu", torch.bfloat16):
        assert pipeline(torch.ones(4, 4)).dtype is torch.bfloat16
    assert pipeline(torch.ones(4, 4)).dtype is torch.float32


class NotCast(nn.Module):
    """A layer in float32, whatever the precision of those around it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return self.linear(x.float())


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_backward_passes_run_without_autocast_that_calls_carry(cluster, schedule):
    torch.manual_seed(0)
    pipeline = Pipeline(remote([NotCast(), NotCast()]), schedule, chunks=2)
    batch, target = torch.randn(4, 8), torch.randn(4, 8)

    def gradients(carries):
        with autograd.context() as context_id:
            with torch.autocast("cpu", torch.bfloat16), rpc.carry_modes(carries):
                pipeline.step(context_id, batch, target, mse)
            return [
                gradient
                for each in pipeline._team.references
                for gradient in rpc.rpc_sync(each.owner(), gradients_of, (each, context_id))
            ]

    for carried, expected in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(carried, expected)


def test_a_batch_of_few_rows_is_evaluated_in_fewer_micro_batches(cluster):
    pipeline = Pipeline(remote(layers(3, 3, 3, 3)), chunks=6)
    assert pipeline(batch_of(1, 3)[0]).shape == (1, 3)
    assert pipeline(batch_of(0, 3)[0]).shape == (0, 3)


def test_modes_of_the_modules_are_set_on_their_workers(cluster):
    pipeline = Pipeline([*remote([nn.Dropout()]), nn.Dropout()], chunks=2)
    x = torch.ones(4, 8)
    assert torch.equal(pipeline.eval()(x), x)
    assert not torch.equal(pipeline.train()(x), x)


def test_shared_parameters_are_listed_once(cluster):
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    pipeline = Pipeline([first, second], chunks=2)
    values = [each.local_value() for each in pipeline.remote_parameters()]
    assert [id(each) for each in values] == [id(first.weight), id(first.bias), id(second.bias)]


def test_picture_shows_plan_and_measurement(cluster, tmp_path):
    pipeline = Pipeline(remote(layers(3, 3, 3)), chunks=4)
    planned = pipeline.picture()
    assert "measured" not in planned
    with autograd.context() as context_id:
        pipeline.step(context_id, *batch_of(8, 3, 3), mse)
    drawn = pipeline.picture(tmp_path / "pipeline.svg")
    assert "measured: bubble" in drawn
    assert ElementTree.parse(tmp_path / "pipeline.svg").getroot().tag.endswith("svg")
    record = pipeline.last_step
    assert record is not None
    assert 0 <= record.bubble < 1
    assert record.most_live == {0: 2, 1: 1}


# ---------------------------------------------------------------- bad input


def test_shapes_that_do_not_fit_are_told_with_the_stage_and_both_shapes(cluster):
    pipeline = Pipeline(remote([nn.Linear(3, 4), nn.Linear(5, 2)]), chunks=2)
    with autograd.context() as context_id, pytest.raises(RuntimeError) as caught:
        pipeline.step(context_id, torch.ones(4, 3), torch.ones(4, 2), mse)
    told = str(caught.value)
    assert "stage 1 of 2 (numbered from 0), on worker 'b', in the forward pass" in told
    assert "given float32[2, 4]" in told
    assert "2x4 and 5x2" in told


class Undecodable(nn.Module):
    def forward(self, x):
        bytes([255]).decode()
        return x


def test_an_error_that_has_more_than_its_text_arrives_whole_and_is_told_where(cluster):
    pipeline = Pipeline(remote([nn.Linear(3, 3), Undecodable()]), chunks=2)
    with autograd.context() as context_id, pytest.raises(UnicodeDecodeError) as caught:
        pipeline.step(context_id, torch.ones(4, 3), loss_fn=torch.sum)
    assert (caught.value.encoding, caught.value.start) == ("utf-8", 0)
    assert "in stage 1 of 2 (numbered from 0), on worker 'b', in the forward" in "".join(
        caught.value.__notes__
    )


class Fails(nn.Module):
    """Raises in one of its passes."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x):
        if self.way == "forward":
            raise LookupError("nothing there")

        def fail(gradient: torch.Tensor) -> None:
            raise ArithmeticError("no gradient today")

        x = x * 1
        if self.way == "backward" and x.requires_grad:
            x.register_hook(fail)
        return x


@pytest.mark.parametrize(
    ("way", "error"), [("forward", LookupError), ("backward", ArithmeticError)]
)
@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_what_a_stage_raises_is_raised_as_itself_with_its_place(cluster, way, error, schedule):
    modules = [nn.Linear(3, 3), Fails(way), nn.Linear(3, 3)]
    pipeline = Pipeline(remote(modules), schedule, chunks=3)
    with autograd.context() as context_id, pytest.raises(error, match=f"stage 1 of 3.*{way} pass"):
        pipeline.step(context_id, torch.ones(6, 3), torch.ones(6, 3), mse)
    whole = Pipeline(remote([nn.Linear(3, 3)]), chunks=2)
    assert whole(torch.ones(2, 3)).shape == (2, 3)


def test_errors_of_use_say_what_to_do(cluster):
    modules = remote(layers(3, 3, 3))
    with pytest.raises(ValueError, match="1 micro-batches are fewer than the 2 stages"):
        Pipeline(modules, chunks=1)
    with pytest.raises(TypeError, match="chunks is a number"):
        Pipeline(modules, chunks=2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="stage 1 is a function"):
        Pipeline([modules[0], mse], chunks=2)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="stage 0, on worker 'a', is a int and no module"):
        Pipeline([rpc.remote("a", int)], chunks=2)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="at least one stage"):
        Pipeline([])
    with pytest.raises(ValueError, match="recompute names stage 2"):
        Pipeline(modules, recompute=[2])
    pipeline = Pipeline(modules, chunks=2)
    x, y = batch_of(4, 3, 3)
    with autograd.context() as context_id:
        with pytest.raises(ValueError, match="a batch of 1 rows cannot be cut into 2"):
            pipeline.step(context_id, x[:1], y[:1], mse)
        with pytest.raises(ValueError, match="batch has 4 rows, but target has 3"):
            pipeline.step(context_id, x, y[:3], mse)
        with pytest.raises(TypeError, match="has a history or wants a gradient"):
            pipeline.step(context_id, x.requires_grad_(), y, mse)
        with pytest.raises(ValueError, match="without a loss_fn"):
            pipeline.step(context_id, y, y)
        with pytest.raises(ValueError, match="loss_fn has parameters of its own"):
            pipeline.step(context_id, y, y, nn.Linear(3, 1))
        with pytest.raises(ValueError, match="stages 0 to 1, not 5"):
            pipeline.step(context_id, y, y, mse, stage_kwargs={5: {"a": 1}})
    with pytest.raises(RuntimeError, match="Could not find autograd context"):
        pipeline.step(context_id, y, y, mse)


def test_a_pipeline_needs_a_worker():
    with pytest.raises(NotInitializedError):
        Pipeline([nn.Linear(2, 2)])


def test_a_job_with_a_registry_refuses_it():
    options = AgentOptions(registry=DECLARED)
    refusal = pytest.raises(SerializationError, match="in a job with a registry")
    with LocalCluster(1, options=options) as cluster, cluster[0].active(), refusal:
        Pipeline([nn.Linear(2, 2)])


# ---------------------------------------------------------------- faults


class Waits(nn.Module):
    """Stands still in its forward pass until the test lets it go."""

    begun = threading.Event()
    go_on = threading.Event()

    def forward(self, x):
        self.begun.set()
        self.go_on.wait()
        return x


def step_in_background(cluster: LocalCluster, pipeline: Pipeline) -> tuple[threading.Thread, list]:
    raised: list[Any] = []

    def run() -> None:
        with cluster["driver"].active(), autograd.context() as context_id:
            try:
                pipeline.step(context_id, torch.ones(6, 3), torch.ones(6, 3), mse)
            except Exception as error:  # noqa: BLE001 - looked at below
                raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def test_a_stage_that_dies_is_named_and_the_others_go_on_serving(cluster):
    Waits.begun.clear()
    Waits.go_on.clear()
    modules = remote([nn.Linear(3, 3), Waits(), nn.Linear(3, 3)])
    pipeline = Pipeline(modules, chunks=3)
    thread, raised = step_in_background(cluster, pipeline)
    Waits.begun.wait()
    cluster.kill("b")
    thread.join(10)
    Waits.go_on.set()
    (error,) = raised
    assert isinstance(error, PeerDiedError)
    assert error.worker == "b"
    assert "it had stage 1 of the pipeline" in str(error)
    rest = Pipeline([modules[0], modules[2]], chunks=2)
    assert rest(torch.ones(4, 3)).shape == (4, 3)
    while any(len(Inboxes.of(cluster[name])) for name in ("driver", "a", "c")):
        pass


@pytest.mark.parametrize("victim", ["a", "b", "c"])
@pytest.mark.parametrize(("kind", "nth"), [(Call, 2), (HandOver, 1), (HandOver, 3)])
def test_a_worker_that_dies_on_the_way_fails_the_step(victim, kind, nth):
    faults = Faults().kill(victim, after=kind, to=victim, nth=nth)
    with LocalCluster(NAMES, faults=faults) as cluster, cluster["driver"].active():
        pipeline = Pipeline(remote([nn.Linear(3, 3) for _ in range(3)]), chunks=3)
        with autograd.context() as context_id, pytest.raises(PeerDiedError) as caught:
            pipeline.step(context_id, torch.ones(6, 3), torch.ones(6, 3), mse)
        assert caught.value.worker == victim
        assert "of the pipeline" in str(caught.value)
        for name in {"a", "b", "c"} - {victim}:
            assert rpc.rpc_sync(name, int, ("3",)) == 3


@pytest.mark.parametrize(("width", "is_answered"), [(60_000, False), (70_000, True)])
def test_only_what_is_larger_than_a_megabyte_is_answered(cluster, monkeypatch, width, is_answered):
    made: list[Any] = []
    make = lambda *args: made.append(args) or _Receipt(*args)  # noqa: E731
    monkeypatch.setattr("lockstitch.nn.pipelining.running._Receipt", make)
    modules = layers(1, width, 1)
    pipeline = Pipeline(remote(modules), chunks=2)
    x, y = batch_of(4, 1, 1)  # a hidden state of a micro-batch has 16 bytes for each feature
    with autograd.context() as context_id:
        loss = pipeline.step(context_id, x, y, mse)
    torch.testing.assert_close(loss, mse(nn.Sequential(*modules)(x), y).detach())
    assert len(made) == (4 if is_answered else 0)


class Teacher(nn.Module):
    """Runs a pipeline of its own, a stage of which is on its own worker."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.layer = module

    def forward(self, x):
        here = rpc.get_worker_info().name
        inner = Pipeline([rpc.remote(here, nn.Tanh), rpc.remote("driver", nn.Dropout)], chunks=2)
        first, outer, second = torch.rand(1), inner(x), torch.rand(1)
        return self.layer(x) * outer.detach() + first + second


def losses_from_one_seed(stage):
    """What a step gives with that stage on "a", twice."""
    (module,) = layers(3, 3)
    x, y = batch_of(4, 3, 3)
    for _ in range(2):
        torch.manual_seed(0)
        pipeline = Pipeline([rpc.remote("a", stage, (module,))], chunks=2)
        with autograd.context() as context_id:
            yield pipeline.step(context_id, x, y, mse)


def test_a_stage_may_run_a_pipeline_of_its_own(cluster):
    first, again = losses_from_one_seed(Teacher)
    assert first == again


class AsksAnother(nn.Module):
    """Calls a worker that runs a pipeline, a stage of which is on the module's own worker."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.layer = module

    def forward(self, x):
        first, outer, second = torch.rand(1), rpc.rpc_sync("b", evaluate, (x,)), torch.rand(1)
        return self.layer(x) * outer + first + second


def evaluate(x):
    torch.manual_seed(1)
    with torch.no_grad():
        return Pipeline([rpc.remote("a", nn.Dropout), rpc.remote("c", nn.Tanh)], chunks=2)(x)


@pytest.mark.timeout(60)
def test_a_stage_may_call_a_worker_that_runs_a_pipeline_here(cluster):
    first, again = losses_from_one_seed(AsksAnother)
    assert first == again
