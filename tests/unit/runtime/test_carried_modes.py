"""Modes travel with calls that are asked to carry them, and with no others."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch import autograd, rpc
from lockstitch.nn import RemoteModule
from lockstitch.runtime.carried_modes import DefaultDtype
from lockstitch.testing.cluster import LocalCluster


@pytest.fixture
def cluster():
    with LocalCluster(3) as cluster, cluster[0].active():
        yield cluster


def modes() -> tuple:
    """In which modes this function runs."""
    product = torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype
    made = torch.ones(1).dtype
    return product, made, torch.is_grad_enabled(), torch.is_inference_mode_enabled()


class Asked(nn.Module):
    def forward(self, *_anything) -> tuple:
        return modes()


@rpc.functions.async_execution
def asked_later() -> torch.futures.Future:
    future: torch.futures.Future = torch.futures.Future()
    future.set_result(modes())
    return future


async def asked_while_awaiting() -> tuple:
    return await rpc.rpc_async("worker2", modes)


async def asked_after_awaiting() -> tuple:
    await rpc.rpc_async("worker2", modes)
    return modes()


def asked_further() -> tuple:
    return rpc.rpc_sync("worker2", modes)


PLAIN = (torch.float32, torch.float32, True, False)


def all_ways() -> list[tuple]:
    """What a function finds, however it is called."""
    module = RemoteModule("worker1/cpu", Asked)
    reference = rpc.remote("worker1", Asked)
    return [
        rpc.rpc_sync("worker1", modes),
        rpc.rpc_sync("worker0", modes),
        rpc.rpc_sync("worker1", lambda: modes()),
        rpc.rpc_async("worker1", modes).wait(),
        rpc.remote("worker1", modes).to_here(),
        rpc.rpc_sync("worker1", asked_later),
        rpc.rpc_sync("worker1", asked_further),
        rpc.rpc_sync("worker1", asked_while_awaiting),
        rpc.rpc_sync("worker1", asked_after_awaiting),
        reference.rpc_sync().forward(),
        reference.rpc_async().forward().wait(),
        reference.remote().forward().to_here(),
        module(),
        module.forward(1),
    ]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (lambda: torch.autocast("cpu"), (torch.bfloat16, torch.float32, True, False)),
        (torch.no_grad, (torch.float32, torch.float32, False, False)),
        (torch.inference_mode, (torch.float32, torch.float32, False, True)),
    ],
    ids=["autocast", "no_grad", "inference_mode"],
)
def test_each_kind_of_call_carries_modes_if_asked_to(cluster, mode, expected) -> None:
    with mode():
        assert set(all_ways()) == {PLAIN}
        with rpc.carry_modes():
            assert set(all_ways()) == {expected}
            with rpc.carry_modes(enabled=False):
                assert rpc.rpc_sync("worker1", modes) == PLAIN
    with rpc.carry_modes():
        assert set(all_ways()) == {PLAIN}
        with mode():
            assert rpc.rpc_sync("worker1", modes) == expected
    assert rpc.rpc_sync("worker1", modes) == PLAIN


def test_builtin_functions_arguments_and_errors_are_those_of_the_call(cluster) -> None:
    with rpc.carry_modes(), torch.autocast("cpu"):
        x = torch.ones(2, 2)
        assert rpc.rpc_sync("worker1", torch.mm, (x, x)).dtype == torch.bfloat16
        assert rpc.rpc_sync("worker1", torch.sum, (x,), {"dim": 0}).shape == (2,)
        with pytest.raises(ValueError, match="invalid literal"):
            rpc.rpc_sync("worker1", int, ("a",))


def test_gradients_flow_through_calls_in_autocast_as_in_one_process(cluster) -> None:
    torch.manual_seed(0)
    plain, x = nn.Linear(8, 8), torch.randn(4, 8)
    module = rpc.rpc_sync("worker1", rpc.RRef, (plain,))
    weight = nn.Parameter(torch.randn(8, 8))
    with autograd.context() as context_id:
        with rpc.carry_modes(), torch.autocast("cpu"):
            loss = module.rpc_sync().forward(x @ weight).square().mean()
        autograd.backward(context_id, [loss])
        ours = autograd.get_gradients(context_id)[weight]
    with torch.autocast("cpu"):
        expected = plain(x @ weight).square().mean()
    expected.backward()
    assert loss.dtype == expected.dtype
    assert torch.equal(ours, weight.grad)


def test_a_result_without_gradients_has_no_history(cluster) -> None:
    module = rpc.remote("worker1", nn.Linear, (2, 2))
    with autograd.context(), rpc.carry_modes(), torch.no_grad():
        assert not module.rpc_sync().forward(torch.ones(1, 2)).requires_grad


@pytest.fixture
def default_dtype():
    yield DefaultDtype()
    torch.set_default_dtype(torch.float32)


def test_the_default_dtype_is_set_while_anybody_runs_with_it(default_dtype) -> None:
    with default_dtype.set_to(torch.float64):
        assert torch.ones(1).dtype == torch.float64
        with default_dtype.set_to(torch.float64):
            pass
        assert torch.get_default_dtype() == torch.float64
        with (
            pytest.raises(RuntimeError, match=r"default dtype torch.float64 is running .* wants t"),
            default_dtype.set_to(torch.float32),
        ):
            pass
    assert torch.get_default_dtype() == torch.float32
    with (
        default_dtype.set_to(torch.float32),
        pytest.raises(RuntimeError, match=r"torch.float32 is running"),
        default_dtype.set_to(torch.float64),
    ):
        pass


def test_the_default_dtype_of_a_caller_is_that_of_its_calls(cluster, default_dtype) -> None:
    torch.set_default_dtype(torch.float64)
    with rpc.carry_modes():
        assert rpc.rpc_sync("worker1", modes)[1] == torch.float64
