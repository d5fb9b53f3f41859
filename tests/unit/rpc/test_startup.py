"""A worker starts on the transports that its options allow."""

from __future__ import annotations

import socket

import pytest

from lockstitch.rpc import startup
from lockstitch.rpc.options import RpcBackendOptions, TensorPipeRpcBackendOptions
from lockstitch.rpc.startup import (
    join_seconds,
    limits_of,
    make_segments,
    make_transport,
)
from lockstitch.wire.frames import DEFAULT_LIMITS, FrameLimits


@pytest.mark.parametrize(("timeout", "seconds"), [(0.5, 60.0), (100.0, 100.0), (0.0, 86400.0)])
def test_the_others_are_waited_for_at_least_a_minute(timeout, seconds) -> None:
    assert join_seconds(TensorPipeRpcBackendOptions(rpc_timeout=timeout)) == seconds


def test_how_long_they_are_waited_for_may_be_said(monkeypatch) -> None:
    assert join_seconds(TensorPipeRpcBackendOptions(join_timeout=2)) == 2.0
    assert join_seconds(TensorPipeRpcBackendOptions(join_timeout=0)) == 86400.0
    monkeypatch.setenv("LOCKSTITCH_JOIN_TIMEOUT", "3.5")
    assert join_seconds(TensorPipeRpcBackendOptions()) == 3.5
    assert join_seconds(RpcBackendOptions()) == 3.5
    assert join_seconds(TensorPipeRpcBackendOptions(join_timeout=2)) == 2.0
    for wrong in ("-1", "soon"):
        monkeypatch.setenv("LOCKSTITCH_JOIN_TIMEOUT", wrong)
        with pytest.raises(ValueError, match=r"join_timeout \(or LOCKSTITCH_JOIN_TIMEOUT\)"):
            TensorPipeRpcBackendOptions()


def test_tcp_is_opened_only_where_somebody_answers_for_it() -> None:
    with pytest.raises(ValueError, match="`lockstitch secret`.*insecure=True"):
        make_transport(TensorPipeRpcBackendOptions(address="127.0.0.1"))
    for options in (
        TensorPipeRpcBackendOptions(),
        TensorPipeRpcBackendOptions(address="127.0.0.1", secret="5e" * 32),
        TensorPipeRpcBackendOptions(address="127.0.0.1", insecure=True),
    ):
        transport = make_transport(options)
        listeners = transport.listen_on_each()
        kinds = [listener.address.partition(":")[0] for listener in listeners]
        assert kinds == ["unix", "tcp"][: len(kinds)]
        assert len(kinds) == (1 if options.address is None else 2)
        for listener in listeners:
            listener.close()
        transport.close()


def test_roads_that_are_not_named_are_not_opened() -> None:
    options = TensorPipeRpcBackendOptions(transports=["tcp"], address="127.0.0.1", insecure=True)
    transport = make_transport(options)
    (listener,) = transport.listen_on_each()
    assert listener.address.startswith("tcp:")
    listener.close()
    transport.close()
    with pytest.raises(ValueError, match="nobody can reach this worker"):
        make_transport(TensorPipeRpcBackendOptions(transports=["tcp", "segments"]))


def test_shared_memory_is_lent_only_where_it_may_be() -> None:
    assert make_segments(TensorPipeRpcBackendOptions(segment_pool_bytes=1 << 20)) is not None
    assert make_segments(TensorPipeRpcBackendOptions(segment_pool_bytes=0)) is None
    assert make_segments(TensorPipeRpcBackendOptions(transports=["unix"])) is None


def test_limits_are_those_of_the_options() -> None:
    assert limits_of(TensorPipeRpcBackendOptions()) == DEFAULT_LIMITS
    options = TensorPipeRpcBackendOptions(max_frame_bytes=1000, max_tensors=3, max_nesting=5)
    assert limits_of(options) == FrameLimits(1000, 1000, 3, 5)
    with pytest.raises(ValueError, match="max_tensors is a number above 0, not 0"):
        TensorPipeRpcBackendOptions(max_tensors=0)


SECRET = "5e" * 32


def schemes(place, **options):
    transport = make_transport(TensorPipeRpcBackendOptions(**options), place=place)
    listeners = transport.listen_on_each()
    addresses = [listener.address for listener in listeners]
    for listener in listeners:
        listener.close()
    transport.close()
    return addresses


def test_who_has_a_secret_listens_for_other_hosts_on_the_way_to_the_meeting(monkeypatch) -> None:
    monkeypatch.setenv("LOCKSTITCH_IFNAME", "lo")  # as if that were the way
    monkeypatch.setattr(startup, "is_loopback", lambda address: False)
    assert len(schemes("node1", secret=SECRET)) == 2
    assert len(schemes("node1")) == 1
    assert len(schemes("node1", secret=SECRET, transports=["unix"])) == 1


def test_who_meets_at_loopback_needs_no_port(monkeypatch) -> None:
    monkeypatch.delenv("LOCKSTITCH_IFNAME", raising=False)
    assert len(schemes("127.0.0.1", secret=SECRET)) == 1
    (address,) = schemes("127.0.0.1", secret=SECRET, transports=["tcp"])
    assert address.startswith("tcp:127.0.0.1:")
    with pytest.raises(ValueError, match="address 'auto' asks to listen over TCP"):
        schemes("127.0.0.1", address="auto")


def test_ports_are_those_of_the_options() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    ports = {"port_range": (port, port)}
    address = schemes("h", address="127.0.0.1", secret=SECRET, **ports)[1]
    assert address == f"tcp:127.0.0.1:{port}"
    with pytest.raises(ValueError, match=r"port_range .or LOCKSTITCH_PORT_RANGE."):
        TensorPipeRpcBackendOptions(port_range=(9, 8))
