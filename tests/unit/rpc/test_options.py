"""Options are checked where they are given, in the incumbent's words."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch.rpc.backend_registry import BackendType, infer_backend
from lockstitch.rpc.options import (
    ProcessGroupRpcBackendOptions,
    RpcBackendOptions,
    TensorPipeRpcBackendOptions,
)
from lockstitch.trust import Secret

if TYPE_CHECKING:
    from pathlib import Path


def test_defaults() -> None:
    options = TensorPipeRpcBackendOptions()
    assert options.rpc_timeout == 60.0
    assert options.init_method == "env://"
    assert options.num_worker_threads == 16
    assert options.device_maps == {}
    assert options.devices == []


def test_attributes_may_be_changed() -> None:
    options = TensorPipeRpcBackendOptions(init_method="file:///a")
    options.init_method += "b"
    options.rpc_timeout = 3
    assert (options.init_method, options.rpc_timeout) == ("file:///ab", 3)


@pytest.mark.parametrize(
    "wrong",
    [{"rpc_timeout": timedelta()}, {"init_method": 3}, {"num_worker_threads": "many"}],
)
def test_wrong_types_are_refused(wrong) -> None:
    with pytest.raises(TypeError, match=r"incompatible constructor arguments: .* must be an? "):
        TensorPipeRpcBackendOptions(**wrong)


@pytest.mark.parametrize("maps", [3, {"worker1": 3}, [("worker1", 0)]])
def test_a_device_map_that_is_none_says_what_one_is(maps) -> None:
    with pytest.raises(TypeError, match="device map {device here: device there}, not "):
        TensorPipeRpcBackendOptions(device_maps=maps)
    with pytest.raises(TypeError, match="device map {device here: device there}, not "):
        TensorPipeRpcBackendOptions().set_device_map("worker1", 3)  # type: ignore[arg-type]


def test_what_the_incumbent_chooses_by_hand_is_accepted_and_ignored() -> None:
    TensorPipeRpcBackendOptions(_transports=["uv"], _channels=["basic"])


@pytest.mark.parametrize("timeout", [90, timedelta(minutes=1, seconds=30)])
def test_options_of_old_programs_lead_to_the_default_backend(timeout) -> None:
    options = ProcessGroupRpcBackendOptions(num_send_recv_threads=8, rpc_timeout=timeout)
    assert (options.num_worker_threads, options.rpc_timeout) == (8, 90)
    options.num_send_recv_threads = 9
    assert options.num_worker_threads == options.num_send_recv_threads == 9
    assert infer_backend(options) is BackendType.PROCESS_GROUP is BackendType.TENSORPIPE


class OwnOptions(RpcBackendOptions):
    def __init__(self, init_method: str) -> None:
        RpcBackendOptions.__init__(self)
        self.init_method = init_method


def test_programs_may_derive_their_own_options() -> None:
    assert OwnOptions("file:///a").rpc_timeout == 60.0


@pytest.mark.parametrize(
    "wrong", [{"num_worker_threads": 0}, {"rpc_timeout": -1.0}, {"rpc_timeout": float("nan")}]
)
def test_there_is_a_thread_and_no_time_below_zero(wrong) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TensorPipeRpcBackendOptions(**wrong)


def test_device_maps_are_read_as_devices_and_grow() -> None:
    options = TensorPipeRpcBackendOptions(device_maps={"w1": {0: "cuda:1"}})
    options.set_device_map("w1", {"cuda:1": 0})
    options.set_device_map("w2", {torch.device("cpu"): "cpu"})
    assert options.device_maps == {
        "w1": {
            torch.device("cuda:0"): torch.device("cuda:1"),
            torch.device("cuda:1"): torch.device("cuda:0"),
        },
        "w2": {torch.device("cpu"): torch.device("cpu")},
    }


@pytest.mark.parametrize("second", [{0: 2}, {2: 3, 4: 3}])
def test_a_device_map_stays_one_to_one(second) -> None:
    options = TensorPipeRpcBackendOptions(device_maps={"w1": {0: 1}})
    with pytest.raises(ValueError, match="only supports 1-to-1 mapping"):
        options.set_device_map("w1", second)
    assert options.device_maps["w1"] == {torch.device("cuda:0"): torch.device("cuda:1")}


def test_devices_are_cuda_devices() -> None:
    options = TensorPipeRpcBackendOptions(devices=[0, "cuda:1"])
    assert options.devices == [torch.device("cuda:0"), torch.device("cuda:1")]
    with pytest.raises(ValueError, match="expect a list of CUDA devices"):
        options.set_devices(["cpu"])


def test_roads_are_all_unless_some_are_named(monkeypatch) -> None:
    assert TensorPipeRpcBackendOptions().transports == ("segments", "unix", "tcp")
    assert TensorPipeRpcBackendOptions(transports=["tcp"]).transports == ("tcp",)
    monkeypatch.setenv("LOCKSTITCH_TRANSPORTS", "unix, tcp,")
    assert TensorPipeRpcBackendOptions().transports == ("unix", "tcp")
    assert TensorPipeRpcBackendOptions(transports=["unix"]).transports == ("unix",)
    with pytest.raises(ValueError, match=r"in a list, not in text: \['unix', 'tcp'\]"):
        TensorPipeRpcBackendOptions(transports="unix,tcp")
    for wrong in (["smoke signals"], "unix"):
        with pytest.raises(ValueError, match="transports are some of"):
            TensorPipeRpcBackendOptions(transports=wrong)


@pytest.mark.parametrize("name", ["segment_pool_bytes", "buffer_pool_bytes"])
def test_amounts_of_memory_are_numbers_of_bytes(monkeypatch, name) -> None:
    variable = f"LOCKSTITCH_{name.upper()}"
    assert 0 < getattr(TensorPipeRpcBackendOptions(), name) <= 1 << 30
    assert getattr(TensorPipeRpcBackendOptions(**{name: 0}), name) == 0
    monkeypatch.setenv(variable, "12345")
    assert getattr(TensorPipeRpcBackendOptions(), name) == 12345
    monkeypatch.setenv(variable, "1 GiB")
    with pytest.raises(ValueError, match=f"{name}.*{variable}.*a number of bytes"):
        TensorPipeRpcBackendOptions()
    with pytest.raises(ValueError, match="not -1"):
        TensorPipeRpcBackendOptions(**{name: -1})


def test_secret_comes_from_the_options_or_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "5e" * 32
    monkeypatch.delenv("LOCKSTITCH_SECRET", raising=False)
    monkeypatch.delenv("LOCKSTITCH_SECRET_FILE", raising=False)
    assert TensorPipeRpcBackendOptions().secret is None
    monkeypatch.setenv("LOCKSTITCH_SECRET", text)
    assert TensorPipeRpcBackendOptions().secret == Secret.from_text(text)
    file = tmp_path / "secret"
    other = Secret.make()
    other.write(file)
    options = TensorPipeRpcBackendOptions(secret_file=file)
    assert options.secret == other
    assert other.text() not in repr(options) + repr(vars(options))
    with pytest.raises(ValueError, match="given twice"):
        TensorPipeRpcBackendOptions(secret=text, secret_file=file)


def test_the_switch_interval_is_a_number_of_seconds(monkeypatch) -> None:
    assert TensorPipeRpcBackendOptions().switch_interval is None
    assert TensorPipeRpcBackendOptions(switch_interval=0.001).switch_interval == 0.001
    monkeypatch.setenv("LOCKSTITCH_SWITCH_INTERVAL", "0.0005")
    assert TensorPipeRpcBackendOptions().switch_interval == 0.0005
    for wrong in (0, -1, 2, "often"):
        with pytest.raises(ValueError, match="switch_interval.*seconds"):
            TensorPipeRpcBackendOptions(switch_interval=wrong)
