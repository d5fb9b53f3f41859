"""Device maps between two workers, as far as one CUDA device can show them."""

from __future__ import annotations

import threading

import pytest
import torch

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.errors import RpcError
from lockstitch.runtime.agent import AgentOptions
from lockstitch.testing.cluster import LocalCluster

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # What torch says where the first thing that a thread does on a device is a product of matrices.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]

HOST, FIRST = torch.device("cpu"), torch.device("cuda:0")
MAPS = [{HOST: FIRST}, {FIRST: HOST}, {FIRST: FIRST}, {FIRST: HOST, HOST: FIRST}]


def cluster(map_: dict[torch.device, torch.device], *of: str) -> LocalCluster:
    return LocalCluster(
        2, options=AgentOptions(device_maps=dict.fromkeys(of or ("worker1",), map_))
    )


def echo_and_device(value: torch.Tensor) -> tuple[torch.Tensor, str]:
    return value, str(value.device)


def make_on(device: str) -> torch.Tensor:
    return torch.ones(30_000, device=device)


@pytest.mark.parametrize("size", [3, 30_000])
@pytest.mark.parametrize("map_", MAPS, ids=str)
def test_a_tensor_goes_by_the_map_and_comes_back_by_its_inverse(map_, size) -> None:
    with cluster(map_) as workers, workers["worker0"].active():
        for source, target in map_.items():
            tensor = torch.randn(size, device=source)
            echoed, device = rpc.rpc_sync("worker1", echo_and_device, (tensor,))
            assert device == str(target)
            assert echoed.device == source
            assert torch.equal(echoed, tensor)


def test_a_map_for_oneself_holds_for_calls_to_oneself() -> None:
    with cluster({HOST: FIRST}, "worker0") as workers, workers["worker0"].active():
        echoed, device = rpc.rpc_sync("worker0", echo_and_device, (torch.ones(3),))
        assert device == "cuda:0"
        assert echoed.is_cpu


def test_parameters_and_strides_survive_the_change_of_device() -> None:
    with cluster({FIRST: HOST}) as workers, workers["worker0"].active():
        parameter = torch.nn.Parameter(torch.randn(40, 50, device=FIRST).t())
        echoed, device = rpc.rpc_sync("worker1", echo_and_device, (parameter,))
        assert device == "cpu"
        assert type(echoed) is torch.nn.Parameter
        assert echoed.stride() == parameter.stride()
        assert torch.equal(echoed, parameter)


@pytest.mark.parametrize("size", [3, 30_000])
def test_a_device_that_the_map_does_not_name_is_an_error_on_both_ways(size) -> None:
    with cluster({HOST: HOST}) as workers, workers["worker0"].active():
        wanted = "`set_device_map` on `TensorPipeRpcBackendOptions`.*Request device mapping is not"
        for call in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
            with pytest.raises(RuntimeError, match=wanted):
                call("worker1", echo_and_device, (torch.ones(size, device=FIRST),))
        with pytest.raises(RuntimeError, match="Response device mapping is not available"):
            rpc.rpc_sync("worker1", make_on, ("cuda:0",))
        with pytest.raises(RuntimeError, match="Response device mapping is not available"):
            rpc.rpc_async("worker1", make_on, ("cuda:0",)).wait()
        with pytest.raises(RuntimeError, match="Response device mapping is not available"):
            rpc.remote("worker1", make_on, ("cuda:0",)).to_here()
        assert rpc.rpc_sync("worker1", torch.add, (torch.ones(2), 1)).sum() == 4


def test_a_device_that_the_callee_has_not_is_an_error() -> None:
    missing = torch.device("cuda", torch.cuda.device_count())
    with (
        cluster({HOST: missing}) as workers,
        workers["worker0"].active(),
        pytest.raises(RpcError, match="this worker has only"),
    ):
        rpc.rpc_sync("worker1", echo_and_device, (torch.ones(3),))


def test_the_value_of_a_reference_comes_by_the_map_of_whoever_fetches_it() -> None:
    with cluster({HOST: FIRST}) as workers, workers["worker0"].active():
        reference = rpc.remote("worker1", make_on, ("cuda:0",))
        assert reference.to_here().is_cpu
        assert reference.rpc_sync().sum().item() == 30_000


