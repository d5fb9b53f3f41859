"""The options of `lockstitch run`, each with the names under which `horovodrun` has it."""

from __future__ import annotations

import subprocess
import sys
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from lockstitch.attach.presence import check_job_name
from lockstitch.launch.config import read_config
from lockstitch.replacement.table import INCUMBENTS, parse_names

_where = partial(typer.Option, rich_help_panel="Where they run")
_elastic = partial(typer.Option, rich_help_panel="Workers that come and go")
_hvd = partial(typer.Option, rich_help_panel="Programs of lockstitch.hvd")

_QUESTIONS: Final = """
import torch
import lockstitch.hvd as hvd
print("PyTorch", torch.__version__)
for name in ("gloo", "nccl", "mpi", "cuda", "rocm"):
    print(f"[{'X' if getattr(hvd, name + '_built')() else ' '}] {name}")
"""


def _show_build(wanted: bool) -> None:
    if wanted:
        raise typer.Exit(subprocess.run([sys.executable, "-c", _QUESTIONS], check=False).returncode)


def _take_from_file(context: typer.Context, path: Path | None) -> Path | None:
    """Takes the options of a file for those that the command line does not give."""
    if path is not None:
        try:
            given, ignored = read_config(path.read_text())
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise typer.BadParameter(f"{path}: {reason}") from error
        context.default_map = {**(context.default_map or {}), **given}
        if ignored:
            typer.echo(f"without effect here, in {path}: {', '.join(ignored)}", err=True)
    return path


class Level(str, Enum):
    """The levels of what `lockstitch.hvd` logs."""

    TRACE = "TRACE"
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    FATAL = "FATAL"

    def __str__(self) -> str:
        return self.value


def _check_names(text: str | None) -> str | None:
    try:
        parse_names(text or "")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return text


