"""Backends are found by name and by the options they make; registering disturbs nobody."""

from __future__ import annotations

import pytest

from lockstitch.rpc import backend_registry
from lockstitch.rpc.backend_registry import (
    BackendType,
    backend_registered,
    construct_rpc_backend_options,
    infer_backend,
    init_backend,
    register_backend,
)
from lockstitch.rpc.options import RpcBackendOptions


class PigeonOptions(RpcBackendOptions):
    def __init__(self, rpc_timeout: float, init_method: str, pigeons: int = 1) -> None:
        super().__init__(rpc_timeout, init_method)
        self.pigeons = pigeons


@pytest.fixture
def pigeons(monkeypatch):
    monkeypatch.setattr(BackendType, "__members__", dict(BackendType.__members__))
    yield register_backend("PIGEONS", PigeonOptions, lambda **given: given["name"])
    del BackendType.PIGEONS


def test_a_registered_backend_is_used_like_a_member_of_an_enum(pigeons) -> None:
    assert backend_registered("PIGEONS")
    assert BackendType.PIGEONS is pigeons is BackendType["PIGEONS"]
    assert pigeons in BackendType
    assert isinstance(pigeons, BackendType)
    assert (pigeons.name, repr(pigeons)) == ("PIGEONS", "BackendType.PIGEONS")
    assert len(BackendType) == len(list(BackendType))


def test_registering_leaves_earlier_members_members(pigeons) -> None:
    assert isinstance(backend_registry.BackendType.TENSORPIPE, BackendType)


def test_a_name_is_registered_once(pigeons) -> None:
    with pytest.raises(RuntimeError, match="^RPC backend PIGEONS: already registered$"):
        register_backend("PIGEONS", PigeonOptions, lambda **_: None)


def test_handlers_get_what_was_given(pigeons) -> None:
    options = construct_rpc_backend_options(pigeons, rpc_timeout=2.0, pigeons=7)
    assert isinstance(options, PigeonOptions)
    assert (options.rpc_timeout, options.init_method, options.pigeons) == (2.0, "env://", 7)
    assert init_backend(pigeons, name="coo") == "coo"


def test_the_backend_is_inferred_from_the_options(pigeons) -> None:
    assert infer_backend(PigeonOptions(1.0, "env://")) is pigeons
    with pytest.raises(TypeError, match="Could not infer backend for options"):
        infer_backend(RpcBackendOptions())
