"""Values cross the wire: by the cheapest encoding that fits, equal to what was sent, or refused
with a reason."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import marshal
import math
import pickle
import sys
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.errors import RemoteProtocolError, SerializationError
from lockstitch.ids import WorkerId
from lockstitch.wire.encodings import (
    FLAT_WITH_OWN,
    MARSHAL,
    NOTHING,
    ONE_TENSOR,
    PICKLE,
    PickleSession,
    PicklingRegistry,
    TakeBack,
    UnpickleSession,
)
from lockstitch.wire.messages import Payload
from lockstitch.wire.pickling import pack, pack_flat
from lockstitch.wire.unpickling import discard, unpack
from tests.labels import steady
from tests.unit.wire.route import REGISTRY, cross


class Point(NamedTuple):
    x: float
    y: torch.Tensor


@dataclasses.dataclass
class Order:
    name: str
    tensors: dict[str, torch.Tensor]


class Color(enum.Enum):
    RED = 1


def double(x: Any) -> Any:
    return 2 * x


def encoding_of(value: object) -> int:
    return pack(value, REGISTRY)[0].encoding


# ---------------------------------------------------------------- which encoding


@pytest.mark.parametrize(
    ("value", "encoding"),
    [
        (None, NOTHING),
        (3, MARSHAL),
        (2.5, MARSHAL),
        (True, MARSHAL),
        (1j, MARSHAL),
        ((), MARSHAL),
        ([1, "two", b"3", None], MARSHAL),
        ("a string alone", PICKLE),
        ({"a": 1}, PICKLE),
        ([[1]], PICKLE),
        ((np.float64(1.0),), PICKLE),
        ((...,), PICKLE),
    ],
    ids=str,
)
def test_cheapest_encoding_that_fits(value: object, encoding: int) -> None:
    assert encoding_of(value) == encoding
    arrived = cross(value)
    assert type(arrived) is type(value)
    assert arrived == value


def test_tensors_travel_beside_the_stream_in_every_encoding() -> None:
    tensor = torch.randn(3)
    assert encoding_of(tensor) == ONE_TENSOR
    assert encoding_of((1, tensor)) == MARSHAL
    assert encoding_of((tensor, 1, tensor)) == MARSHAL
    assert encoding_of({"t": tensor}) == PICKLE
    for value in (tensor, (1, tensor), {"t": tensor}, [[tensor]]):
        payload, _ = pack(value, REGISTRY)
        assert [each is tensor for each in payload.items] == [True]
        assert len(payload.stream) < 200


def test_subclasses_of_plain_types_keep_their_type() -> None:
    value = [collections.OrderedDict(a=1), collections.Counter("aab"), Point(1.0, torch.ones(1))]
    arrived = cross(value)
    assert [type(each) for each in arrived] == [type(each) for each in value]
    assert cross((Color.RED, True)) == (Color.RED, True)


# ---------------------------------------------------------------- what arrives


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
        | st.frozensets(st.integers())
    ),
    max_leaves=20,
)


@given(VALUES)
def test_any_plain_value_arrives_equal(value: object) -> None:
    arrived = cross(value)
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize("value", [math.nan, -0.0, "\ud800", 10**400, "\0", b"\0"], ids=repr)
def test_awkward_plain_values(value: object) -> None:
    assert repr(cross(value)) == repr(value)
    assert repr(cross((value,))) == repr((value,))


@pytest.mark.parametrize("size", [10, 70_000, 1 << 20])
def test_large_strings_and_bytes(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    text = "ä€😀x" * (size // 4)
    for value in (
        data,
        bytearray(data),
        text,
        (data, text, 1),
        {"d": data},
        [memory := data, memory],
    ):
        assert cross(value) == value


def test_value_that_contains_itself() -> None:
    loop: list[Any] = [torch.ones(2)]
    loop.append(loop)
    arrived = cross(loop)
    assert arrived[1] is arrived


def test_nested_containers_with_tensors() -> None:
    value = {"a": [torch.ones(2), (torch.zeros(3), {"b": Point(1.0, torch.eye(2))})], "c": None}
    arrived = cross(value)
    assert torch.equal(arrived["a"][0], torch.ones(2))
    assert torch.equal(arrived["a"][1][1]["b"].y, torch.eye(2))
    order = cross(Order("o", {"w": torch.ones(20_000)}))
    assert order.name == "o"
    assert order.tensors["w"].sum() == 20_000


def test_many_tensors_at_once() -> None:
    value = [torch.full((n % 7, 3), float(n)) for n in range(1000)]
    assert all(map(torch.equal, cross(value), value))


# ---------------------------------------------------------------- NumPy


@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (300, 200)], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_numpy_arrays_travel_out_of_band(shape: tuple[int, ...], order: Any) -> None:
    array = np.asarray(np.random.default_rng(0).normal(size=shape), order=order)
    payload, _ = pack(array, REGISTRY)
    assert len(payload.items) == 1
    arrived = cross(array)
    assert arrived.dtype == array.dtype
    assert np.array_equal(arrived, array)
    assert arrived.flags.f_contiguous == array.flags.f_contiguous
    arrived[...] = 0  # writable


def test_read_only_array_stays_so() -> None:
    array = np.arange(5)
    array.flags.writeable = False
    arrived = cross(array)
    assert np.array_equal(arrived, array)
    assert not arrived.flags.writeable


def test_strided_array_and_array_of_objects_fall_back_to_the_stream() -> None:
    assert np.array_equal(cross(np.arange(10)[::2]), np.arange(10)[::2])
    objects = np.array([1, "a", None], dtype=object)
    assert pack(objects, REGISTRY)[0].items == []
    assert cross(objects).tolist() == [1, "a", None]


def test_structured_array_and_numpy_scalar() -> None:
    array = np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])
    assert cross(array) == array
    assert cross(np.float32(1.5)) == np.float32(1.5)


# ---------------------------------------------------------------- code


def test_functions_of_modules_go_by_name_and_closures_by_value() -> None:
    assert cross(double) is double
    factor = 3
    assert cross(lambda x: factor * x)(4) == 12
    assert cross({"f": [lambda: factor]})["f"][0]() == 3


def test_closure_over_a_tensor_lifts_it_as_well() -> None:
    weight = torch.randn(40_000)
    payload, _ = pack(lambda: weight, REGISTRY)
    assert len(payload.items) == 1
    assert torch.equal(cross(lambda: weight)(), weight)


def test_closure_beside_a_tensor() -> None:
    tensor = torch.randn(3)
    function, arrived = cross((lambda x: x + 1, tensor))
    assert function(1) == 2
    assert torch.equal(arrived, tensor)


def test_local_class_goes_by_value() -> None:
    class Local:
        def __init__(self) -> None:
            self.value = 7

    assert cross(Local()).value == 7


def test_bound_methods_partials_and_types() -> None:
    assert cross(torch.nn.Linear) is torch.nn.Linear
    assert cross(functools.partial(double, 4))() == 8
    assert cross([1, 2].count)(1) == 1
    assert cross(Color) is Color


class Absent:
    """Pickled under a name that the receiver does not have."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Absent, ())


