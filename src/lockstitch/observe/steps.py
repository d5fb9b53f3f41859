"""The steps of a training, told by its program: `lockstitch.observe.step(loss=0.3)`.

They are shown by `lockstitch ps` and `status`, as a line of progress by `lockstitch run`, and where
the environment names a folder they are written into it: LOCKSTITCH_CURVES as CSV, a file for each
rank, LOCKSTITCH_TENSORBOARD for TensorBoard.
"""

from __future__ import annotations

import atexit
import contextlib
import csv
import os
import threading
import time
from collections import deque
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from lockstitch.attach.presence import rank_of
from lockstitch.attach.sources import SOURCES
from lockstitch.attach.values import StepReport
from lockstitch.endings import ENDING, StepMark

if TYPE_CHECKING:
    from collections.abc import Mapping

CURVES: Final = "LOCKSTITCH_CURVES"
TENSORBOARD: Final = "LOCKSTITCH_TENSORBOARD"
_PER_SECOND_OVER: Final = 50
_MARK_SECONDS: Final = 0.2


class Curves(Protocol):
    """Where the values of steps are kept."""

    def add(self, number: int, at: float, values: Mapping[str, float]) -> None:
        """Adds those of a step, told `at` seconds since the epoch."""
        ...

    def close(self) -> None:
        """Nothing more will come."""
        ...


class Steps:
    """The steps of this process. A process has one, `STEPS`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[int, float, dict[str, float]] | None = None
        self._times: deque[float] = deque(maxlen=_PER_SECOND_OVER)
        self._marked_at = 0.0
        self._curves: list[Curves] | None = None
        SOURCES.step = self.report
        os.register_at_fork(after_in_child=self._forget)

    def __repr__(self) -> str:
        return f"<Steps · {None if self._last is None else self._last[0]}>"

    def note(self, number: int | None, values: Mapping[str, Any]) -> None:
        """See `step`."""
        told = {name: _as_float(name, value) for name, value in values.items()}
        now = time.time()
        with self._lock:
            before = 0 if self._last is None else self._last[0]
            this = before + 1 if number is None else int(number)
            self._last = (this, now, told)
            self._times.append(now)
            if self._curves is None:
                self._curves = open_curves(os.environ)
                atexit.register(self.close)
            for curves in self._curves:
                curves.add(this, now, told)
        if now - self._marked_at >= _MARK_SECONDS:
            self._marked_at = now
            ENDING.say(StepMark(this, tuple(told.items())).encode())

    def report(self) -> StepReport | None:
        """Returns the last step; None before the first."""
        last = self._last
        if last is None:
            return None
        times = list(self._times)
        seconds = times[-1] - times[0]
        per_second = (len(times) - 1) / seconds if seconds > 0 else 0.0
        return StepReport(last[0], last[1], per_second, tuple(last[2].items()))

    def close(self) -> None:
        """Closes the files; harmless when repeated."""
        curves, self._curves = self._curves or [], []
        for each in curves:
            each.close()

    def _forget(self) -> None:
        """A forked child tells of steps of its own, if of any, and not in its parent's files."""
        self._lock = threading.Lock()
        self._last, self._curves = None, None
        self._times.clear()


class CsvCurves:
    """A file with a line for each value: seconds since the epoch, step, name, value."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        self._file = path.open("a", newline="", buffering=1)
        self._writer = csv.writer(self._file)
        if is_new:
            self._writer.writerow(["time", "step", "name", "value"])

    def add(self, number: int, at: float, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.writerow([f"{at:.3f}", number, name, repr(value)])

    def close(self) -> None:
        self._file.close()


class TensorBoardCurves:
    """Events for TensorBoard. Raises `ImportError` where it is not installed."""

    def __init__(self, folder: Path) -> None:
        try:
            module = import_module("torch.utils.tensorboard")
        except ImportError as error:
            raise ImportError(
                f"{TENSORBOARD} asks for events for TensorBoard, which is not installed: "
                "pip install tensorboard"
            ) from error
        self._writer = module.SummaryWriter(str(folder))

    def add(self, number: int, at: float, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, number, at)

    def close(self) -> None:
        self._writer.close()


def open_curves(environment: Mapping[str, str]) -> list[Curves]:
    """Opens what the environment asks for. Raises `OSError` and `ImportError`."""
    rank = rank_of(environment) or str(os.getpid())
    curves: list[Curves] = []
    if folder := environment.get(CURVES):
        curves.append(CsvCurves(Path(folder) / f"rank.{rank}.csv"))
    if folder := environment.get(TENSORBOARD):
        curves.append(TensorBoardCurves(Path(folder) / f"rank.{rank}"))
    return curves


STEPS: Final = Steps()


def step(number: int | None = None, /, **values: float) -> None:
    """Tells of a step of the training: its number, by default one more than the last one's, and
    values such as `loss=0.3`, each a number or a tensor of one element.

    Cheap, and never needed. `lockstitch run` shows a line of progress from it, `lockstitch status`
    the last step of each worker; LOCKSTITCH_CURVES and LOCKSTITCH_TENSORBOARD name folders for the
    values. A tensor on a GPU is waited for. Raises `TypeError` for what is no number, `OSError` and
    `ImportError` where the values cannot be kept as the environment asks.
    """
    STEPS.note(number, values)


def _as_float(name: str, value: Any) -> float:
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        return float(value.detach() if hasattr(value, "detach") else value)
    raise TypeError(f"{name} of a step is a number, not {type(value).__name__}")
