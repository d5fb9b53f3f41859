"""Lockstitch against the incumbent, `torch.distributed.rpc`, in one run.

    python -m benchmarks [--quick] [--only NAME] [--out FOLDER] [--json FILE] [--docs]
    python -m benchmarks --from-json FILE … [--docs]

    __main__.py     the command
    options.py      what it was asked
    plan.py         the words of the plan: comparisons, targets, how much time all may take
    sections/       the plan: what is compared with what, and what is promised
    cases/          what is timed: one function per case, the same for both libraries
    libraries.py    which library is measured, and the guard that it is really that one
    worlds.py       worlds of processes, run in turns
    member.py       the life of one of their processes
    runner.py       carries the plan out
    growth/         how everything grows with the number of workers
    result.py       from samples to rows
    report.py       all rows of a run, as JSON
    table.py        … as a table
    pictures.py     … as pictures
    page.py         … as a page of the documentation
    machine.py      what the figures were taken on

How it is measured, and why so, is written down in docs/explanation/performance.md.
"""
