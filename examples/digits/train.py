"""Learns handwritten digits with a model whose parts live in three processes, and proves it equal.

Starts two workers, trains the split model from here, trains the same model in one process with
plain PyTorch, and compares: every loss and every parameter. Exit status 1 if they differ by more
than 1e-9 or fewer than 95 % of the unseen digits are read correctly.

    python examples/digits/train.py [--epochs N] [--seed N] [--picture FILE]
    lockstitch run -n 3 examples/digits/train.py            # the same under a launcher
"""

import argparse
import contextlib
import os
import sys
import tempfile
from pathlib import Path

import torch
from data import load_split
from model import SplitModel, WholeModel
from picture import draw_picture
from report import Report
from torch import multiprocessing
from training import Difference, count_steps, train

from lockstitch import observe, rpc

NAMES = ["trainer", "worker1", "worker2"]


def parse_arguments():
    parser = argparse.ArgumentParser(description="Learn handwritten digits in three processes.")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, default=Path("out/learning-curve.png"))
    return parser.parse_args()


def join(rank, init_method="env://"):
    torch.set_num_threads(1)  # three processes share the cores; and sums keep their order
    options = rpc.TensorPipeRpcBackendOptions(init_method=init_method)
    rpc.init_rpc(NAMES[rank], rank=rank, world_size=3, rpc_backend_options=options)


def work(index, init_method):
    """A worker's whole life: join, serve the trainer's calls, leave when all are done."""
    join(index + 1, init_method)
    rpc.shutdown()


@contextlib.contextmanager
def two_workers():
    """Starts the workers as processes of their own; gives the place where all three meet."""
    with tempfile.TemporaryDirectory() as folder:
        meeting_place = f"file://{folder}/meeting"
        workers = multiprocessing.spawn(work, args=(meeting_place,), nprocs=2, join=False)
        try:
            yield meeting_place
            while not workers.join():
                pass
        finally:
            for process in workers.processes:
                process.kill()


def telling(on_step):
    """Also tells Lockstitch of each step: `lockstitch run` and `lockstitch status` show it."""

    def tell(training):
        observe.step(len(training.losses), loss=training.losses[-1])
        on_step(training)

    return tell


def run_trainer(arguments, report):
    """Trains both models, shows everything; returns whether the promises were kept."""
    digits, test = load_split(arguments.seed)
    options = (digits, test, arguments.epochs, arguments.seed)
    steps = count_steps(digits, arguments.epochs)

    model = SplitModel(arguments.seed)
    report.show_model(model.processes())
    with report.progress() as progress:
        split = train(model, *options, telling(progress.follow("three processes", steps)))
        whole = train(WholeModel(arguments.seed), *options, progress.follow("one process", steps))

    difference = Difference.between(split, whole)
    report.show_digits(test, split.guesses)
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    draw_picture(arguments.picture, split, whole, test)
    return report.show_comparison(split, whole, difference, arguments.picture)


def main():
    arguments, report = parse_arguments(), Report()
    if "RANK" in os.environ:  # a launcher started us, and two more like us
        rank = int(os.environ["RANK"])
        join(rank)
        kept = run_trainer(arguments, report) if rank == 0 else True
        rpc.shutdown()
    else:
        with two_workers() as meeting_place:
            with report.waiting("starting two workers"):
                join(0, meeting_place)
            kept = run_trainer(arguments, report)
            rpc.shutdown()
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
