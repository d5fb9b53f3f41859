"""Instances of subclasses of tensors: as what they cross, and which of them are refused."""

from __future__ import annotations

import copyreg
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from lockstitch.errors import SerializationError
from lockstitch.wire.encodings import PICKLE, PickleSession
from lockstitch.wire.pickling import can_pack, pack
from lockstitch.wire.subclasses import is_plain_at_heart, rebuild_subclass
from tests.unit.wire.route import REGISTRY, cross


class Marked(torch.Tensor):
    """Adds nothing."""


class Counting(torch.nn.Parameter):
    """A parameter that has attributes."""

    unit: str


class Slotted(torch.Tensor):
    """One that says itself what its state is."""

    def __getstate__(self) -> Any:
        return {"said": "so"}

    def __setstate__(self, state: Any) -> None:
        self.heard = state


class Own(torch.Tensor):
    """One with a pickling of its own."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return torch.zeros, (3,)


class Curious(torch.Tensor):
    """One that looks at whatever is done with it."""

    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.seen.append(str(function))
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_subclass_crosses_as_header_and_memory_with_its_attributes() -> None:
    tensor = torch.randn(4000).as_subclass(Marked)
    tensor.unit = "metre"  # type: ignore[attr-defined]
    payload, _ = pack(tensor, REGISTRY)
    assert payload.encoding == PICKLE
    assert len(payload.stream) < 300
    arrived = cross(tensor)
    assert type(arrived) is Marked
    assert arrived.unit == "metre"
    assert torch.equal(arrived, tensor)


def test_a_subclass_of_parameter_arrives_as_itself_and_as_a_leaf() -> None:
    parameter = Counting(torch.ones(2))
    parameter.unit = "metre"
    arrived, frozen = cross((parameter, Counting(torch.ones(2), requires_grad=False)))
    assert type(arrived) is type(frozen) is Counting
    assert arrived.unit == "metre"
    assert arrived.is_leaf
    assert arrived.requires_grad
    assert not frozen.requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_modes_of_the_thread_that_sends_leave_requires_grad_alone(mode) -> None:  # type: ignore[no-untyped-def]
    leaf = torch.ones(2).as_subclass(Marked).requires_grad_()
    with mode():
        payload, _ = pack([{"x": leaf}], REGISTRY)
    (item,) = payload.items
    assert isinstance(item, torch.Tensor)
    assert item.requires_grad


def test_a_subclass_shares_memory_with_what_it_views() -> None:
    base = torch.zeros(5)
    plain, marked, again = cross((base, base[1:].as_subclass(Marked), {"a": base}))
    marked[0] = 3
    assert plain[1] == 3
    assert again["a"] is plain
    first, second = cross((marked, marked))
    assert first is second


def test_state_is_given_and_taken_by_the_class_where_it_wants_that() -> None:
    assert cross(torch.ones(2).as_subclass(Slotted)).heard == {"said": "so"}


def test_a_pickling_of_its_own_is_respected() -> None:
    assert torch.equal(cross([torch.ones(2).as_subclass(Own)])[0], torch.zeros(3))

    class Registered(torch.Tensor): ...

    assert is_plain_at_heart(torch.ones(2).as_subclass(Registered))
    copyreg.pickle(Registered, lambda _tensor: (int, ()))  # type: ignore[arg-type]
    try:
        assert cross([torch.ones(2).as_subclass(Registered)]) == [0]
    finally:
        del copyreg.dispatch_table[Registered]


def test_a_subclass_is_not_asked_what_it_thinks_of_being_sent() -> None:
    tensor = torch.ones(2).as_subclass(Curious)
    Curious.seen.clear()
    payload, _ = pack((tensor,), REGISTRY)
    assert not Curious.seen
    assert len(payload.items) == 1


def test_the_parameters_of_a_module_stay_leaves_whatever_their_class() -> None:
    module = torch.nn.Linear(2, 2)
    module.weight = Counting(torch.ones(2, 2))
    payload, leaf_ids = pack(module, REGISTRY, records=lambda: True)
    assert {id(item) for item in payload.items} <= leaf_ids
    arrived = cross(module)
    assert type(arrived.weight) is Counting
    assert arrived.weight.is_leaf
    pack(torch.nn.LazyLinear(3), REGISTRY, records=lambda: True)


def refused() -> list[torch.Tensor]:
    parts = [torch.ones(2), torch.ones(3)]
    return [
        TwoTensor(torch.ones(2), torch.ones(2), requires_grad=True),
        torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True),
        torch.nested.nested_tensor(parts, requires_grad=True),
        torch.nn.Parameter(torch.nested.nested_tensor(parts)),
        torch.nn.UninitializedParameter(),
        torch.ones(2).as_subclass(Own).requires_grad_(),
        torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]), requires_grad=True),
    ]


@pytest.mark.filterwarnings("ignore")
def test_what_would_lose_its_gradient_is_refused_by_name_where_autograd_records() -> None:
    for tensor in refused():
        is_own = type(tensor) not in (torch.Tensor, torch.nn.Parameter)
        name = type(tensor).__qualname__ if is_own else "nested tensor"
        for value in (tensor, [1, {"x": tensor}]):
            with pytest.raises(SerializationError, match=f"{name} .*requires grad cannot cross"):
                pack(value, REGISTRY, records=lambda: True)
            assert not can_pack(value, REGISTRY, records=lambda: True)
            assert can_pack(value, REGISTRY)


@pytest.mark.filterwarnings("ignore")
def test_what_wants_no_gradient_is_not_refused() -> None:
    for tensor in refused():
        if not isinstance(tensor, torch.nn.UninitializedParameter):
            pack(tensor.detach(), REGISTRY, records=lambda: True)


def test_what_is_no_class_of_tensors_is_refused() -> None:
    with pytest.raises(SerializationError, match="no class of tensors"):
        rebuild_subclass(int, torch.ones(2), None)  # type: ignore[arg-type]


def test_what_was_lifted_is_sealed_with_the_instance() -> None:
    session = PickleSession(None, None)
    one, other = torch.ones(1), torch.ones(1)
    session.plain += [(one, other), (other, one)]
    session.leaf_ids.add(id(one))
    session.keep_plain_leaves()
    assert id(other) in session.leaf_ids
