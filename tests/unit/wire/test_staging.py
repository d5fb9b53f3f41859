"""Tensors of other devices on the wire, as far as they can be told apart without one."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import torch

from lockstitch.devices import moving
from lockstitch.devices.kinds import HOST
from lockstitch.devices.maps import DeviceMap
from lockstitch.errors import RpcError
from lockstitch.wire import staging, tensors
from lockstitch.wire.decoding import FrameDecoder
from lockstitch.wire.encoding import encode
from lockstitch.wire.encodings import ONE_TENSOR
from lockstitch.wire.messages import Payload, Reply, Stitch
from lockstitch.wire.staging import StagedPayload, arrive, settled

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


def cross(tensor: torch.Tensor, device_map: DeviceMap | None = None, stitch=None) -> Payload:
    decoder = FrameDecoder()
    for buffer in encode(
        Reply(1, stitch, Payload(ONE_TENSOR, b"", (tensor,))), device_map=device_map
    ):
        decoder.feed(buffer)
    return decoder.messages.popleft().body  # type: ignore[attr-defined]


@pytest.fixture(name="moves")
def _moves(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Where tensors would be moved to: nothing is."""
    moves: list[torch.device] = []

    def note(items, targets, *, is_used_here=False):
        moves.extend(targets)
        return list(items)

    monkeypatch.setattr(staging, "move_all", note)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    return moves