def test_class_that_the_receiver_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    payload, _ = pack([Absent()], REGISTRY)
    monkeypatch.delattr(f"{__name__}.Absent")
    with pytest.raises(SerializationError, match="RPC pickler does not serialize"):
        unpack(payload, REGISTRY)


# ---------------------------------------------------------------- what cannot cross


@pytest.mark.parametrize(
    "make",
    [threading.Lock, lambda: (each for each in ()), sys._getframe],
    ids=["lock", "generator", "frame"],
)
def test_what_cannot_be_pickled_is_named(make: Any) -> None:
    thing = make()
    for value in (thing, [thing], {"key": (1, thing)}):
        with pytest.raises(SerializationError, match="cannot send"):
            pack(value, REGISTRY)


@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: [f], lambda f: lambda: f], ids=steady)
def test_futures_are_refused_in_the_incumbents_words(wrap: Any) -> None:
    with pytest.raises(RuntimeError, match=r"Can not pickle torch\.futures\.Future"):
        pack(wrap(torch.futures.Future()), REGISTRY)


class Stubborn:
    def __reduce__(self) -> Any:
        raise ZeroDivisionError("no")

    def __repr__(self) -> str:
        raise ZeroDivisionError("not even this")


def test_error_of_an_object_of_the_user_keeps_its_type() -> None:
    with pytest.raises(ZeroDivisionError, match="no"):
        pack([Stubborn()], REGISTRY)


