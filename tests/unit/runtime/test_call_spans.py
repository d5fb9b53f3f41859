"""A traced call runs where there is a tracer or not, and says what its user has called."""

from __future__ import annotations

import operator

import pytest

from lockstitch import rpc
from lockstitch.errors import SerializationError
from lockstitch.runtime.call_spans import CALL_SPANS, traced
from lockstitch.testing import LocalCluster


class Silent:
    """A tracer that tells of the caller, and makes no spans."""

    def carrier(self) -> dict[str, str]:
        return {"traceparent": "00-1-2-01"}


def test_a_callee_without_a_tracer_runs_the_function_as_ever() -> None:
    assert CALL_SPANS.tracer is None
    run, args, kwargs = traced(Silent(), (operator.add, (2, 3), None))  # type: ignore[arg-type]
    with LocalCluster(2) as cluster, cluster["worker0"].active():
        assert rpc.rpc_sync("worker1", run, args, kwargs) == 5


def test_an_error_of_sending_names_what_the_user_has_called() -> None:
    run, args, _ = traced(Silent(), (operator.add, (2, (each for each in ())), None))  # type: ignore[arg-type]
    with (
        LocalCluster(2) as cluster,
        cluster["worker0"].active(),
        pytest.raises(SerializationError, match=r"a call of add to worker .*args\[1\]"),
    ):
        rpc.rpc_sync("worker1", run, args)