@pytest.mark.parametrize("shape", [(3,), (100, 100), (4, 5), ()])
def test_a_tensor_of_another_device_crosses_with_its_values_and_flags(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    tensor = torch.nn.Parameter(torch.randn(shape))
    # Only this one pretends to live elsewhere; its staged copy does not.
    monkeypatch.setattr(tensors, "is_on_host", lambda each: each is not tensor)
    monkeypatch.setattr(torch.Tensor, "device", property(lambda _: torch.device("meta")))
    body = cross(tensor)
    monkeypatch.undo()
    assert type(body) is StagedPayload
    (arrived,) = settled(body).items
    assert type(arrived) is torch.nn.Parameter
    assert torch.equal(arrived, tensor)


def test_a_tensor_of_the_host_stays_there_where_the_map_does_not_name_the_host() -> None:
    body = cross(torch.ones(3), DeviceMap("w", {FIRST: SECOND}))
    assert type(body) is Payload
    assert type(cross(torch.ones(3), DeviceMap("w", {HOST: HOST}))) is Payload


@pytest.mark.parametrize("size", [3, 10_000])
def test_a_request_names_the_device_that_its_map_does(moves, size: int) -> None:
    body = cross(torch.ones(size), DeviceMap("w", {HOST: FIRST}))
    assert type(body) is StagedPayload
    assert moves == []  # the decoder moves nothing
    opened = settled(body)
    assert moves == [FIRST]
    assert type(opened) is Payload
    assert opened.items[0].sum() == size
    assert body.landed[0] is opened.items[0]


def test_a_leaf_becomes_one_again_unless_a_stitch_follows(moves) -> None:
    device_map = DeviceMap("w", {HOST: FIRST})
    leaf = torch.ones(3, requires_grad=True)
    (arrived,) = settled(cross(leaf, device_map)).items
    assert arrived.requires_grad
    assert arrived.is_leaf
    (arrived,) = settled(cross(leaf, device_map, Stitch(1, None, (0,), ()))).items
    assert not arrived.requires_grad


def test_a_device_that_a_map_names_and_that_is_not_here_is_an_error(moves) -> None:
    body = cross(torch.ones(3), DeviceMap("w", {HOST: SECOND}))
    with pytest.raises(RpcError, match="sends a tensor to cuda:1, but this worker has only 1 dev"):
        settled(body)


def staged(device: str) -> StagedPayload:
    body = StagedPayload(ONE_TENSOR, b"", [torch.ones(3)])
    body.staged = {0: ((tensors.STAGED, (0, (3,)), device, False), True)}
    return body


@pytest.mark.parametrize(
    ("device", "target"),
    [("cuda:0", FIRST), ("cuda:1", HOST), ("nonsense:0", HOST), ("meta", HOST), ("os:1", HOST)],
)
def test_without_a_map_it_goes_to_the_device_of_that_name_or_the_host(
    moves, device: str, target: torch.device
) -> None:
    settled(staged(device))
    assert moves == [target]


def test_an_answer_comes_back_by_the_inverse_of_the_askers_map(moves) -> None:
    device_map = DeviceMap("w", {FIRST: SECOND, SECOND: HOST})
    settled(staged("cuda:1"), device_map)
    assert moves == [FIRST]
    plain = Payload(ONE_TENSOR, b"", (torch.ones(3),))
    settled(plain, device_map)
    assert moves == [FIRST, SECOND]
    with pytest.raises(RuntimeError, match="Response device mapping is not available"):
        settled(staged("cuda:0"), device_map)


def test_buffers_and_tensors_that_stay_are_left_alone(moves) -> None:
    tensor, buffer = torch.ones(3), memoryview(b"x")
    opened = settled(Payload(ONE_TENSOR, b"", (tensor, buffer, None)), DeviceMap("w", {HOST: HOST}))
    assert opened.items[0] is tensor
    assert opened.items[1:] == [buffer, None]
    assert moves == []


def test_gradients_arrive_where_the_tensors_are_whose_they_are(moves) -> None:
    some = torch.ones(2)
    assert arrive([None, some], [SECOND, FIRST]) == [None, some]
    assert moves == [FIRST]


# ---------------------------------------------------------------- what devices hold


class Lent:
    """Memory as a segment would be; `log` says what was done with it."""

    number = 3

    def __init__(self, size: int, log: list[str]) -> None:
        self.buffer = ctypes.create_string_buffer(size)
        self.address = ctypes.addressof(self.buffer)
        self.log = log

    def pin(self) -> None:
        self.log.append("pin")

    def cancel(self) -> None:
        self.log.append("cancel")


@pytest.fixture(name="log")
def _log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All tensors pretend to be on a device; what is done with it is logged."""
    log: list[str] = []
    copy = moving.begin_fetch
    monkeypatch.setattr(tensors, "is_on_host", lambda _: False)
    monkeypatch.setattr(tensors, "begin_fetch", lambda *to: (log.append("fetch"), copy(*to)))
    monkeypatch.setattr(torch.Tensor, "device", property(lambda _: FIRST))
    monkeypatch.setattr(
        staging, "staging_bytes", lambda size: torch.empty(size, dtype=torch.uint8, device="cpu")
    )
    monkeypatch.setattr(
        staging, "wait_for_current", lambda used: log.append(f"wait for {len(used)}")
    )
    return log


FORMS = {
    "small": torch.arange(6).view(2, 3),
    "scalar": torch.tensor(1.5, dtype=torch.float64),
    "empty": torch.empty(0, 3),
    "large": torch.arange(30_000),
    "transposed": torch.arange(30_000).view(100, 300).t(),
    "strided": torch.arange(60_000)[::2],
    "conjugate": torch.randn(4, dtype=torch.complex64).conj(),
    "negative": torch.randn(4, dtype=torch.complex64).conj().imag,
}


@pytest.mark.parametrize("lends", [False, True])
@pytest.mark.parametrize("forms", [[each] for each in FORMS] + [[*FORMS]], ids="-".join)
def test_the_bytes_that_devices_hold_are_fetched_at_once(
    log: list[str], forms: list[str], lends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [FORMS[form] for form in forms]
    lent: list[Lent] = []

    def lend(size: int) -> Lent:
        lent.append(Lent(size, log))
        return lent[-1]

    body = Payload(ONE_TENSOR, b"", sent)
    buffers = encode(Reply(1, None, body), lend=lend if lends else None)
    monkeypatch.undo()
    decoder = FrameDecoder(window=lambda _: (lent[0].buffer, SimpleNamespace(give_back=int)))
    for buffer in buffers:
        decoder.feed(buffer)
    arrived = decoder.messages.popleft().body  # type: ignore[attr-defined]
    assert {header[2] for header, _ in arrived.staged.values()} == {"cuda:0"}
    for one, other in zip(arrived.items, sent, strict=True):
        assert torch.equal(one, other.resolve_conj().resolve_neg())
        if other.numel() == other.untyped_storage().nbytes() // other.itemsize:
            assert one.stride() == other.stride()
    if forms != ["empty"]:
        assert log[-1].startswith("wait for")
        assert sum(each.startswith("wait") for each in log) == 1
    assert ("pin" in log) == bool(lent)


def test_memory_is_given_back_when_it_could_not_be_filled_and_not_before_that_has_ended(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tensors, "begin_fetch", fail)
    body = Payload(ONE_TENSOR, b"", [FORMS["large"]])
    with pytest.raises(KeyboardInterrupt):
        encode(Reply(1, None, body), lend=lambda size: Lent(size, log))
    assert log == ["pin", "wait for 1", "cancel"]
