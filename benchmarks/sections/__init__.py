"""What is compared with what, and what is promised: the rows of the table, in its order.

calls.py       small calls, references, nests, busy workers
tensors.py     large tensors, TCP
backward.py    backward passes; our two modes against each other
programs.py    whole programs
curves.py      cost against message size, hops, outstanding calls
"""

from benchmarks.sections.backward import BACKWARD, SMART_AGAINST_FAST
from benchmarks.sections.calls import BUSY, CALLS, NESTS
from benchmarks.sections.curves import CURVES
from benchmarks.sections.programs import PROGRAMS
from benchmarks.sections.tensors import OVER_TCP, TENSORS

SECTIONS = [
    CALLS,
    TENSORS,
    BACKWARD,
    SMART_AGAINST_FAST,
    NESTS,
    BUSY,
    *CURVES,
    OVER_TCP,
    PROGRAMS,
]

__all__ = ["SECTIONS"]
