"""Jobs that hang, started without any option: the commands name the cause."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockstitch import observe
from lockstitch.attach.asking import all_entries
from tests.chrome_format import ReadTrace, read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Start = "Callable[..., subprocess.Popen[bytes]]"
PATIENCE_SECONDS = 120

RING = """
    import os, threading
    from lockstitch import rpc
    rank, lock, met = int(os.environ["RANK"]), threading.Lock(), threading.Event()
    def ask():
        met.set()
        with lock:
            return rank
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=6)
    if rank < 3:
        with lock:
            rpc.rpc_sync(f"worker{(rank + 1) % 3}", ask, timeout=0)
    threading.Event().wait()
"""
LEFT_OUT = """
    import time, torch
    import lockstitch.hvd as hvd
    def train():
        hvd.init()
        hvd.allreduce(torch.ones(2), name="first")
        if hvd.rank() == 2:
            time.sleep(1000)  # elsewhere
        hvd.allreduce(torch.ones(2), name="second")
    train()
"""
IN_CPP = """
    import torch
    import lockstitch.c10d
    import torch.distributed as dist
    dist.init_process_group("lockstitch")
    if dist.get_rank() == 1:
        matrix = torch.ones(2500, 2500)
        while True:
            torch.mm(matrix, matrix)  # busy
    dist.all_reduce(torch.ones(2))
"""
DEADLOCK = """
    import os, threading
    from lockstitch import rpc
    rank = int(os.environ["RANK"])
    one, other, both = threading.Lock(), threading.Lock(), threading.Barrier(2)
    def first():
        with one:
            both.wait()
            other.acquire()  # held by second
    def second():
        with other:
            both.wait()
            one.acquire()  # held by first
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    if rank == 0:
        calls = [rpc.rpc_async("worker1", each, timeout=0) for each in (first, second)]
        [each.wait() for each in calls]
    threading.Event().wait()