def _check_job_name(name: str | None) -> str | None:
    try:
        if name is not None:
            check_job_name(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return name


Program = Annotated[
    str,
    typer.Argument(
        metavar="PROGRAM", help="Script, or with -m a module, or a command, that each runs."
    ),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARGUMENTS", help="What it gets as sys.argv."),
]
Workers = Annotated[
    int | None,
    typer.Option("-n", "--workers", "-np", "--num-proc", min=1, help="Number of processes."),
]
Module = Annotated[bool, typer.Option("-m", "--module", help="PROGRAM is a module.")]
Grace = Annotated[
    float,
    typer.Option(
        "--grace",
        min=0,
        help="Seconds that a worker may take to obey a signal, before it gets a stronger one.",
    ),
]
Verdict = Annotated[
    Path | None,
    typer.Option("--verdict", hidden=True, help="File for who failed first, and how."),
]
OutputFolder = Annotated[
    Path | None,
    typer.Option(
        "--output-filename", help="Folder for what workers say: rank.N/stdout, rank.N/stderr."
    ),
]
Replace = Annotated[
    str | None,
    typer.Option(
        "--replace",
        callback=_check_names,
        help="Put Lockstitch in the place of these, wherever the program imports them: "
        f"{', '.join(INCUMBENTS)} (with commas between), or all.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        callback=_check_job_name,
        help="What the job is called by `lockstitch ps` and its like (the program's name).",
    ),
]
CurvesFolder = Annotated[
    Path | None,
    typer.Option(
        "--curves",
        help="Folder for the values of steps (lockstitch.observe.step): rank.N.csv.",
    ),
]
TensorBoard = Annotated[
    Path | None,
    typer.Option("--tensorboard", help="Folder for the same, for TensorBoard: rank.N."),
]
Timestamps = Annotated[
    bool,
    typer.Option(
        "--timestamps",
        "--prefix-output-with-timestamp",
        "-prefix-timestamp",
        help="Begin each line of the workers with the time.",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Say what the launcher does.")]

Hosts = Annotated[
    str | None,
    _where("-H", "--hosts", help="Hosts and their slots: h1:2,h2:4."),
]
HostFile = Annotated[
    Path | None,
    _where("--hostfile", help="A file of hosts, a line each: h1 slots=2."),
]
SshPort = Annotated[int | None, _where("-p", "--ssh-port", help="Port of ssh.")]
SshIdentity = Annotated[
    str | None,
    _where("-i", "--ssh-identity-file", help="Key of ssh."),
]
Shell = Annotated[
    str | None,
    _where("--remote-shell", help="A command to use instead of ssh, with its options."),
]

MinWorkers = Annotated[
    int | None,
    _elastic(
        "--min-np", "--min-num-proc", min=1, help="Go on with so many, while others are replaced."
    ),
]
MaxWorkers = Annotated[
    int | None,
    _elastic("--max-np", "--max-num-proc", min=1, help="Never more than so many."),
]
Script = Annotated[
    str | None,
    _elastic(
        "--host-discovery-script",
        help="Prints the hosts that are there now, host:slots on each line; run every second.",
    ),
]
SlotsPerHost = Annotated[
    int,
    _elastic(
        "--slots-per-host",
        "--slots",
        min=1,
        help="Slots of hosts for which the script says no number.",
    ),
]
ResetLimit = Annotated[
    int | None,
    _elastic("--reset-limit", min=0, help="How often ranks may meet anew before the job gives up."),
]
Cooldown = Annotated[
    tuple[float, float] | None,
    _elastic(
        "--blacklist-cooldown-range",
        help="Seconds that a slot stays empty after its worker failed: at first, and at most.",
    ),
]
StartTimeout = Annotated[
    float | None,
    _elastic(
        "--start-timeout",
        min=0,
        envvar="HOROVOD_START_TIMEOUT",
        help="Seconds for all workers to begin.",
    ),
]
ElasticTimeout = Annotated[
    float,
    _elastic(
        "--elastic-timeout",
        envvar="HOROVOD_ELASTIC_TIMEOUT",
        min=0,
        help="Seconds to wait for enough workers when some are gone.",
    ),
]

FusionMegabytes = Annotated[
    float | None,
    _hvd(
        "--fusion-threshold-mb",
        min=0,
        help="Up to how many MB of tensors are reduced as one (128).",
    ),
]
Timeline = Annotated[
    str | None,
    _hvd("--timeline-filename", help="Write a timeline of the operations to this file."),
]
MarkCycles = Annotated[
    bool | None,
    _hvd(
        "--timeline-mark-cycles/--no-timeline-mark-cycles",
        help="Mark in the timeline when operations are begun.",
    ),
]
StallCheck = Annotated[
    bool | None,
    _hvd("--stall-check/--no-stall-check", help="Report operations that wait for ranks (yes)."),
]
StallWarning = Annotated[
    int | None,
    _hvd(
        "--stall-check-warning-time-seconds",
        min=0,
        help="Report those that have waited for so many seconds (60).",
    ),
]
StallShutdown = Annotated[
    int | None,
    _hvd(
        "--stall-check-shutdown-time-seconds",
        min=0,
        help="End the session when one has waited for so many seconds (0: never).",
    ),
]
MeetingSeconds = Annotated[
    int | None,
    _hvd("--gloo-timeout-seconds", min=1, help="Seconds for the ranks to meet (60)."),
]
LogLevel = Annotated[
    Level | None,
    _hvd(
        "--log-level",
        case_sensitive=False,
        help="The least severe messages that are shown on stderr (WARNING).",
    ),
]
LogTimestamp = Annotated[
    bool | None,
    _hvd(
        "--log-with-timestamp/--log-without-timestamp",
        "--no-log-hide-timestamp/--log-hide-timestamp",
        help="Begin these messages with the time (yes).",
    ),
]
ConfigFile = Annotated[
    Path | None,
    _hvd(
        "--config-file",
        is_eager=True,
        callback=_take_from_file,
        help="A YAML file with these options, for those that are not given here.",
    ),
]
CheckBuild = Annotated[
    bool,
    _hvd(
        "-cb",
        "--check-build",
        is_eager=True,
        callback=_show_build,
        help="Show what lockstitch.hvd can use here.",
    ),
]

# What horovodrun understands and has no meaning here.
_FLAGS: Final = """
    --gloo --mpi --jsrun --disable-cache --tcp --mpi-threads-disable --no-mpi-threads-disable
    --hierarchical-allreduce --no-hierarchical-allreduce --hierarchical-allgather
    --no-hierarchical-allgather --torus-allreduce --no-torus-allreduce --autotune --no-autotune
""".split()
_WITH_VALUE: Final = """
    --cycle-time-ms --cache-capacity --autotune-log-file --autotune-warmup-samples
    --autotune-steps-per-sample --autotune-bayes-opt-max-samples --autotune-gaussian-process-noise
    --mpi-args --binding-args --num-nccl-streams --thread-affinity --network-interface
    --network-interfaces
""".split()

IgnoredFlags = Annotated[bool, typer.Option(*_FLAGS, hidden=True)]
IgnoredValues = Annotated[list[str] | None, typer.Option(*_WITH_VALUE, hidden=True)]


def ignored_among(words: list[str]) -> list[str]:
    """Returns those of the words that are options without effect."""
    known = {*_FLAGS, *_WITH_VALUE}
    names = [word.partition("=")[0] for word in words]
    return sorted({name for name in names if name in known})