class Unshowable:
    def __reduce__(self) -> Any:
        raise TypeError("not me")

    def __repr__(self) -> str:
        raise ZeroDivisionError("not even this")


class LikeAScript:
    def __reduce__(self) -> Any:
        raise pickle.PickleError("ScriptFunction cannot be pickled")


def test_of_a_scripted_function_is_said_what_to_send_instead() -> None:
    said = "pass the Python function or module that was scripted"
    with pytest.raises(SerializationError, match=said):
        pack(LikeAScript(), PicklingRegistry())


@pytest.mark.filterwarnings("ignore:.torch.jit.trace")
def test_a_scripted_module_is_refused_in_the_same_words() -> None:
    scripted = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(
        SerializationError, match="'Linear' is compiled .* module that was scripted"
    ):
        pack({"model": [scripted]}, PicklingRegistry())


def test_refusal_does_not_need_a_repr() -> None:
    with pytest.raises(SerializationError, match="not me"):
        pack([Unshowable()], REGISTRY)


def test_unknown_encoding_is_the_peers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="encoding 77"):
        unpack(Payload(77, b"", ()), REGISTRY)


def test_failed_pack_leaves_nothing_behind_for_the_next() -> None:
    tensor = torch.ones(2)
    with pytest.raises(SerializationError):
        pack([tensor, threading.Lock()], REGISTRY)
    assert len(pack([[tensor]], REGISTRY)[0].items) == 1


# ---------------------------------------------------------------- registered types and sessions


class Handle:
    def __init__(self, number: int) -> None:
        self.number = number


def registry_of_handles() -> PicklingRegistry:
    registry = PicklingRegistry()

    def reduce(handle: Handle, session: PickleSession) -> tuple[Any, ...]:
        return handle.number, session.to

    def rebuild(session: UnpickleSession, number: int, to: WorkerId) -> Handle:
        handle = Handle(number)
        session.received.append((handle, session.sender, to))
        return handle

    registry.register(Handle, reduce, rebuild)
    return registry


def test_registered_type_crosses_as_its_state_and_the_session_hears_of_it() -> None:
    registry = registry_of_handles()
    here, there = WorkerId(0, 0), WorkerId(1, 0)
    payload, _ = pack({"h": Handle(5), "t": torch.ones(1)}, registry, there)
    session = UnpickleSession(here)
    arrived = unpack(payload, registry, session)
    assert arrived["h"].number == 5
    assert session.received == [(arrived["h"], here, there)]


class Ticket:
    """Its state is plain values only."""

    def __init__(self, number: int) -> None:
        self.number = number


def registry_of_tickets(undone: list[int]) -> PicklingRegistry:
    registry = registry_of_handles()

    def reduce(ticket: Ticket, session: PickleSession) -> tuple[Any, ...]:
        if ticket.number < 0:
            raise LookupError("this one stays")
        session.will_undo(lambda: undone.append(ticket.number))
        if session.kept is not None:
            session.kept.append(ticket)
        return ticket.number, (1, 2)

    def rebuild(session: UnpickleSession, number: int, pair: tuple[int, int]) -> Ticket:
        assert pair == (1, 2)
        ticket = Ticket(number)
        session.received.append(ticket)
        return ticket

    registry.register(Ticket, reduce, rebuild)
    return registry


