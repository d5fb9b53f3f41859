"""Steps of five models on two slots, beside the plain module, the original's algorithm and
DistributedDataParallel over Gloo.

    python -m benchmarks.data_parallel [--only lstm conv] [--seconds 15]

For each model the median time of a step (forward, backward, an optimizer's step), in ms:

    plain          the module, with as many threads as torch takes by itself
    one            the module with one thread
    original       what torch.nn.DataParallel does: replicas for each call, threads, backward here
    ddp            two processes with half of the batch each, one thread each
    thread, fork   slots of these kinds
    automatic      `DataParallel` without `device_ids`, after its calibration, and what it chose

The ways take turns, a few steps each, of which the first does not count: so that a machine that
slows down slows them all, and none finds the other's data in its caches. Targets: the best slots at
most 0.95 times DDP and 0.65 times the original; automatic at most 1.05 times plain.

`tiny` shows what a step costs beside its arithmetic, among other ways; `fixed` the same for a
program that does nothing else: thirty steps in a row, of which the first five do not count. Targets
over plain: threads 0.2 ms, forks 0.3 ms.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lockstitch.nn import DataParallel, parallel

if TYPE_CHECKING:
    from collections.abc import Callable

_STEPS: Final = 4  # of one way in a row; the first does not count
_CALIBRATION: Final = 20
_WAYS: Final = ("plain", "one", "original", "ddp", "thread", "fork", "automatic")
_WARMING_ROUNDS: Final = 2
_FIXED: Final = "fixed"
_FIXED_STEPS: Final = 30
_FIXED_WARMING: Final = 5


class Loop(nn.Module):
    """An LSTM cell, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(32, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x`: (rows, steps, 32)."""
        state: Any = None
        for i in range(x.shape[1]):
            state = self.cell(x[:, i], state)
        output: torch.Tensor = state[0]
        return output


class Small(nn.Module):
    """Five hundred small operators."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x`: (rows, 16)."""
        for _ in range(250):
            x = torch.tanh(x * self.scale)
        return x


class Original(nn.Module):
    """The original's algorithm, on the CPU."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> Any:
        """Replicas, a thread for each, and the outputs joined."""
        places = ["cpu", "cpu"]
        inputs, named = parallel.scatter_kwargs((x,), {}, places)
        replicas = parallel.replicate(self.module, places)
        return parallel.gather(parallel.parallel_apply(replicas, inputs, named, places), -1)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()).append(
        nn.Linear(1024, 64)
    )


def _conv() -> nn.Module:
    layers = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten(2)]
    return nn.Sequential(*layers)


def _transformer() -> nn.Module:
    return nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)


def _tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lstm": (Loop, (64, 50, 32)),
    "small": (Small, (64, 16)),
    "mlp": (_mlp, (256, 512)),
    "conv": (_conv, (64, 3, 32, 32)),
    "transformer": (_transformer, (64, 32, 128)),
    "tiny": (_tiny, (8, 8)),
}


