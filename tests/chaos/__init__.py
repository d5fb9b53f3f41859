"""Real workers under mixed load, while one of them is killed, stopped or cut off.

    python -m tests.chaos --minutes 4 [--seed 1] [--docs]

    __main__.py   the command: rounds, each with a world of its own and one mishap
    networks.py   links between the workers that can be cut
    load.py       what a worker does meanwhile, and what it has seen
    detection.py  apart: how long each way of waiting takes to end in an error
    report.py     what was promised, whether it was kept, and how long deaths went unnoticed

Kept apart from the suite, since its course depends on chance and time. With `--docs` the report
becomes the page docs/explanation/chaos.md.
"""
