"""Programs on Spark, each run by `python` as a user would: `spark_programs.py NAME MASTER`.

The last line that a program prints is its outcome, as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import threading
import time
import urllib.request
from pathlib import Path

from pyspark.sql import SparkSession


def session(master, **settings):
    builder = SparkSession.builder.master(master).appName("lockstitch")
    defaults = {"spark.ui.showConsoleProgress": "false", "spark.ui.enabled": "false"}
    for name, value in {**defaults, **settings}.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


def train(hvd, torch, steps=3):
    """A training of the ranks, or, in a world of one, of one process on everybody's data."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    data, target = torch.randn(8, 4), torch.randn(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if hvd.size() > 1:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    share = len(data) // hvd.size()
    mine = slice(hvd.rank() * share, (hvd.rank() + 1) * share)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(data[mine]), target[mine]).backward()
        optimizer.step()
    return [parameter.tolist() for parameter in model.parameters()]


def of_horovod(magic_number):
    """As it stands in programs of Horovod."""
    import horovod.spark.task
    import horovod.torch as hvd
    import torch

    hvd.init()
    print(f"Hello, rank = {hvd.rank()}, magic_number = {magic_number}")
    assert horovod.spark.task.get_available_devices() == []
    return hvd.rank(), hvd.size(), train(hvd, torch), os.getpid(), os.environ.get("MINE")


def training(master):
    import lockstitch

    with lockstitch.replace("horovod"):
        import horovod.spark
        import torch

        # As many ranks as there are cores, by default: of executors that have come.
        all_come = {"spark.cores.max": "4", "spark.scheduler.minRegisteredResourcesRatio": "1.0"}
        spark, out = session(master, **all_come), io.StringIO()
        first = horovod.spark.run(of_horovod, args=(42,), env={"MINE": "1"}, stdout=out)
        again = horovod.spark.run(of_horovod, args=(43,), num_proc=2, stdout=out)
        spark.stop()
        alone = train(type("World", (), {"size": lambda: 1, "rank": lambda: 0}), torch)
    return {
        "ranks": [(rank, size) for rank, size, *_ in first],
        "again": [(rank, size, mine) for rank, size, _, _, mine in again],
        "mine": [each[4] for each in first],
        "processes": len({each[3] for each in [*first, *again]}),
        "largest_difference": max(
            (torch.tensor(ours) - torch.tensor(plain)).abs().max().item()
            for each in first
            for ours, plain in zip(each[2], alone, strict=True)
        ),
        "out": sorted(out.getvalue().splitlines()),
    }


def failing(how):
    from lockstitch import hvd

    hvd.init()
    if hvd.rank() == 1 and how == "raises":
        raise LookupError("the bug")
    if hvd.rank() == 1:
        os.kill({"rank": os.getpid(), "task": os.getppid()}[how], signal.SIGKILL)
    hvd.barrier()


def faults(master):
    import lockstitch.hvd.spark

    spark, found = session(master), {}
    for how in ("raises", "rank", "task"):
        began_at = time.monotonic()
        try:
            lockstitch.hvd.spark.run(failing, (how,), num_proc=2, stdout=io.StringIO())
        except RuntimeError as error:
            found[how] = [str(error), repr(error.__cause__), time.monotonic() - began_at]
    began_at = time.monotonic()
    try:
        lockstitch.hvd.spark.run(print, num_proc=5)
    except RuntimeError as error:
        found["too many"] = [str(error), "", time.monotonic() - began_at]
    rows = spark.sparkContext.parallelize(range(4), 4)
    busy = threading.Thread(target=lambda: rows.foreach(lambda _: threading.Event().wait(8)))
    busy.start()
    threading.Event().wait(1)  # until Spark has given the cores away
    try:
        lockstitch.hvd.spark.run(print, num_proc=2, start_timeout=3)
    except TimeoutError as error:
        found["busy"] = [str(error), "", 0.0]
    busy.join()
    found["afterwards"] = lockstitch.hvd.spark.run(os.getpid, num_proc=2)
    spark.stop()
    try:
        lockstitch.hvd.spark.run(print)
    except RuntimeError as error:
        found["stopped"] = [str(error), "", 0.0]
    return found


def look_for_secret(folders):
    """On each rank: the secret, and which files and processes of this machine tell of it."""
    from lockstitch import hvd
    from lockstitch.trust import find_secret

    hvd.init()
    text = find_secret(None, None, os.environ).text()
    found = []
    if hvd.rank() == 0:
        files = [*Path("/proc").glob("[0-9]*/environ"), *Path("/proc").glob("[0-9]*/cmdline")]
        files += [each for folder in folders for each in Path(folder).rglob("*") if each.is_file()]
        own = Path(os.environ["LOCKSTITCH_SECRET_FILE"])
        for file in files:
            with contextlib.suppress(OSError):
                if text.encode() in file.read_bytes() and not file.name.startswith("secret"):
                    found.append(str(file))
        assert own.stat().st_mode & 0o777 == 0o600
    hvd.barrier()
    return text, found


