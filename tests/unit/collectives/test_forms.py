"""Forms: compared quickly, made once, numbered, and forgotten when there are too many."""

from __future__ import annotations

import pytest
import torch

from lockstitch.collectives import forms
from lockstitch.collectives.forms import Forms
from lockstitch.collectives.process_sets import ProcessSet
from lockstitch.collectives.requests import AVERAGE, SUM, Kind, Request

EVERYBODY = ProcessSet(0, (0, 1))


def request(name: str = "a", tensor: torch.Tensor | None = None, **more: object) -> Request:
    tensors = (torch.ones(2) if tensor is None else tensor,)
    return Request(Kind.ALLREDUCE, name, tensors, **{"reduction": SUM, **more})  # type: ignore[arg-type]


def form_of(known: Forms, asked: Request) -> forms.Form:
    return known.of(asked, EVERYBODY, lambda _key: False)


def test_same_again_is_the_same_form() -> None:
    known = Forms(0)
    assert form_of(known, request()) is form_of(known, request(tensor=torch.zeros(2)))
    assert len(known) == 1


@pytest.mark.parametrize(
    "other",
    [
        request(tensor=torch.ones(3)),
        request(tensor=torch.ones(2).int()),
        request(reduction=AVERAGE),
        Request(Kind.ALLREDUCE, "a", (torch.ones(2), torch.ones(2)), reduction=SUM),
    ],
)
def test_something_else_under_the_name_is_another_form_with_its_number(other: Request) -> None:
    known = Forms(0)
    first = form_of(known, request())
    first.note = "known to others"
    second = form_of(known, other)
    assert second is not first
    assert second.number == first.number
    assert second.note is None


def test_names_have_numbers_of_their_own() -> None:
    known = Forms(0)
    assert [form_of(known, request(name)).number for name in "abc"] == [0, 1, 2]


def test_sparse_tensor_is_not_taken_for_a_dense_one() -> None:
    known = Forms(0)
    form_of(known, request())
    with pytest.raises(ValueError, match="sparse"):
        form_of(known, request(tensor=torch.ones(2).to_sparse()))


def test_idle_names_are_forgotten_and_their_numbers_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forms, "MOST_FORMS", 3)
    known = Forms(0)
    busy = form_of(known, request("busy"))
    for name in "ab":
        form_of(known, request(name))
    fresh = known.of(request("c"), EVERYBODY, lambda key: key == (0, "busy"))
    assert len(known) == 2
    assert fresh.number in (1, 2)
    assert form_of(known, request("busy")) is busy
