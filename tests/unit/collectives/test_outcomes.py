"""How operations end."""

from __future__ import annotations

import pytest
import torch

from lockstitch.collectives.negotiation import Objection, Refuse
from lockstitch.collectives.outcomes import error_of, value_of
from lockstitch.collectives.requests import Kind, Request
from lockstitch.errors import CollectiveError, MismatchError, RankLostError


@pytest.mark.parametrize(
    ("objection", "kind"),
    [
        (Objection.MISMATCH, MismatchError),
        (Objection.JOINED, CollectiveError),
        (Objection.LEFT, RankLostError),
    ],
)
def test_each_objection_has_its_error(objection: str, kind: type) -> None:
    error = error_of(Refuse("a", {}, objection, "text"))
    assert type(error) is kind
    assert str(error) == "text"


def test_single_tensor_a_list_or_nothing() -> None:
    one = [torch.ones(1)]
    assert value_of(Request(Kind.ALLREDUCE), one) is one[0]
    assert value_of(Request(Kind.ALLREDUCE, is_group=True), one) is one
    assert value_of(Request(Kind.BARRIER), []) is None