@pytest.mark.parametrize("map_", MAPS, ids=str)
def test_gradients_go_back_to_the_device_of_what_was_sent(map_) -> None:
    source = next(iter(map_))
    torch.manual_seed(0)
    tensors = [
        torch.randn(9, 9, device=source, dtype=torch.float64, requires_grad=True) for _ in range(2)
    ]
    with cluster(map_) as workers, workers["worker0"].active(), dist_autograd.context() as context:
        hidden = rpc.rpc_sync("worker1", torch.matmul, (tensors[0] * 2, tensors[1]))
        again = rpc.rpc_sync("worker1", torch.matmul, (hidden.tanh(), tensors[1]))
        dist_autograd.backward(context, [again.sum()])
        gradients = dist_autograd.get_gradients(context)
    hidden = (tensors[0] * 2) @ tensors[1]
    (hidden.tanh() @ tensors[1]).sum().backward()
    for tensor in tensors:
        assert gradients[tensor].device == source
        torch.testing.assert_close(gradients[tensor], tensor.grad, rtol=0, atol=1e-12)


def test_what_the_current_stream_has_not_computed_yet_is_waited_for() -> None:
    with cluster({FIRST: FIRST}) as workers, workers["worker0"].active():
        side = torch.cuda.Stream(FIRST)
        with torch.cuda.stream(side):
            for size in (1000, 1_000_000):
                total = torch.zeros(size, device=FIRST)
                torch.cuda._sleep(100_000_000)
                total += 1
                echoed, _ = rpc.rpc_sync("worker1", echo_and_device, (total,))
                assert echoed.sum().item() == size
                echoed, _ = rpc.rpc_async("worker1", echo_and_device, (total,)).wait()
                assert echoed.sum().item() == size


def slow_on_a_stream_of_its_own(tensor: torch.Tensor) -> torch.Tensor:
    current, own = torch.cuda.current_stream(tensor.device), torch.cuda.Stream(tensor.device)
    own.wait_stream(current)
    tensor.record_stream(own)
    with torch.cuda.stream(own):
        torch.cuda._sleep(100_000_000)
        result = tensor + tensor
    current.wait_stream(own)
    result.record_stream(current)
    return result


def test_answers_hold_what_the_function_has_its_stream_compute() -> None:
    with cluster({FIRST: FIRST}) as workers, workers["worker0"].active():
        tensors = [torch.full((50, 50), float(number), device=FIRST) for number in range(10)]
        futures = [
            rpc.rpc_async("worker1", slow_on_a_stream_of_its_own, (tensor,)) for tensor in tensors
        ]
        for number, future in enumerate(futures):
            assert torch.equal(future.wait(), torch.full((50, 50), 2.0 * number, device=FIRST))


@rpc.functions.async_execution
def slow_on_another_thread(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[tensor.device])

    def compute() -> None:
        stream = torch.cuda.Stream(tensor.device)
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
            future.set_result(tensor + tensor)

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    return future


def test_a_future_that_is_completed_on_a_stream_of_its_own() -> None:
    with cluster({FIRST: FIRST}) as workers, workers["worker0"].active():
        for number in range(5):
            tensor = torch.full((500, 50), float(number), device=FIRST)
            doubled = rpc.rpc_sync("worker1", slow_on_another_thread, (tensor,))
            assert torch.equal(doubled, tensor * 2)


def fetch(reference: rpc.RRef[torch.Tensor]) -> torch.Tensor:
    return reference.to_here()


def test_the_value_of_a_reference_that_was_made_on_a_stream_of_its_own() -> None:
    with cluster({FIRST: FIRST}, "worker0", "worker1") as workers, workers["worker0"].active():
        for number in range(5):
            with torch.cuda.stream(torch.cuda.Stream(FIRST)):
                tensor = torch.zeros((500, 50), device=FIRST)
                torch.cuda._sleep(100_000_000)
                tensor += number
                reference = rpc.RRef(tensor)
            there = rpc.rpc_sync("worker1", fetch, (reference,))
            assert there.eq(number).all()
