from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
import warnings

import pytest
import torch
import torch.distributed.autograd
import torch.distributed.nn
import torch.distributed.rpc

import lockstitch
import lockstitch.autograd
import lockstitch.hvd
import lockstitch.nn
import lockstitch.optim
import lockstitch.rpc
from lockstitch.replacement import active

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it compiles TorchScript
    importlib.import_module("torch.distributed.optim")

# What the incumbents are, before anything was replaced.
RPC = torch.distributed.rpc
REFERENCE = torch._C._distributed_rpc.PyRRef
OPTIMIZER = torch.distributed.optim.DistributedOptimizer
REMOTE_MODULE = torch.distributed.nn.RemoteModule
DATA_PARALLEL = torch.nn.DataParallel

NOTHING_BUT_TORCH = pytest.mark.filterwarnings("ignore:Lockstitch replaces:RuntimeWarning")
"""The tests beside these have imported names of the incumbents, and are told so."""


def what_is_there() -> list[object]:
    return [
        torch.distributed.rpc,
        torch.distributed.autograd,
        importlib.import_module("torch.distributed.rpc.api"),
        torch._C._distributed_rpc.PyRRef,
        torch._C._distributed_rpc.get_rpc_timeout,
        torch._C._distributed_autograd.backward,
        torch.distributed.optim.DistributedOptimizer,
        torch.distributed.nn.RemoteModule,
        torch.nn.parallel.distributed.RRef,
        torch.nn.DataParallel,
        torch.nn.parallel.DataParallel,
        torch.nn.parallel.data_parallel,
        torch.nn.parallel.scatter,
        sys.modules["torch.nn.parallel.scatter_gather"].gather,
        dict(os.environ),
        list(sys.meta_path),
        sorted(sys.modules),
    ]


@NOTHING_BUT_TORCH
def test_modules_of_torch_are_ours_until_the_end_of_the_block() -> None:
    with lockstitch.replace("torch-rpc"):
        from torch.distributed import rpc  # noqa: PLC0415 - imported where ours are there
        from torch.distributed.nn.api.remote_module import RemoteModule  # noqa: PLC0415
        from torch.distributed.rpc.api import rpc_sync  # noqa: PLC0415

        assert rpc is torch.distributed.rpc is lockstitch.rpc
        assert rpc_sync is lockstitch.rpc.rpc_sync
        assert torch.distributed.autograd is lockstitch.autograd
        assert torch.distributed.optim.DistributedOptimizer is lockstitch.optim.DistributedOptimizer
        assert torch.distributed.nn.RemoteModule is RemoteModule is lockstitch.nn.RemoteModule
        assert torch._C._distributed_rpc.PyRRef is lockstitch.rpc.PyRRef
        assert torch.nn.DataParallel is DATA_PARALLEL
    assert torch.distributed.rpc is RPC
    assert torch._C._distributed_rpc.PyRRef is REFERENCE
    assert torch.distributed.optim.DistributedOptimizer is OPTIMIZER
    assert torch.distributed.nn.RemoteModule is REMOTE_MODULE


@NOTHING_BUT_TORCH
def test_undoing_leaves_everything_as_it_was() -> None:
    before = what_is_there()
    replacement = lockstitch.replace()
    assert active() == ("torch-rpc", "horovod", "data-parallel")
    importlib.import_module("horovod.torch.mpi_ops")
    importlib.import_module("torch.distributed.rpc.options")
    replacement.undo()
    replacement.undo()
    assert what_is_there() == before
    assert active() == ()


@NOTHING_BUT_TORCH
def test_modules_found_under_the_other_name_are_no_copies() -> None:
    with lockstitch.replace("torch-rpc", "horovod"):
        for theirs, ours in (
            ("torch.distributed.rpc.functions", "lockstitch.rpc.functions"),
            ("horovod", "lockstitch.hvd"),
            ("horovod.common.util", "lockstitch.hvd.common.util"),
            ("horovod.torch.mpi_ops", "lockstitch.hvd.mpi_ops"),
            ("horovod.torch.elastic.sampler", "lockstitch.hvd.elastic.sampler"),
        ):
            assert importlib.import_module(theirs) is importlib.import_module(ours)
            assert importlib.import_module(ours).__name__ == ours
        hvd = importlib.import_module("horovod.torch")
        assert hvd.DistributedOptimizer is lockstitch.hvd.DistributedOptimizer


def test_part_of_horovod_that_is_not_here_is_told_apart_from_a_missing_library() -> None:
    with (
        lockstitch.replace("horovod"),
        pytest.raises(ModuleNotFoundError, match=r"lockstitch\.hvd stands in for horovod here"),
    ):
        importlib.import_module("horovod.tensorflow")


def test_whether_a_part_is_here_can_be_asked_without_importing_it() -> None:
    with lockstitch.replace("horovod"):
        assert importlib.util.find_spec("horovod.torch.mpi_ops") is not None
        # As where Horovod is not installed: those who ask for a part expect it.
        with pytest.raises(ModuleNotFoundError, match="has no such module"):
            importlib.util.find_spec("horovod.tensorflow")


@NOTHING_BUT_TORCH
def test_data_parallel_is_ours_under_each_of_its_names() -> None:
    with lockstitch.replace("data-parallel"):
        assert torch.nn.DataParallel is lockstitch.nn.DataParallel
        assert torch.nn.parallel.DataParallel is lockstitch.nn.DataParallel
        assert torch.nn.parallel.data_parallel is lockstitch.nn.data_parallel
        model = torch.nn.DataParallel(torch.nn.Linear(2, 1), ["cpu", "cpu"])
        assert model(torch.ones(4, 2)).shape == (4, 1)
    assert torch.nn.DataParallel is DATA_PARALLEL


def test_children_are_told_and_no_longer_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTITCH_REPLACE", "something before")
    with lockstitch.replace("horovod"):
        assert os.environ["LOCKSTITCH_REPLACE"] == "horovod"
    assert os.environ["LOCKSTITCH_REPLACE"] == "something before"


@NOTHING_BUT_TORCH
def test_what_is_replaced_stays_until_the_last_who_asked_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOCKSTITCH_REPLACE", raising=False)
    first = lockstitch.replace("horovod")
    second = lockstitch.replace("horovod", "data-parallel")
    assert os.environ["LOCKSTITCH_REPLACE"] == "horovod,data-parallel"
    first.undo()
    first.undo()
    assert importlib.import_module("horovod") is lockstitch.hvd
    third = lockstitch.replace("horovod")
    second.undo()
    assert torch.nn.DataParallel is DATA_PARALLEL
    assert os.environ["LOCKSTITCH_REPLACE"] == "horovod"
    assert importlib.import_module("horovod") is lockstitch.hvd
    third.undo()
    assert active() == ()
    assert "LOCKSTITCH_REPLACE" not in os.environ


def test_names_imported_before_are_named_in_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    program = types.ModuleType("program_of_test")
    program.call = RPC.rpc_sync  # type: ignore[attr-defined]
    program.calls = RPC  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "program_of_test", program)
    with pytest.warns(RuntimeWarning, match="--replace torch-rpc") as caught:
        replacement = lockstitch.replace("torch-rpc")
    replacement.undo()
    text = str(caught[0].message)
    for name in (__name__, "program_of_test"):
        monkeypatch.setattr("lockstitch.replacement.stale_imports._MOST", 10_000)
        assert name in text or "more" in text
    assert caught[0].filename == __file__


def test_unknown_name_changes_nothing() -> None:
    before = what_is_there()
    with pytest.raises(ValueError, match="horovod"):
        lockstitch.replace("horovod", "tensorflow")
    assert what_is_there() == before
