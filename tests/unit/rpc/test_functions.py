"""`async_execution` marks a function and changes nothing else about it."""

from __future__ import annotations

from torch.futures import Future

from lockstitch.rpc.functions import async_execution


@async_execution
def later(value: int, *, plus: int = 0) -> Future[int]:
    """Later."""
    future: Future[int] = Future()
    future.set_result(value + plus)
    return future


class Holder:
    @staticmethod
    @async_execution
    def static() -> Future[int]:
        return later(1)

    @classmethod
    @async_execution
    def of_class(cls) -> Future[int]:
        return later(2)

    @async_execution
    def bound(self) -> Future[int]:
        return later(3)


def test_a_marked_function_runs_as_before() -> None:
    assert later(1, plus=2).wait() == 3
    assert (later.__name__, later.__doc__) == ("later", "Later.")


def test_the_mark_is_seen_on_functions_and_methods_of_all_kinds() -> None:
    for function in (later, Holder.static, Holder.of_class, Holder().bound, Holder.bound):
        assert callable(function._wrapped_async_rpc_function)
