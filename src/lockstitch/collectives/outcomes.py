"""How an operation ends for this rank: its value, or the error that the table's answer means."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lockstitch.collectives.arithmetic import element_count
from lockstitch.collectives.negotiation import Objection, Refuse
from lockstitch.errors import CollectiveError, MismatchError, RankLostError

if TYPE_CHECKING:
    import torch

    from lockstitch.collectives.requests import Description, Request

_ERRORS = {
    Objection.MISMATCH: MismatchError,
    Objection.JOINED: CollectiveError,
    Objection.LEFT: RankLostError,
}


def error_of(refusal: Refuse) -> CollectiveError:
    """The error for everyone who has submitted what is refused."""
    error = _ERRORS[refusal.objection](refusal.text)
    if isinstance(error, MismatchError):
        described = {rank: part.description for rank, part in refusal.parts.items()}
        if len({replace(each, shapes=()) for each in described.values()}) == 1:
            error.elements = {rank: _elements(each) for rank, each in described.items()}
    return error


def _elements(description: Description) -> int:
    return sum(map(element_count, description.shapes))


def value_of(
    request: Request, results: list[torch.Tensor]
) -> torch.Tensor | list[torch.Tensor] | None:
    """Returns what `wait` returns: a tensor, a list where a group was submitted, or nothing."""
    if request.is_group:
        return results
    return results[0] if results else None
