"""How cost grows with the size of a message, the hops of a pass, the calls in flight."""

from __future__ import annotations

from benchmarks.cases import backward, calls, tensors
from benchmarks.plan import Comparison, Section, parameters

KILOBYTE = 1 << 10
_SIZES = [2**exponent for exponent in range(6, 27, 4)]
_HOPS = [1, 2, 4, 8, 16, 32]
_IN_FLIGHT = [1, 4, 16, 64, 256]


def show_size(size: int) -> str:
    """In the largest unit that leaves a whole number."""
    for unit in ("B", "KB", "MB"):
        if size < KILOBYTE:
            return f"{size} {unit}"
        size //= KILOBYTE
    return f"{size} GB"


SIZES = Section(
    "echo of a tensor, by size",
    [
        Comparison(
            f"echo of {show_size(size)}", parameters(tensors.send_and_get_back, size), x=size
        )
        for size in _SIZES
    ],
    x_label="bytes of the tensor",
    is_curve=True,
)

HOPS = Section(
    "backward, by hops",
    [
        Comparison(f"backward over {hops} hops", parameters(backward.chain_of_hops, hops), x=hops)
        for hops in _HOPS
    ],
    x_label="hops of the chain",
    is_curve=True,
)

OUTSTANDING = Section(
    "no-op, by calls in flight",
    [
        Comparison(
            f"no-op, {count} in flight", parameters(calls.call_nothing_in_flight, count), x=count
        )
        for count in _IN_FLIGHT
    ],
    x_label="calls in flight",
    is_curve=True,
)

CURVES = [SIZES, HOPS, OUTSTANDING]
