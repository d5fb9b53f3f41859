"""Small calls, references, nests, and workers that are busy with something else."""

from __future__ import annotations

from benchmarks.cases import busy, calls, limits, nests, references
from benchmarks.plan import TRIO, Comparison, Section, Target, parameters

IN_FLIGHT = 64
EXPECTED_TO_HANG_SECONDS = 3.0

_ONE_TRIP = limits.ping_pong
_TWO_TRIPS = parameters(limits.ping_pong, 2)
_WAVE = parameters(limits.in_flight, IN_FLIGHT)

CALLS = Section(
    "calls",
    [
        Comparison("no-op rpc_sync", calls.call_nothing, Target(0.08, distance=2.5), _ONE_TRIP),
        Comparison("echo of 4 floats", calls.call_echo, Target(0.1), _ONE_TRIP),
        Comparison("torch.add of 4 floats", calls.call_builtin, Target(0.15), _ONE_TRIP),
        Comparison(
            "64 in flight: no-op",
            parameters(calls.call_nothing_in_flight, IN_FLIGHT),
            Target(8.0),
            _WAVE,
            is_rate=True,
        ),
        Comparison(
            "64 in flight: echo",
            parameters(calls.call_echo_in_flight, IN_FLIGHT),
            Target(7.0),
            _WAVE,
            is_rate=True,
        ),
        Comparison(
            "both directions at once", calls.call_from_both_sides, Target(6.0), is_rate=True
        ),
        Comparison("2 workers at once: no-op", calls.call_each_of_two, Target(0.5), setting=TRIO),
        Comparison("8 caller threads", calls.call_from_many_threads, Target(2.0), is_rate=True),
        Comparison("remote + to_here", references.make_and_fetch, Target(0.2), _TWO_TRIPS),
        Comparison(
            "RRef: create and delete", references.make_and_delete, Target(3.0), is_rate=True
        ),
        Comparison(
            "no-op beside two CPU hogs",
            calls.call_nothing,
            Target(0.1, p99_seconds=0.005),
            _ONE_TRIP,
            hogs=2,
        ),
    ],
)

NESTS = Section(
    "calls inside calls, per hop",
    [
        Comparison(
            "16 calls, each calls back",
            parameters(nests.nests, nests.POOL, 2),
            patience_seconds=EXPECTED_TO_HANG_SECONDS,
        ),
        Comparison(
            "every thread of both pools waits",
            parameters(nests.nests, nests.POOL, 3),
            patience_seconds=EXPECTED_TO_HANG_SECONDS,
        ),
        Comparison(
            "40 nests of 8 at once",
            parameters(nests.nests, 40, 8),
            patience_seconds=EXPECTED_TO_HANG_SECONDS,
        ),
        Comparison(
            "200 hops",
            parameters(nests.nests, 1, 200),
            patience_seconds=EXPECTED_TO_HANG_SECONDS,
        ),
    ],
)

BUSY = Section(
    "no-op to a busy worker",
    [
        Comparison("it runs Python", parameters(busy.call_a_busy_worker, busy.run_python)),
        Comparison(
            "it runs Python in turns of 0.5 ms",
            parameters(busy.call_a_busy_worker, busy.run_python_in_short_turns),
        ),
        Comparison(
            "it runs large operators", parameters(busy.call_a_busy_worker, busy.run_operators)
        ),
    ],
)