"""


MIXED = """
    import os, time, torch
    import lockstitch.hvd as hvd
    from lockstitch import autograd, observe, rpc
    from lockstitch.nn import DataParallel, Pipeline
    rank = int(os.environ["RANK"])
    class Slow(torch.nn.Module):  # a part that takes less than its messages its slot would not get
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(256, 256)
        def forward(self, x):
            time.sleep(0.02)
            return self.linear(x)
    def make(seed):
        torch.manual_seed(seed)
        return torch.nn.Linear(16, 16)
    def double(x):
        with torch.profiler.record_function("my range"):
            return 2 * x
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    hvd.init()
    if rank == 0:
        pipeline = Pipeline([rpc.remote(f"worker{i}", make, (i,)) for i in range(2)], chunks=2)
        parallel = DataParallel(Slow(), device_ids=["fork", "fork"])
    weight = torch.ones(4, 16, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    while True:
        if rank == 0:
            with autograd.context() as context_id:
                loss = rpc.rpc_sync("worker1", double, (weight,)).sum()
                autograd.backward(context_id, [loss])
                pipeline.step(context_id, torch.ones(4, 16), torch.ones(4, 16),
                              torch.nn.functional.mse_loss)
            rpc.rpc_async("worker1", double, (1,)).wait()
            parallel(torch.ones(64, 256)).sum().backward()
            optimizer.step()
        hvd.allreduce(torch.ones(4), name="sum")
        observe.step()
"""
MANY_CALLS = """
    import os
    from lockstitch import observe, rpc
    rank = int(os.environ["RANK"])
    def nothing():
        pass
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    while rank == 0:
        for future in [rpc.rpc_async("worker1", nothing) for _ in range(200)]:
            future.wait()
        observe.step()
    rpc.shutdown()
"""


OF_RPC = """
    import os, threading, time, torch
    from lockstitch import autograd, rpc
    from lockstitch.nn import DataParallel, Pipeline
    rank = int(os.environ["RANK"])
    def begin():
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    def sleep():
        time.sleep(1000)  # here
    async def awaits():
        import asyncio
        await asyncio.sleep(1000)  # here
    class Still(torch.nn.Module):
        def __init__(self, sleeps):
            super().__init__()
            self.sleeps, self.linear = sleeps, torch.nn.Linear(4, 4)
        def forward(self, x):
            if self.sleeps or float(x[0, 0]) > 5:
                time.sleep(1000)  # here
            return self.linear(x)
"""
OF_C10D = """
    import time, torch
    import lockstitch.c10d
    import torch.distributed as dist
    dist.init_process_group("lockstitch")
"""
CAUSES = {
    # The callee's program waits in `shutdown`, as those of parameter servers do.
    "callee": (
        OF_RPC
        + """
    begin()
    if rank == 0:
        rpc.rpc_sync("worker1", sleep, timeout=0)
    rpc.shutdown()
    """,
        ("worker1 is waited for by worker0, and waits for nobody:", "time.sleep(1000)  # here"),
    ),
    # Two calls that cross and are worked on are no cycle.
    "sleepers": (
        OF_RPC
        + """
    begin()
    rpc.rpc_sync(f"worker{1 - rank}", sleep, timeout=0)
    """,
        ("worker1 is waited for by worker0, and does not wait for others in that:",
         "worker0 is waited for by worker1, and does not wait for others in that:",
         "time.sleep(1000)  # here"),
    ),
    "coroutine": (
        OF_RPC
        + """
    begin()
    if rank == 0:
        rpc.rpc_sync("worker1", awaits, timeout=0)
    rpc.shutdown()
    """,
        ("worker1 is waited for by worker0, and waits for nobody:",
         "in awaits: await asyncio.sleep(1000)  # here"),
    ),
    "hook": (
        OF_RPC
        + """
    def hooked(x):
        y = 2 * x
        y.register_hook(lambda _gradient: time.sleep(1000))  # here
        return y
    begin()
    if rank == 0:
        with autograd.context() as context_id:
            loss = rpc.rpc_sync("worker1", hooked, (torch.ones(2, requires_grad=True),)).sum()
            autograd.backward(context_id, [loss])
    rpc.shutdown()
    """,
        ("worker1 is waited for by worker0, and waits for nobody:", "in <lambda>: y.register_hook"),
    ),
    # What comes back to who called `backward` tells by the way that it has been worked on.
    "hook at home": (
        OF_RPC
        + """
    begin()
    if rank == 0:
        with autograd.context() as context_id:
            x = rpc.rpc_sync("worker1", torch.neg, (torch.ones(2, requires_grad=True),))
            y = 2 * x
            y.register_hook(lambda _gradient: time.sleep(1000))  # here
            autograd.backward(context_id, [rpc.rpc_sync("worker1", torch.sum, (y,))])
    rpc.shutdown()
    """,
        ("worker0 is waited for by worker1, and waits for nobody:", "in <lambda>: y.register_hook"),
    ),
    "stage": (
        OF_RPC
        + """
    begin()
    if rank == 0:
        stages = [rpc.remote(f"worker{i}", Still, (i == 1,)) for i in range(2)]
        pipeline = Pipeline(stages, chunks=2)
        with autograd.context() as context_id:
            pipeline.step(context_id, torch.ones(4, 4), torch.ones(4, 4),
                          torch.nn.functional.mse_loss)
    rpc.shutdown()
    """,
        ("worker1 is waited for by worker0, and waits for nobody:", "time.sleep(1000)  # here"),
    ),
    "slot": (
        OF_RPC
        + """
    if rank == 0:
        batch = torch.ones(8, 4)
        batch[4:] = 7
        DataParallel(Still(False), device_ids=["fork", "fork"])(batch)
    threading.Event().wait()
    """,
        ("is waited for by rank 0, and waits for nobody:", "waits for forward in slot 1",
         "time.sleep(1000)  # here"),
    ),
    "before": (
        OF_RPC
        + """
    if rank == 1:
        time.sleep(1000)  # loads
    begin()
    """,
        ("rank 1 is waited for by rank 0, and waits for nobody:",
         "rank 0 has come to the meeting of 2 ranks, waits for rank 1",
         "time.sleep(1000)  # loads"),
    ),
    "c10d": (
        OF_C10D
        + """
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(3))
    time.sleep(1000)  # elsewhere
    """,
        ("rank 1 is waited for by rank 0, and waits for nobody:",
         "it has not submitted all_reduce of float32 (3,), operation 1",
         "rank 0 waits for operation 1, which this one has not submitted"),
    ),
    "receiver": (
        OF_C10D
        + """
    if dist.get_rank() == 0:
        dist.recv(torch.ones(3), 1)
    time.sleep(1000)  # elsewhere
    """,
        ("rank 1 is waited for by rank 0, and waits for nobody:",
         "it has not submitted recv 0<-1 of float32 (3,), message 1"),
    ),
}  # fmt: skip
SLOW = """
    import time, torch
    import lockstitch.hvd as hvd
    def compute():
        time.sleep(0.15 if hvd.rank() == 1 else 0.02)
    hvd.init()
    while True:
        compute()
        hvd.allreduce(torch.ones(2), name="gradient")
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def start(script: str, workers: int, name: str = "hung") -> subprocess.Popen[bytes]:
        program = tmp_path / f"{name}.py"
        program.write_text(textwrap.dedent(script))
        command = [sys.executable, "-m", "lockstitch", "run", "--name", name, "--grace", "0.2"]
        started.append(
            subprocess.Popen(
                [*command, "-n", str(workers), str(program)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait()
    # Nothing stays behind, unless this process itself has been a worker in an earlier test.
    assert [entry for entry in all_entries() if entry.pid != os.getpid()] == []


def when(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _holds(condition):
        assert time.monotonic() < deadline


def _holds(condition: Callable[[], object]) -> bool:
    try:
        return bool(condition())
    except observe.JobNotFoundError:
        return False


def text(name: str = "hung") -> list[str]:
    command = [sys.executable, "-m", "lockstitch", "waits", name]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.slow
def test_a_cycle_of_three_calls_among_six_workers(start: Start) -> None:
    start(RING, 6)
    when(lambda: observe.waits("hung").circles)
    lines = text()
    assert lines[2] == (
        "3 workers wait for each other in a cycle: worker0 → worker1 → worker2 → worker0"
    )
    assert "worker0 called __main__:ask on worker1" in lines[3]
    assert lines[4].endswith("in ask: with lock:")
    assert len(lines) < 6 * 6


@pytest.mark.slow
def test_a_collective_that_one_rank_left_out_and_a_worker_that_is_stopped(start: Start) -> None:
    start(LEFT_OUT, 3)
    when(lambda: [each for each in observe.waits("hung").waits if "second" in each.what])
    lines = text()
    assert lines[2] == "rank 2 is waited for by rank 0, rank 1, and waits for nobody:"
    assert lines[3] == "  it has not submitted allreduce 'allreduce.second'"
    assert lines[4].endswith("in train: time.sleep(1000)  # elsewhere")
    (stuck,) = [each for each in observe.status("hung").processes if each.card.rank == "2"]
    os.kill(stuck.card.pid, signal.SIGSTOP)
    try:
        assert re.search(
            r"did not answer within [01]\.\d s; it is stopped by a signal", "\n".join(text())
        )
    finally:
        os.kill(stuck.card.pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_rank_that_is_busy_in_cpp(start: Start) -> None:
    start(IN_CPP, 2)
    when(lambda: observe.waits("hung").culprits)
    assert "torch.mm(matrix, matrix)  # busy" in text()[4]


@pytest.mark.slow
def test_two_functions_that_hold_each_others_lock(start: Start) -> None:
    start(DEADLOCK, 2)
    when(lambda: [each.waits[0].kind for each in observe.waits("hung").culprits] == ["call"])
    lines = "\n".join(text())
    assert "worker1 is waited for by worker0, and waits for nobody:" in lines
    assert "other.acquire()  # held by second" in lines
    assert "one.acquire()  # held by first" in lines


@pytest.mark.slow
def test_workers_of_a_shell_are_one_job_and_a_dead_one_is_seen_by_its_launcher(
    start: Start, tmp_path: Path
) -> None:
    program = tmp_path / "by_hand.py"
    program.write_text(textwrap.dedent(LEFT_OUT))
    common = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29631"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(program)],
            env={**os.environ, **common, "RANK": str(rank)},
            stderr=subprocess.DEVNULL,
        )
        for rank in range(3)
    ]
    try:
        when(
            lambda: [each for each in observe.waits(workers[1].pid).waits if "second" in each.what]
        )
        job = observe.status("by_hand")
        assert [each.card.pid for each in job.processes] == [each.pid for each in workers]
    finally:
        for each in workers:
            each.kill()
            each.wait()


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_of_a_hang_is_named(start: Start, name: str) -> None:
    script, expected = CAUSES[name]
    start(script, 2, name)
    when(lambda: observe.waits(name).culprits)
    when(lambda: all(any(part in line for line in text(name)) for part in expected))
    assert not observe.waits(name).circles


@pytest.mark.slow
def test_the_rank_that_is_slow_is_found_by_looking_again_and_again(start: Start) -> None:
    start(SLOW, 3, "slow")
    when(lambda: len([each for each in observe.status("slow").processes if each.groups]) == 3)
    found = observe.holdups("slow", seconds=2.0)
    assert found[0].participant == "rank 1"
    assert found[0].share > 0.5
    assert "in compute: time.sleep" in found[0].places[0][0]
    command = [sys.executable, "-m", "lockstitch", "waits", "slow", "--seconds", "1"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(r"^  rank 1 was waited for in \d+%, by rank [02], rank [02]$", lines, re.M)


def test_a_job_is_seen_before_its_program_begins_anything(start: Start) -> None:
    start("import time; time.sleep(1000)", 2, "plain")
    when(lambda: len(observe.status("plain").processes) == 2)
    job = observe.status("plain")
    assert job.launcher is not None
    assert [each.rank for each in job.launcher.launched] == [0, 1]
    when(lambda: observe.stacks("plain")[0].main_thread)
    command = [sys.executable, "-X", "importtime", "-m", "lockstitch", "ps"]
    imported = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert not re.search(r"\| +torch$", imported, re.MULTILINE)


def recorded(name: str, path: Path, seconds: float = 1.0) -> ReadTrace:
    command = [sys.executable, "-m", "lockstitch", "trace", name, "--seconds", str(seconds)]
    subprocess.run([*command, "-o", str(path)], check=True, stdout=subprocess.DEVNULL)
    return read_trace(path)


def without_numbers(text: str) -> str:
    return re.sub(r"\d+", "#", text)


@pytest.mark.slow
def test_a_trace_of_a_job_of_every_kind(start: Start, tmp_path: Path) -> None:
    start(MIXED, 2, "mixed")
    when(lambda: len([each for each in observe.status("mixed").processes if each.step]) == 2)
    found = recorded("mixed", tmp_path / "trace.json", 3.0)
    arrows = {
        (each.name, without_numbers(each.begin["name"]), without_numbers(each.end["name"]))
        for each in found.arrows
    }
    assert arrows >= {
        ("call", "call __main__:double", "serve __main__:double"),
        ("reply", "serve __main__:double", "call __main__:double"),
        ("call", "send __main__:double", "serve __main__:double"),
        ("reply", "serve __main__:double", "answer of __main__:double"),
        ("stitch", "stitch of float#[#, #]", "gradient received"),
        ("gradient", "gradient sent", "gradient received"),
        ("handover", "to stage #", "forward of stage #, micro-batch #"),
        ("handover", "to stage #", "backward of stage #, micro-batch #"),
        ("slot", "to slot # (process #)", "forward in slot # (process #)"),
        ("slot", "to slot # (process #)", "backward in slot # (process #)"),
    }
    names = {without_numbers(each["name"]) for each in found.slices}
    assert {"my range", "Optimizer.step#SGD.step", "DataParallel.forward"} <= names
    assert {"backward pass of #", "backward of a component of # nodes"} <= names
    reductions = {begin["name"] for begin, _ in found.asynchronous}
    assert {"allreduce allreduce.sum", "negotiate allreduce allreduce.sum"} <= reductions
    # Calls there and back are whole, but for those at both edges of the window, which processes
    # that wait for a processor do not begin and end at once.
    assert found.about["cut_flow_ends"] <= 0.05 * found.about["flows"]
    (head, *_rest) = (name.partition(" (")[0] for name in found.names.values())
    assert head == "worker0"


@pytest.mark.slow
def test_a_trace_of_tens_of_thousands_of_calls_a_second_is_bounded(
    start: Start, tmp_path: Path
) -> None:
    start(MANY_CALLS, 2, "many")
    when(lambda: any(each.step for each in observe.status("many").processes))
    before, most = _resident("many"), 20_000
    path, rates = tmp_path / "trace.json", calls_made("many")
    command = [sys.executable, "-m", "lockstitch", "trace", "many", "--seconds", "10"]
    subprocess.run([*command, "--most-spans", str(most), "-o", str(path)], check=True)
    made = calls_made("many") - rates
    found = read_trace(path)
    caller, callee = found.about["workers"]
    assert [each["spans"] for each in (caller, callee)] == [most, most]
    # Each call is two spans of the caller, a few of which come while it is asked and told.
    assert 100_000 < caller["spans"] + caller["dropped_spans"] <= 2 * made
    assert 2 * callee["dropped_spans"] <= caller["dropped_spans"] * 1.1
    assert path.stat().st_size < 2 * most * 700
    for pid, resident in _resident("many").items():
        assert resident - before[pid] < 100 << 20


def calls_made(name: str) -> float:
    """How many the workers of a job have sent so far."""
    return sum(
        counter.value
        for each in observe.status(name, rate_seconds=0).processes
        for worker in each.workers
        for counter in worker.counters
        if counter.name == "lockstitch_rpc_calls_total"
    )


def _resident(name: str) -> dict[int, int]:
    told = observe.status(name, rate_seconds=0).processes
    return {each.card.pid: each.system.memory for each in told if each.system and each.workers}


@pytest.mark.slow
def test_a_trace_of_the_demo_has_the_gradient_of_each_stitch(start: Start, tmp_path: Path) -> None:
    demo = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
    command = [sys.executable, "-m", "lockstitch", "run", "--name", "demo", "-n", "3"]
    process = subprocess.Popen(
        [*command, str(demo), "--epochs", "1000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        when(lambda: any(each.step for each in observe.status("demo").processes))
        found = recorded("demo", tmp_path / "trace.json")
    finally:
        process.terminate()
        process.wait()
    kinds = {each.name for each in found.arrows}
    assert {"call", "reply", "stitch", "gradient"} <= kinds
    assert any(each["name"].startswith("Optimizer.step") for each in found.slices)
    calls = [each for each in found.slices if each["name"].startswith("call ")]
    served = [each for each in found.arrows if each.name == "call"]
    assert len(served) >= len(calls) - found.about["cut_flow_ends"] > 0
