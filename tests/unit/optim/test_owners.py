"""What owners have answered is taken together; an error says who has done what was asked."""

from __future__ import annotations

import pytest

from lockstitch.errors import PeerDiedError
from lockstitch.ids import WorkerInfo
from lockstitch.optim.owners import Outcome, values

OWNERS = [WorkerInfo(name, rank) for rank, name in enumerate(("ps1", "ps2", "ps3"))]


def outcomes(*results):
    return [
        Outcome(owner, None, it) if isinstance(it, Exception) else Outcome(owner, it, None)
        for owner, it in zip(OWNERS, results, strict=True)
    ]


def test_values_come_in_the_order_of_owners() -> None:
    assert values(outcomes(1, None, 3), "stepped") == [1, None, 3]


def test_the_error_of_a_dead_owner_says_who_has_stepped() -> None:
    died = PeerDiedError("ps2")
    with pytest.raises(PeerDiedError, match="; stepped: 'ps1', 'ps3'; not, or not") as it:
        values(outcomes(1, died, 3), "stepped", "go on with others")
    assert str(it.value).endswith("known to: 'ps2'; go on with others")
    assert it.value.worker == "ps2"
    assert "stepped" not in str(died)  # others may wait for the same
    assert it.value.__cause__ is died


def test_the_first_error_is_raised_as_what_it_is_with_notes() -> None:
    with pytest.raises(ValueError, match="no") as caught:
        values(outcomes(1, ValueError("no"), OSError("neither")), "stepped")
    said, other = caught.value.__notes__
    assert said == "stepped: 'ps1'; not, or not known to: 'ps2', 'ps3'"
    assert other == "also on worker 'ps3': OSError: neither"


def test_it_says_where_nobody_has() -> None:
    with pytest.raises(PeerDiedError, match=r"no owner is known to have stepped \('ps1', 'ps2'"):
        values(outcomes(*(PeerDiedError(owner.name) for owner in OWNERS)), "stepped")
