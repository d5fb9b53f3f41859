"""What the command was asked to do."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.plan import FULL, QUICK, Pace

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_FOLDER = Path("out/benchmarks")


@dataclass(frozen=True)
class Options:
    """`only`: which rows (all when empty); `docs`: whether to render the page of the
    documentation; `folder`: where everything else is written."""

    pace: Pace
    only: str
    folder: Path
    json: Path
    docs: bool
    is_quick: bool
    from_json: list[Path]

    @property
    def command(self) -> str:
        """What says which figures were taken, without where they were written."""
        only = [f"--only {shlex.quote(self.only)}"] if self.only else []
        return " ".join(["python -m benchmarks", *(["--quick"] * self.is_quick), *only])


def parse_options(arguments: Sequence[str]) -> Options:
    """Reads the command line; exits with an explanation where it makes no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Lockstitch against torch.distributed.rpc, in turns, in one run.",
    )
    parser.add_argument("--quick", action="store_true", help="two minutes; figures are rough")
    parser.add_argument(
        "--only",
        metavar="NAME",
        default="",
        help="rows whose name or section contains NAME, or matches it (*, ?)",
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        type=Path,
        default=DEFAULT_FOLDER,
        help=f"where figures, pictures and complaints are written ({DEFAULT_FOLDER})",
    )
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="the figures (default: FOLDER/benchmarks.json)"
    )
    parser.add_argument(
        "--docs", action="store_true", help="render table and pictures into the documentation"
    )
    parser.add_argument(
        "--from-json",
        metavar="FILE",
        type=Path,
        nargs="+",
        default=[],
        help="measure nothing: show, and with --docs render, the figures of an earlier run, or of "
        "several that are parts of one",
    )
    given = parser.parse_args(arguments)
    if given.out.exists() and not given.out.is_dir():
        parser.error(f"--out is a folder, and {given.out} is none")
    if given.docs and given.only:
        parser.error("--docs renders the whole table: leave --only out")
    if given.from_json and (given.only or given.quick):
        parser.error("--from-json measures nothing: leave --only and --quick out")
    return Options(
        QUICK if given.quick else FULL,
        given.only,
        given.out,
        given.json or given.out / "benchmarks.json",
        given.docs,
        given.quick,
        given.from_json,
    )