class Runner:
    """Steps of one way."""

    def __init__(self, module: nn.Module, model: nn.Module, x: torch.Tensor, threads: int) -> None:
        self.model = model
        self._x = x
        self._threads = threads
        self._optimizer = torch.optim.SGD(module.parameters(), 1e-3)

    def steps(self, count: int) -> list[float]:
        """The seconds that each but the first took."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        times = []
        for _ in range(count):
            start = time.perf_counter()
            self._optimizer.zero_grad()
            self.model(self._x).pow(2).mean().backward()
            self._optimizer.step()
            times.append(time.perf_counter() - start)
        return times[1:]


def _replica(name: str, rank: int, folder: str) -> Runner:
    """One rank of DDP, in its process."""
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    make, shape = CASES[name]
    module = make()
    half = torch.randn(shape[0] // 2, *shape[1:])
    return Runner(module, DistributedDataParallel(module), half, 1)


def _second_rank(name: str, folder: str, orders: Any) -> None:
    torch.set_num_threads(1)
    runner = _replica(name, 1, folder)
    while count := orders.recv():
        runner.steps(count)
    dist.destroy_process_group()


class Replicas:
    """DDP: this process is rank 0, another one rank 1."""

    def __init__(self, name: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        theirs, self._orders = context.Pipe(duplex=False)
        arguments = (name, self._folder.name, theirs)
        self._process = context.Process(target=_second_rank, args=arguments)
        self._process.start()
        self._runner = _replica(name, 0, self._folder.name)

    def steps(self, count: int) -> list[float]:
        """As `Runner.steps`, on both."""
        self._orders.send(count)
        return self._runner.steps(count)

    def close(self) -> None:
        """Ends the other process."""
        self._orders.send(0)
        dist.destroy_process_group()
        self._process.join()
        self._folder.cleanup()


def measure(name: str, seconds: float) -> tuple[dict[str, float], str]:
    """The median time of a step in each way, in ms, and what the automatic one chose."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    make, shape = CASES[name]
    original, x = make(), torch.randn(shape)
    ddp = Replicas(name)
    runners: dict[str, Any] = {"ddp": ddp}
    slots = {"thread": ["thread"] * 2, "fork": ["fork"] * 2, "automatic": None}
    for way in _WAYS:
        module = copy.deepcopy(original)
        if way in slots:
            runners[way] = Runner(module, DataParallel(module, slots[way]), x, threads)
        elif way != "ddp":
            model = Original(module) if way == "original" else module
            runners[way] = Runner(module, model, x, 1 if way == "one" else threads)
    runners["automatic"].steps(_CALIBRATION)
    times: dict[str, list[float]] = {way: [] for way in _WAYS}
    rounds, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for way in _WAYS:
            elapsed = runners[way].steps(_STEPS)
            if rounds >= _WARMING_ROUNDS:
                times[way] += elapsed
        rounds += 1
    torch.set_num_threads(threads)
    chosen = runners["automatic"].model.slots
    choice = type(chosen[0]).__name__ if chosen else "plain"
    for way in slots:
        runners[way].model.close()
    ddp.close()
    return {way: 1e3 * statistics.median(each) for way, each in times.items()}, choice


def measure_fixed(seconds: float) -> dict[str, float]:
    """The median time of a step of the tiny model, in ms: plain, on threads, on forks."""
    torch.manual_seed(0)
    make, shape = CASES["tiny"]
    original, x = make(), torch.randn(shape)
    runners: dict[str, Runner] = {}
    for way in ("plain", "thread", "fork"):
        module = copy.deepcopy(original)
        model = module if way == "plain" else DataParallel(module, [way] * 2)
        runners[way] = Runner(module, model, x, torch.get_num_threads())
    times: dict[str, list[float]] = {way: [] for way in runners}
    rounds, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for way, runner in runners.items():
            elapsed = runner.steps(_FIXED_STEPS)
            if rounds >= _WARMING_ROUNDS:
                times[way] += elapsed[_FIXED_WARMING - 1 :]
        rounds += 1
    for runner in runners.values():
        if isinstance(runner.model, DataParallel):
            runner.model.close()
    return {way: 1e3 * statistics.median(each) for way, each in times.items()}


def _print_fixed(seconds: float) -> None:
    times = measure_fixed(seconds)
    over = ", ".join(f"{way} {times[way] - times['plain']:.3f}" for way in ("thread", "fork"))
    print(f"fixed cost of a step over plain ({times['plain']:.3f} ms), ms: {over}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[*CASES, _FIXED], default=[*CASES, _FIXED])
    parser.add_argument("--seconds", type=float, default=15, help="for each model")
    arguments = parser.parse_args()
    ratios = f"{'best/ddp':>10}{'best/orig':>10}{'auto/plain':>11}"
    print(f"{'ms':12}" + "".join(f"{way:>10}" for way in _WAYS) + ratios)
    for name in arguments.only:
        if name == _FIXED:
            _print_fixed(arguments.seconds)
            continue
        times, choice = measure(name, arguments.seconds)
        best = min(times["thread"], times["fork"])
        print(
            f"{name:12}"
            + "".join(f"{times[way]:10.2f}" for way in _WAYS)
            + f"{best / times['ddp']:10.2f}{best / times['original']:10.2f}"
            + f"{times['automatic'] / times['plain']:11.2f}  ({choice})",
            flush=True,
        )


if __name__ == "__main__":
    main()
