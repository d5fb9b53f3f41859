"""The faulty backend is the default one with mishaps on its way."""

from __future__ import annotations

import pytest

from lockstitch import rpc
from lockstitch.errors import RpcTimeoutError
from lockstitch.rpc._testing import FaultyTensorPipeAgent, FaultyTensorPipeRpcBackendOptions
from lockstitch.rpc.backend_registry import BackendType, construct_rpc_backend_options
from tests.unit.rpc.programs import add


@pytest.fixture
def init_method(tmp_path):
    yield f"file://{tmp_path}/store"
    if rpc._is_current_rpc_agent_set():
        rpc.shutdown(graceful=False)


def faulty(init_method: str, **options: object) -> rpc.RpcBackendOptions:
    return construct_rpc_backend_options(
        BackendType["FAULTY_TENSORPIPE"],
        init_method=init_method,
        num_worker_threads=8,
        num_fail_sends=3,
        **{"messages_to_fail": [], "messages_to_delay": {}, **options},
    )


def test_options_are_those_of_the_incumbent(init_method) -> None:
    options = faulty(init_method, messages_to_fail=["PYTHON_CALL"])
    assert isinstance(options, FaultyTensorPipeRpcBackendOptions)
    assert (options.num_worker_threads, options.num_fail_sends) == (8, 3)
    assert (options.messages_to_fail, options.messages_to_delay) == (["PYTHON_CALL"], {})
    assert options.rpc_timeout == 60.0


def test_messages_get_lost_and_the_worker_goes_on(init_method) -> None:
    options = faulty(init_method, messages_to_fail=["PYTHON_REMOTE_CALL"])
    rpc.init_rpc("w", BackendType["FAULTY_TENSORPIPE"], 0, 1, options)
    assert isinstance(rpc._get_current_rpc_agent(), rpc.TensorPipeAgent)
    lost = rpc.remote("w", add, (1, 2))
    with pytest.raises(RpcTimeoutError, match="was lost on purpose"):
        lost._get_future().wait()
    assert rpc.rpc_sync("w", add, (1, 2)) == 3
    rpc.shutdown()


def test_messages_may_come_late_without_harm_to_those_behind(init_method) -> None:
    options = faulty(init_method, messages_to_delay={"PYTHON_REMOTE_CALL": 0.1})
    rpc.init_rpc("w", BackendType["FAULTY_TENSORPIPE"], 0, 1, options)
    late = rpc.remote("w", add, (1, 2))
    assert rpc.rpc_sync("w", add, (3, 4)) == 7
    assert late.to_here() == 3
    rpc.shutdown()


def test_it_takes_its_own_options_only(init_method) -> None:
    with pytest.raises(TypeError, match="must be a `FaultyTensorPipeRpcBackendOptions`"):
        rpc.init_rpc(
            "w",
            BackendType["FAULTY_TENSORPIPE"],
            0,
            1,
            rpc.TensorPipeRpcBackendOptions(init_method=init_method),
        )


def test_its_agent_is_one_of_the_default_backends() -> None:
    assert issubclass(FaultyTensorPipeAgent, rpc.TensorPipeAgent)
