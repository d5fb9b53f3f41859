"""For tests of programs that use Lockstitch, and of Lockstitch itself.

    cluster.py      LocalCluster: several workers in one process
    processes.py    ProcessCluster: several workers, each a process of its own
    faults.py       Faults: mishaps, written as a script
    traffic.py      Traffic: how many messages that took
    clock.py        ManualClock: time that the test owns
    gradients.py    assert_same_gradients: distributed equals local
    leaks.py        no_leaks: nothing is left behind
    time_limits.py  how long to wait for what should happen soon

These modules may use all others of Lockstitch; no other uses them.
"""

from lockstitch.testing.clock import ManualClock
from lockstitch.testing.cluster import LocalCluster
from lockstitch.testing.faults import Faults
from lockstitch.testing.gradients import assert_same_gradients
from lockstitch.testing.leaks import no_leaks
from lockstitch.testing.processes import ProcessCluster
from lockstitch.testing.traffic import Traffic

__all__ = [
    "LocalCluster",
    "ProcessCluster",
    "Faults",
    "Traffic",
    "ManualClock",
    "assert_same_gradients",
    "no_leaks",
]
