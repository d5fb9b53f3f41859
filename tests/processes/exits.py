"""A program that ends without `shutdown`, in many ways, while something is under way: functions
that the other worker called, calls of its own, a backward pass, a reference in the making.

    python -m tests.processes.exits ROUNDS [WAY …]

plays the ways (default all) in turns, that many rounds, each with two processes; prints what ended
in another way than it should have, and exits with 0 if nothing did."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lockstitch import autograd, rpc
from tests.processes.slow import pass_through_slow

if TYPE_CHECKING:
    from collections.abc import Callable

BUSY = threading.Event()
MOST_SECONDS = 60.0
OTHER = "worker1"


def compute_for_ever() -> None:
    ones = torch.ones(1000)
    BUSY.set()
    while True:
        ones = ones * 1.0000001


def wait_for_ever() -> None:
    BUSY.set()
    threading.Event().wait()


def compute_in_callback() -> None:
    future = rpc.rpc_async("worker0", torch.add, (1, 2))
    future.add_done_callback(lambda _future: compute_for_ever())


# ------------------------------------------------------------ what the one that ends has under way


def call_without_waiting() -> None:
    rpc.rpc_async(OTHER, wait_for_ever, timeout=0)


def make_a_reference() -> None:
    rpc.remote(OTHER, torch.ones, (1000,))


def differentiate() -> None:
    def train(function: Callable[..., torch.Tensor], *args: float) -> None:
        with autograd.context() as context:
            leaf = torch.ones(3, requires_grad=True)
            loss = rpc.rpc_sync(OTHER, function, (leaf, *args), timeout=0).sum()
            BUSY.set()
            autograd.backward(context, [loss])

    # What torch does for the first time it enters into a list of the C library, whose lock stays
    # locked for good in a child that is forked at that moment: it could not end in good order.
    train(torch.neg)
    BUSY.clear()
    threading.Thread(target=train, args=(pass_through_slow, MOST_SECONDS), daemon=True).start()
    BUSY.wait()


# ------------------------------------------------------------ how it ends, and its exit code


def end_of_program() -> None:
    """Returns."""


def exception() -> None:
    raise ValueError("the program fails")


def exit_in_a_thread() -> None:
    thread = threading.Thread(target=lambda: sys.exit(5))
    thread.start()
    thread.join()


def exit_at_once() -> None:
    os._exit(4)


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()


def interrupted() -> None:
    """Ctrl-C, and once more while the interpreter goes down."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main, (is_over, tell) = os.getpid(), os.pipe()
    if os.fork() == 0:
        os.read(is_over, 1)
        for _ in range(2):
            os.kill(main, signal.SIGINT)
            threading.Event().wait(0.02)
        os._exit(0)
    # One that came while the fork is being concluded would be lost: Python raises nothing there.
    os.write(tell, b"!")
    threading.Event().wait()


def child_exits() -> None:
    """A forked child ends as programs do; then this one."""
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0


def forever_in_a_child() -> None:
    """A child that outlives this one does not keep its peers waiting."""
    if os.fork() == 0:
        threading.Event().wait(1)
        os._exit(0)


SERVING: tuple[Callable[[], None], ...] = (compute_for_ever, wait_for_ever, compute_in_callback)
DOING: tuple[Callable[[], None], ...] = (call_without_waiting, make_a_reference, differentiate)
ENDS: dict[Callable[[], None], set[int]] = {
    end_of_program: {0},
    exception: {1},
    exit_in_a_thread: {0},
    exit_at_once: {4},
    terminated: {128 + signal.SIGTERM},
    interrupted: {-signal.SIGINT, 1, 130},
    child_exits: {0},
    forever_in_a_child: {0},
}


def join(rank: int, store: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=store)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)


def serve_and_end(rank: int, store: str, function: Callable[[], None]) -> None:
    """Worker 1 ends while functions of worker 0 run."""
    join(rank, store)
    if rank == 0:
        for _ in range(3):
            rpc.rpc_async("worker1", function, timeout=0)
        rpc.rpc_sync("worker1", torch.add, (1, 2), timeout=0)
        os._exit(0)
    BUSY.wait()


def do_and_end(rank: int, store: str, do: Callable[[], None], end: Callable[[], None]) -> None:
    """Worker 0 ends in that way while it does something; worker 1 sees that, and ends too."""
    join(rank, store)
    if rank == 0:
        do()
        end()
        return
    gone = threading.Event()
    rpc.add_membership_callback(lambda event: gone.set() if event.kind != "joined" else None)
    try:
        rpc.rpc_sync("worker0", wait_for_ever, timeout=0)
    except RuntimeError:
        gone.wait()


def ways() -> dict[str, tuple[Callable[[int, str], None], set[int]]]:
    """What each process runs, and how the one that ends may end, by name."""
    found: dict[str, tuple[Callable[[int, str], None], set[int]]] = {}
    for function in SERVING:

        def serve(rank: int, store: str, function: Callable[[], None] = function) -> None:
            serve_and_end(rank, store, function)

        found[function.__name__] = (serve, {0})
    for end, codes in ENDS.items():
        for do in DOING:

            def play(
                rank: int, store: str, do: Callable[[], None] = do, end: Callable[[], None] = end
            ) -> None:
                do_and_end(rank, store, do, end)

            found[f"{end.__name__}+{do.__name__}"] = (play, codes)
    return found


def run_round(play: Callable[[int, str], None], codes: set[int]) -> str:
    """What went wrong in one round; empty if nothing did."""
    with tempfile.TemporaryDirectory() as folder:
        store = (Path(folder) / "store").as_uri()
        children: list[int] = []
        for rank in range(2):
            child = os.fork()
            if child == 0:
                play(rank, store)
                sys.exit(0)  # the interpreter is taken down as at any program's end
            children.append(child)
        ended = [wait_for(child) for child in children]
        fine = ended[0] in codes | {0} and ended[1] == 0
        return "" if fine else f"exit codes {ended}"


def wait_for(child: int) -> int | str:
    """Its exit code; one that hangs is killed."""
    end, pause = time.monotonic() + MOST_SECONDS, threading.Event()
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        pause.wait(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


def main(rounds: int, names: list[str]) -> int:
    torch.set_num_threads(1)
    chosen = {name: way for name, way in ways().items() if not names or name in names}
    order, wrong = list(chosen), []
    for number in range(rounds):
        name = order[number % len(order)]
        outcome = run_round(*chosen[name])
        if outcome:
            wrong.append(f"{name}: {outcome}")
    print(f"{rounds} rounds of {len(order)} ways; ended otherwise than they should: {wrong}")
    return bool(wrong)


if __name__ == "__main__":
    code = main(int(sys.argv[1]), sys.argv[2:])
    sys.stdout.flush()
    os._exit(code)
