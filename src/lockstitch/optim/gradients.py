"""The gradients of some parameters of one worker, in one or several autograd contexts.

Accumulation over several contexts: their gradients of these parameters are added up in the first
context, and taken out of the others. So what clips, unscales or steps afterwards finds one
gradient for each parameter, as in one process, and rounds as it does there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstitch.autograd.api import service

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    ContextIds = int | Sequence[int]


def checked_contexts(contexts: ContextIds) -> list[int]:
    """The ids of contexts that are all known here. Raises `RuntimeError` for one that is not,
    `ValueError` for none at all, `TypeError` for anything else than ids."""
    ids: list[Any] = [*contexts] if isinstance(contexts, (list, tuple)) else [contexts]
    for each in ids:
        if type(each) is not int:
            raise TypeError(
                f"a context is named by its id, a number, or several by a list, not by {each!r}: "
                "with lockstitch.autograd.context() as context_id"
            )
        service().find_context(each)
    if not ids:
        raise ValueError("there is no context among those given: name one, or several")
    return ids


def gather_gradients(
    contexts: Sequence[int], parameters: Iterable[torch.Tensor]
) -> dict[torch.Tensor, torch.Tensor]:
    """The gradients that the contexts have here of these parameters, added up in their order. The
    tensors belong to the first context. A context that this worker took no part in has none."""
    alive = {context.id: context for context in service().contexts}
    known = [alive[each] for each in dict.fromkeys(contexts) if each in alive]
    if not known:
        return {}
    first, *others = known
    wanted = list(parameters)
    for other in others:
        other.move_gradients(first, wanted)
    gradients = first.gradients
    return {each: gradients[each] for each in wanted if each in gradients}
