"""Backward passes; the limit is the same graph in one process, by torch's engine alone."""

from __future__ import annotations

from benchmarks.cases import backward
from benchmarks.plan import FAST, Comparison, Section, Target

_MESSAGES_DOMINATE, _LOCAL_WORK_DOMINATES = Target(0.5), Target(0.8)
_HANG_SECONDS = 3.0

BACKWARD = Section(
    "backward",
    [
        Comparison(
            "one call", backward.one_call, _MESSAGES_DOMINATE, backward.one_call_in_one_process
        ),
        Comparison(
            "chain of 20 hops",
            backward.chain_of_hops,
            _MESSAGES_DOMINATE,
            backward.chain_in_one_process,
        ),
        Comparison(
            "10,000 nodes on the callee",
            backward.long_graph_on_the_callee,
            _LOCAL_WORK_DOMINATES,
            backward.long_graph_in_one_process,
        ),
        Comparison(
            "3-layer MLP, 1M parameters",
            backward.mlp_on_the_callee,
            _LOCAL_WORK_DOMINATES,
            backward.mlp_in_one_process,
        ),
        Comparison(
            "f(h) + remote(h)",
            backward.used_here_and_there,
            _MESSAGES_DOMINATE,
            backward.used_twice_in_one_process,
        ),
        Comparison(
            "100 calls share h",
            backward.calls_that_share,
            _MESSAGES_DOMINATE,
            backward.sharing_in_one_process,
        ),
        Comparison(  # the incumbent waits for the gradient of what nobody used
            "sent, but unused",
            backward.sent_but_unused,
            limit=backward.unused_in_one_process,
            patience_seconds=_HANG_SECONDS,
        ),
    ],
)

SMART_AGAINST_FAST = Section(
    "our SMART against our FAST",
    [
        Comparison(f"{row.name}, smart", row.prepare, Target(1.1), other=FAST)
        for row in BACKWARD.comparisons
        if row.patience_seconds is None  # all take part in what is sent
    ],
    other="FAST",
)
