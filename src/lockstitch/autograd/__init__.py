"""One backward pass over all workers: `context`, `backward`, `get_gradients`; and `grad`, for the
gradients of chosen tensors.

A drop-in for `torch.distributed.autograd`, which has no `grad` and no higher derivatives.

How it works, in the order in which one reads it:

    api.py          the face; compat.py has the underscore names of the original
    service.py      what a worker does for them: contexts, and passes begun
    passes.py       a worker's passes, and the messages between workers that belong to them
    contexts.py     its contexts, from the first message to the release
    releases.py     telling other workers that a context is over
    context.py      what one worker remembers of one forward, and its gradients
    stitch.py       sends and receives, and the interceptor that sews them onto messages
    outside.py      what came by calls outside any context: a warning
    roots.py        what a pass may begin at
    selection.py    what a pass wants that is not for all gradients
    narrowing.py    how it runs nothing else
    inputs.py       the inputs of `grad`, here and on other workers
    graph.py        the walk that cuts a worker's graph into components
    decisions.py    when a component runs
    engine.py       how it runs, in torch's own engine
    replicas.py     gradients that several ranks share: DistributedDataParallel in a context
    progress.py     how far components are
    emission.py     what a run sends
    backward.py     one worker's part of one pass
    conductor.py    who conducts the pass, as those see it who take part
    initiator.py    the pass as a whole, on the worker that called `backward`
    listening.py    how its threads wait, and what they read meanwhile
    discovery.py    SMART: which stitches take part
    reports.py      a context as others see it
    observing.py    what a pass notes of itself while somebody records
    termination.py  is the pass finished, is it stuck
"""

from __future__ import annotations

from lockstitch.autograd.api import backward, context, get_gradients, grad
from lockstitch.autograd.compat import (  # noqa: F401 - programs reach for them by these names
    DistAutogradContext,
    _current_context,
    _get_debug_info,
    _get_max_id,
    _init,
    _is_valid_context,
    _new_context,
    _release_context,
    _retrieve_context,
    is_available,
)

__all__ = [
    "context",
    "backward",
    "get_gradients",
    "grad",
    "DistAutogradContext",
    "_current_context",
    "_get_debug_info",
    "_get_max_id",
    "_init",
    "_is_valid_context",
    "_new_context",
    "_release_context",
    "_retrieve_context",
]
