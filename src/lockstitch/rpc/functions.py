"""`async_execution`: marks a function whose return value is a future of what the caller gets.

The callee runs such a function, keeps its future, and is free again; the reply leaves when the
future completes. So a function may wait for other calls, or for other callers, without a thread.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.futures import Future

P = ParamSpec("P")
T = TypeVar("T")


def async_execution(fn: Callable[P, Future[T]]) -> Callable[P, Future[T]]:
    """Marks `fn`, which returns a `torch.futures.Future`, to be run without holding a thread.

    The caller of `rpc_sync`, `rpc_async` or `remote` gets the future's value, never the future. An
    exception set on the future is raised at the caller. With `staticmethod` and `classmethod` this
    must be the inner decorator. Returning anything but a future is a `RuntimeError` at the caller.

        >>> @rpc.functions.async_execution
        ... def add_via(to, x, y, z):
        ...     return rpc.rpc_async(to, torch.add, args=(x, y)).then(lambda f: f.wait() + z)
        >>> rpc.rpc_sync("worker1", add_via, args=("worker2", torch.ones(2), 1, 1))
    """

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return fn(*args, **kwargs)

    # The mark that the callee looks for; its name is the incumbent's, as programs test for it.
    wrapper._wrapped_async_rpc_function = fn  # type: ignore[attr-defined]
    return wrapper