def secrets(master):
    import tempfile

    import lockstitch.hvd.spark

    with tempfile.TemporaryDirectory() as folder:
        events, work = Path(folder, "events"), Path(folder, "local")
        events.mkdir()
        spark = session(
            master,
            **{
                "spark.ui.enabled": "true",
                "spark.ui.port": "0",
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": f"file://{events}",
                "spark.eventLog.compress": "false",
                "spark.local.dir": str(work),
            },
        )
        context = spark.sparkContext
        import pyspark

        home = Path(pyspark.__file__).parent / "work"
        results = lockstitch.hvd.spark.run(
            look_for_secret, ([folder, str(home)],), stdout=io.StringIO()
        )
        text, found = results[0]
        root = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
        pages = ["environment", "jobs", "stages", "executors", "stages/0/0", "allexecutors"]
        for page in pages:
            with urllib.request.urlopen(f"{root}/{page}") as answer:
                if text in answer.read().decode():
                    found.append(page)
        conf = text in repr(context.getConf().getAll())
        spark.stop()
        logs = [each for each in [*events.rglob("*"), *home.rglob("*")] if each.is_file()]
        found += [str(each) for each in logs if text.encode() in each.read_bytes()]
    return {
        "secrets": len({each for each, _ in results}),
        "found": found,
        "in_conf": conf,
        "pages": len(pages),
        "logs": len(logs),
    }


def in_worlds(folder):
    """Trains while a rank of the first world kills its own task; returns the worlds it was in."""
    import torch

    from lockstitch import hvd

    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, step=0)
    sizes = []

    @hvd.elastic.run
    def loop(state):
        while state.step < 30 or (hvd.size() < 3 and state.step < 10_000):
            first_death = Path(folder, "killed")
            if state.step == 5 and hvd.rank() == 1 and not first_death.exists():
                first_death.touch()
                os.kill(os.getppid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(torch.ones(1, 2)).square().mean().backward()
            optimizer.step()
            state.step += 1
            if not sizes or sizes[-1] != hvd.size():
                sizes.append(hvd.size())
            state.commit()
            if state.step >= 30:
                threading.Event().wait(0.05)

    loop(state)
    return hvd.rank(), sizes, model.weight.tolist(), state.step


def elastic(master):
    import tempfile

    import lockstitch.hvd.spark

    spark, found = session(master), {}
    with tempfile.TemporaryDirectory() as folder:
        began_at = time.monotonic()
        found["results"] = lockstitch.hvd.spark.run_elastic(
            in_worlds, (folder,), num_proc=3, min_num_proc=2, start_timeout=300
        )
        found["seconds"] = time.monotonic() - began_at
    try:
        lockstitch.hvd.spark.run_elastic(lambda: 1 / 0, num_proc=2)
    except RuntimeError as error:
        found["failed"] = [str(error), repr(error.__cause__)]
    spark.stop()
    return found


def lives(pid):
    """Whether a process is there, and more than what its parent has not yet looked at."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def interrupted(master):
    import tempfile

    import lockstitch.hvd.spark

    def wait(folder):
        Path(folder, str(os.getpid())).touch()
        threading.Event().wait()

    def interrupt(folder):
        while len(os.listdir(folder)) < 2:
            threading.Event().wait(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    spark, found = session(master), {}
    for run in (lockstitch.hvd.spark.run, lockstitch.hvd.spark.run_elastic):
        with tempfile.TemporaryDirectory() as folder:
            threading.Thread(target=interrupt, args=(folder,), daemon=True).start()
            try:
                run(wait, (folder,), num_proc=2)
            except KeyboardInterrupt:
                raised_at = time.monotonic()
                while any(map(lives, os.listdir(folder))):
                    threading.Event().wait(0.01)
                found[run.__name__] = time.monotonic() - raised_at
    spark.stop()
    return found


def allocated(master):
    import tempfile

    import lockstitch.hvd.spark

    spark = session(
        master,
        **{
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.minExecutors": "0",
            "spark.dynamicAllocation.maxExecutors": "2",
        },
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "killed").touch()  # so that no rank kills itself
        results = lockstitch.hvd.spark.run_elastic(in_worlds, (folder,), num_proc=3)
    spark.stop()
    return {"results": results}


def under_torch_distributor(factor):
    import torch

    from lockstitch import hvd

    hvd.init()
    return hvd.size(), hvd.allreduce(torch.tensor([factor]), op=hvd.Sum).item()


def distributor(master):
    from pyspark.ml.torch.distributor import TorchDistributor

    spark = session(master)
    done = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
    value = done.run(under_torch_distributor, 2.5)
    spark.stop()
    return value


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](sys.argv[2])))
