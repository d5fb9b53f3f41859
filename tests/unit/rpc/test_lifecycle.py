"""`init_rpc` checks what it is given, in the incumbent's words, and can be called again."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist

from lockstitch import rpc
from lockstitch.rpc import lifecycle
from lockstitch.rpc.backend_registry import BackendType, register_backend
from tests.unit.rpc.programs import add


@pytest.fixture
def options(tmp_path):
    return rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path}/store")


@pytest.fixture
def end():
    yield
    if rpc._is_current_rpc_agent_set():
        rpc.shutdown(graceful=False)


class OwnOptions(rpc.RpcBackendOptions):
    pass


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"backend": "TENSORPIPE"}, "Argument backend must be a member of BackendType"),
        (
            {"rpc_backend_options": {"rpc_timeout": 1}},
            "Argument rpc_backend_options must be an instance of RpcBackendOptions",
        ),
        ({"rpc_backend_options": OwnOptions()}, "Could not infer backend for options"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused(given, words) -> None:
    with pytest.raises(TypeError, match=words):
        rpc.init_rpc("worker0", rank=0, world_size=1, **given)
    assert not rpc._is_current_rpc_agent_set()


@pytest.mark.parametrize("name", [3, None])
def test_a_name_that_is_no_text_is_refused(name, options) -> None:
    with pytest.raises(TypeError, match="the name of a worker must be a text, not "):
        rpc.init_rpc(name, rank=0, world_size=1, rpc_backend_options=options)


def test_the_default_backend_takes_its_own_options_only(options) -> None:
    own = OwnOptions(init_method=options.init_method)
    with pytest.raises(TypeError, match="must be a `TensorPipeRpcBackendOptions`"):
        rpc.init_rpc("w", BackendType.TENSORPIPE, 0, 1, own)


@pytest.mark.usefixtures("end")
def test_a_process_has_one_worker_at_a_time(options) -> None:
    rpc.init_rpc("worker0", rank=0, world_size=1, rpc_backend_options=options)
    with pytest.raises(RuntimeError, match="RPC is already initialized"):
        rpc.init_rpc("worker0", rank=0, world_size=1, rpc_backend_options=options)


@pytest.mark.usefixtures("end")
def test_after_shutdown_it_may_begin_again_on_the_same_store(options) -> None:
    for life in range(3):
        rpc.init_rpc("worker0", rank=0, world_size=1, rpc_backend_options=options)
        assert rpc.get_worker_info().generation == life
        assert rpc.rpc_sync("worker0", add, (1, life)) == 1 + life
        rpc.shutdown()
        with pytest.raises(RuntimeError, match="^RPC has not been initialized"):
            rpc.rpc_sync("worker0", add, (1, 2))


@pytest.mark.usefixtures("end")
def test_a_dynamic_group_needs_no_size(options) -> None:
    rpc.init_rpc("worker0", rank=0, rpc_backend_options=options)
    assert rpc.rpc_sync("worker0", torch.add, (torch.ones(1), 1)) == 2
    rpc.shutdown()


@pytest.mark.parametrize(
    ("init_method", "words"),
    [
        ("file:///store", "rank parameter missing"),
        ("tcp://127.0.0.1:23456", "rank parameter missing"),
        ("env://", "environment variable RANK expected"),
    ],
)
def test_a_rendezvous_without_rank_is_refused_in_torchs_words(
    monkeypatch, init_method, words
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    options = rpc.TensorPipeRpcBackendOptions(init_method=init_method)
    with pytest.raises(ValueError, match=words):
        rpc.init_rpc("worker0", rpc_backend_options=options)


@pytest.mark.usefixtures("end")
def test_a_store_of_the_program_may_be_used(tmp_path, options) -> None:
    store = dist.FileStore(str(tmp_path / "own"), 1)
    rpc._init_rpc_backend(BackendType.TENSORPIPE, store, "worker0", 0, 1, options)
    assert rpc.rpc_sync("worker0", add, (1, 2)) == 3
    with pytest.raises(RuntimeError, match="is already initialized"):
        rpc._init_rpc_backend(BackendType.TENSORPIPE, store, "worker0", 0, 1, options)
    rpc.shutdown()


def test_a_store_must_be_one() -> None:
    with pytest.raises(RuntimeError, match="must be of type .*Store"):
        rpc._init_rpc_backend(store="store", name="worker0", rank=0, world_size=1)


@pytest.mark.parametrize("name", ["a b", "", "a" * 128])
def test_names_are_checked(options, name) -> None:
    with pytest.raises(RuntimeError, match="Worker name must"):
        rpc.init_rpc(name, rank=0, world_size=1, rpc_backend_options=options)
    with pytest.raises(RuntimeError, match="Worker name must"):
        rpc.WorkerInfo(name, 0)


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr(BackendType, "__members__", dict(BackendType.__members__))
    given: dict[str, object] = {}

    def start(**arguments: object) -> str:
        given.update(arguments)
        return "agent"

    member = register_backend("STUB", lambda timeout, init: OwnOptions(timeout, init), start)
    yield member, given
    del BackendType.STUB


def test_a_programs_own_backend_is_started_by_its_own_starter(monkeypatch, options, stub) -> None:
    started = []
    monkeypatch.setattr(rpc.api, "_set_and_start_rpc_agent", started.append)
    backend, given = stub
    rpc.init_rpc("worker1", backend, 0, 4, options)
    assert started == ["agent"]
    assert (given["name"], given["rank"], given["world_size"]) == ("worker1", 0, 4)
    assert given["rpc_backend_options"] is options


def test_the_rank_may_come_from_the_environment(monkeypatch, stub) -> None:
    monkeypatch.setattr(rpc.api, "_set_and_start_rpc_agent", lambda _agent: None)
    monkeypatch.setattr(lifecycle, "open_store", lambda *_: dist.HashStore())
    monkeypatch.setenv("RANK", "3")
    backend, given = stub
    rpc.init_rpc("worker3", backend, rpc_backend_options=OwnOptions())
    assert given["rank"] == 3
    rpc.init_rpc("worker3", backend, 2, rpc_backend_options=OwnOptions())
    assert given["rank"] == 2


@pytest.mark.usefixtures("stub")
def test_a_backend_that_was_not_asked_for_is_warned_of(monkeypatch, options) -> None:
    monkeypatch.setattr(rpc.api, "_set_and_start_rpc_agent", lambda _agent: None)
    own = OwnOptions(init_method=options.init_method)
    with pytest.warns(UserWarning, match="no explicit backend"):
        rpc.init_rpc("worker1", rank=0, world_size=1, rpc_backend_options=own)


def test_a_worker_may_shorten_the_turns_of_the_interpreter(tmp_path) -> None:
    before = sys.getswitchinterval()
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{tmp_path}/meeting", switch_interval=before / 10
    )
    rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
    try:
        assert sys.getswitchinterval() == pytest.approx(before / 10)
    finally:
        rpc.shutdown()
    assert sys.getswitchinterval() == pytest.approx(before)


def test_a_rank_that_is_no_number_is_refused_by_name(options) -> None:
    with pytest.raises(TypeError, match="rank must be an integer, not '0': .* needs int"):
        rpc.init_rpc("a", rank="0", world_size=1, rpc_backend_options=options)  # type: ignore[arg-type]
    assert not rpc._is_current_rpc_agent_set()


def test_a_rank_beyond_the_world_is_refused_before_anybody_is_looked_for(tmp_path) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path}/nowhere/meeting")
    with pytest.raises(ValueError, match="rank 2 does not lie within world_size 2"):
        rpc.init_rpc("w", rank=2, world_size=2, rpc_backend_options=options)


def test_who_does_not_come_is_told_and_waited_for_no_longer_than_said(
    tmp_path, monkeypatch, capfd
) -> None:
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{tmp_path}/meeting", join_timeout=0.2
    )
    with pytest.raises(RuntimeError, match=r"waited 0.2 s for 2 ranks to join, but ranks \[1\]"):
        rpc.init_rpc("w", rank=0, world_size=2, rpc_backend_options=options)
    (tmp_path / "29500").touch()
    for name, value in (
        ("LOCKSTITCH_STORE", str(tmp_path / "29500")),
        ("MASTER_PORT", "29500"),
        ("WORLD_SIZE", "1"),
    ):
        monkeypatch.setenv(name, value)
    options.init_method = "env://"
    with pytest.raises(RuntimeError, match=r"ranks \[1, 2\] did not come"):
        rpc.init_rpc("w", rank=0, world_size=3, rpc_backend_options=options)
    assert "world_size=3, but WORLD_SIZE=1" in capfd.readouterr().err


@pytest.mark.usefixtures("end")
def test_rank_and_name_come_from_whatever_launcher_there_is(options, monkeypatch) -> None:
    for name in ("RANK", "HOROVOD_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    step = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "localhost"}
    for name, value in {**step, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}.items():
        monkeypatch.setenv(name, value)
    rpc.init_rpc("name-{rank}", world_size=1)
    assert rpc.get_worker_info().name == "name-0"
    rpc.shutdown()
    with pytest.raises(ValueError, match="wants a rank, but none is given"):
        rpc.init_rpc("name-{rank}", rpc_backend_options=options)
