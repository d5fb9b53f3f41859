"""The loop around a training: when a rank dies, back to the last commit; when workers come or go,
on from where it is; each time in a new world.

    state.sync ─▶ func ──────────────────────────────▶ its result
        ▲           ├─ HorovodInternalError ─▶ state.restore ─┐
        │           └─ HostsUpdatedInterrupt ─────────────────┤
        └───────────── state.on_reset ◀───────────── reset ◀──┘
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from lockstitch.errors import tells_of_lost_peer
from lockstitch.hvd.basics import init, shutdown
from lockstitch.hvd.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from lockstitch.launcher_link.process import JOB
from lockstitch.rendezvous.reaching import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.hvd.elastic.objects import State
    from lockstitch.launcher_link import Update

S = TypeVar("S", bound="State")
P = ParamSpec("P")
T = TypeVar("T")


def run(func: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Decorates a function `func(state, …)` that trains, committing its state now and then.

    `func` is called with a state that is the same on all ranks. When an operation fails because a
    rank is gone, the state goes back to the last commit, the ranks that are left meet anew, and
    `func` is called again; so it is, without going back, when workers come or go. Returns what
    `func` returns, and raises what else it raises, and `TypeError` where it is called with
    anything but a state first. Call `hvd.init()` before. `lockstitch run
    --min-np 1 -np 4 …` replaces workers that die.
    """
    return run_fn(func, reset)


def reset() -> None:
    """Leaves the world and waits for a place in the next."""
    shutdown()
    init()


def run_fn(
    func: Callable[Concatenate[S, P], T], reset: Callable[[], None]
) -> Callable[Concatenate[S, P], T]:
    """Decorates like `run`, with a way of your own to meet anew: `reset()` leaves the ranks' world
    and enters the next."""

    @functools.wraps(func)
    def wrapper(state: S, *args: P.args, **kwargs: P.kwargs) -> T:
        if not hasattr(state, "sync"):
            raise TypeError(
                "what hvd.elastic.run decorates is called with its state first, such as a "
                f"hvd.elastic.TorchState, not with a {type(state).__name__}"
            )

        def hear(update: Update) -> None:
            state.on_hosts_updated(update.number, update.kind)

        JOB.listen(hear)
        try:
            return _run(func, reset, state, hear, args, kwargs)
        finally:
            JOB.forget(hear)

    return wrapper  # type: ignore[return-value]  # mypy gives the state a name


def _run(
    func: Callable[..., T],
    reset: Callable[[], None],
    state: State,
    hear: Callable[[Update], None],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> T:
    is_reset_needed = False
    while True:
        try:
            if is_reset_needed:
                reset()
                state.on_reset()
                JOB.remind(hear)
                is_reset_needed = False
            state.sync()
            return func(state, *args, **kwargs)
        except HorovodInternalError as error:
            # Not where the ranks could not meet: there is nothing new to go back from.
            if not is_reset_needed:
                _tell_of_no_replacement(error)
                state.restore()
            is_reset_needed = True
        except HostsUpdatedInterrupt:
            # Whether there is somebody new, or somebody who had to go back, this rank cannot know.
            is_reset_needed = True


def _tell_of_no_replacement(error: HorovodInternalError) -> None:
    """Says at once what the ranks that are left may wait for in vain: no launcher has said that it
    replaces ranks, but one that was only cut off comes back by itself."""
    if tells_of_lost_peer(error) and JOB.client() is None:
        say(
            f"{error}. The ranks that are left wait until all have met again. This job was not "
            "started by a launcher that replaces ranks, such as `lockstitch run --min-np 1 …`"
        )