@pytest.mark.parametrize("kind", [tuple, list])
def test_flat_values_with_registered_types_cross_without_a_pickle(kind: type) -> None:
    registry, tensor = registry_of_tickets(undone := []), torch.ones(2)
    kept: list[Any] = []
    sent = kind([Ticket(5), "name", tensor, 1.5, tensor, None, Ticket(6)])
    payload, _ = pack(sent, registry, None, kept)
    assert payload.encoding == FLAT_WITH_OWN
    (take_back,) = [each for each in kept if isinstance(each, TakeBack)]
    assert [each for each in kept if each is not take_back] == [sent[0], sent[-1]]
    take_back()  # as if the request never left
    assert undone == [5, 6]
    session = UnpickleSession(WorkerId(0, 0))
    first, name, one, number, other, nothing, last = arrived = unpack(payload, registry, session)
    assert type(arrived) is kind
    assert (name, number, nothing) == ("name", 1.5, None)
    assert one is other
    assert session.received == [first, last]
    assert [first.number, last.number] == [5, 6]


def test_one_instance_of_a_registered_type_is_one_instance_there() -> None:
    registry, ticket = registry_of_tickets([]), Ticket(5)
    payload, _ = pack([ticket, ticket], registry)
    assert payload.encoding == PICKLE
    one, other = unpack(payload, registry, UnpickleSession(None))
    assert one is other


def test_a_state_that_is_not_plain_goes_by_pickle() -> None:
    registry = registry_of_tickets(undone := [])
    payload, _ = pack([Ticket(5), Handle(1)], registry, WorkerId(1, 0))
    assert payload.encoding == PICKLE
    assert undone == [5], "the first attempt was taken back"


def test_a_flat_value_that_cannot_leave_takes_back_what_was_reduced() -> None:
    registry = registry_of_tickets(undone := [])
    with pytest.raises(LookupError, match="this one stays"):
        pack((Ticket(1), Ticket(2), Ticket(-1)), registry)
    assert undone == [1, 2]


def test_of_a_flat_value_that_nobody_reads_only_registered_types_are_received() -> None:
    registry = registry_of_tickets([])
    payload, _ = pack((Ticket(1), torch.ones(1), "x", Ticket(2)), registry)
    session = UnpickleSession(None)
    discard(payload, registry, session)
    assert [ticket.number for ticket in session.received] == [1, 2]


@pytest.mark.parametrize("entry", [("Nobody", 1), (), ("Ticket",), ("Ticket", 1, (1, 2), 3), (7,)])
def test_a_flat_value_that_makes_no_sense_is_refused(entry: tuple[object, ...]) -> None:
    payload = Payload(FLAT_WITH_OWN, marshal.dumps((entry,)), ())
    with pytest.raises((RemoteProtocolError, SerializationError)):
        unpack(payload, registry_of_tickets([]))


def test_registered_type_inside_a_closure() -> None:
    registry = registry_of_handles()
    handle = Handle(9)
    payload, _ = pack(lambda: handle, registry, WorkerId(1, 0))
    session = UnpickleSession(WorkerId(0, 0))
    assert unpack(payload, registry, session)().number == 9
    assert len(session.received) == 1


def test_type_unknown_to_the_receiver() -> None:
    payload, _ = pack([Handle(1)], registry_of_handles(), None)
    with pytest.raises(SerializationError, match="nothing here knows how to receive a Handle"):
        unpack(payload, PicklingRegistry())


def test_type_is_registered_once() -> None:
    registry = registry_of_handles()
    with pytest.raises(ValueError, match="registered already"):
        registry.register(Handle, lambda *_: (), lambda *_: Handle(0))


def test_parameters_of_a_module_are_sealed_and_others_are_not() -> None:
    module, alone = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.ones(2))
    payload, leaf_ids = pack([module, alone], REGISTRY)
    assert leaf_ids == {id(module.weight), id(module.bias)}
    assert any(item is alone for item in payload.items)


def test_pack_flat_leaves_alone_what_is_not_flat() -> None:
    assert pack_flat(([],)) is None
    assert pack_flat((Point(1.0, torch.ones(1)),)) is None
    assert pack_flat((torch.nn.Parameter(torch.ones(1)),)) is None
    assert pack_flat(("x" * 100_000,)) is None


def test_getstate_may_pack_something_itself() -> None:
    class Nested:
        def __getstate__(self) -> dict[str, Any]:
            return {"inner": pack([torch.ones(2)], REGISTRY)[0].encoding}

    assert cross(Nested()).inner == PICKLE or cross(Nested()).inner == MARSHAL
