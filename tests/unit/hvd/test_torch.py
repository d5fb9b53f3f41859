from __future__ import annotations

import importlib

import lockstitch.hvd
import lockstitch.hvd.torch


def test_everything_that_horovod_torch_has_is_found_under_its_name() -> None:
    assert lockstitch.hvd.torch.__all__ == lockstitch.hvd.__all__
    for name in lockstitch.hvd.__all__:
        assert getattr(lockstitch.hvd.torch, name) is getattr(lockstitch.hvd, name)


def test_its_modules_are_no_copies() -> None:
    for name in ("mpi_ops", "compression", "optimizer", "elastic", "elastic.sampler"):
        theirs = importlib.import_module(f"lockstitch.hvd.torch.{name}")
        assert theirs is importlib.import_module(f"lockstitch.hvd.{name}")


def test_programs_may_ask_for_the_version_as_they_ask_horovod() -> None:
    assert lockstitch.hvd.__version__.split(".")[:2] == ["0", "28"]
