"""Large tensors between processes of one host, and everything over TCP."""

from __future__ import annotations

from benchmarks.cases import calls, limits, tensors
from benchmarks.plan import PAIR_OVER_TCP, Comparison, Section, Target, parameters

MEGABYTE = 1 << 20
_LARGEST = 256 * MEGABYTE


def _one_way(megabytes: int, ratio: float) -> Comparison:
    size = megabytes * MEGABYTE
    return Comparison(
        f"{megabytes} MB one way",
        parameters(tensors.send, size),
        Target(ratio),
        parameters(limits.memory_copy, size),
        is_rate=True,
        size=size,
    )


def _echo(megabytes: int, ratio: float) -> Comparison:
    size = megabytes * MEGABYTE
    return Comparison(
        f"{megabytes} MB there and back",
        parameters(tensors.send_and_get_back, size),
        Target(ratio),
        parameters(limits.memory_copy, size, 2),
        is_rate=True,
        size=2 * size,
    )


TENSORS = Section(
    "large tensors, warm; (first one)",
    [
        *(_one_way(megabytes, ratio) for megabytes, ratio in ((1, 4.0), (16, 2.0), (256, 4.0))),
        *(_echo(megabytes, ratio) for megabytes, ratio in ((1, 3.0), (16, 3.0), (256, 4.0))),
    ],
)

OVER_TCP = Section(
    "over TCP, loopback",
    [
        Comparison(
            "no-op rpc_sync over TCP",
            calls.call_nothing,
            Target(0.2),
            parameters(limits.ping_pong, 1, True, True),
            setting=PAIR_OVER_TCP,
        ),
        Comparison(
            "256 MB one way over TCP",
            parameters(tensors.send, _LARGEST),
            Target(1.5),
            parameters(limits.tcp_stream, _LARGEST),
            is_rate=True,
            size=_LARGEST,
            setting=PAIR_OVER_TCP,
        ),
    ],
    other="PyTorch (uv)",
)
