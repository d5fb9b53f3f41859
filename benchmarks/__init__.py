"""Lockstitch against the incumbent, `torch.distributed.rpc`, in one run.

    python -m benchmarks [--quick] [--only NAME] [--json FILE]

    __main__.py     the command
    libraries.py    which library is measured, and the guard that it is really that one
    harness.py      worlds of two processes, measured in turns
    plan.py         what is compared with what, and the targets
    cases/          what is timed: one function per case, the same for both libraries
    table.py        the result as a table and as JSON

Method. Each library gets a world of its own: a caller and a callee, two processes with one thread
for arithmetic. Both worlds live during the whole run and take turns, a fraction of a second each,
A B A B …; the figures are medians over all turns, so whatever disturbs the machine disturbs both.
The world whose turn it is not is stopped (SIGSTOP): the incumbent polls while it waits, and that
must not be charged to us. Each turn begins with a few calls that do not count.
"""
