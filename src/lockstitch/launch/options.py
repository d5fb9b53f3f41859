"""The options of `lockstitch run`, each with the names under which `horovodrun` has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from lockstitch.launch.job import GRACE_SECONDS

_ELASTIC: Final = "Workers that come and go"
_HOSTS: Final = "Where they run"
_HVD: Final = "Programs of lockstitch.hvd"

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


Program = Annotated[
    str, typer.Argument(help="Script, or with -m a module, or a command, that each runs.")
]
Arguments = Annotated[list[str] | None, typer.Argument(help="What it gets as sys.argv.")]
Workers = Annotated[
    int | None,
    typer.Option("-n", "--workers", "-np", "--num-proc", min=1, help="Number of processes."),
]
Module = Annotated[bool, typer.Option("-m", "--module", help="PROGRAM is a module.")]
Grace = Annotated[
    float,
    typer.Option(
        "--grace", min=0, help=f"Seconds that a worker may take to obey a signal ({GRACE_SECONDS})."
    ),
]
OutputFolder = Annotated[
    Path | None,
    typer.Option(
        "--output-filename", help="Folder for what workers say: rank.N/stdout, rank.N/stderr."
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Say what the launcher does.")]

Hosts = Annotated[
    str | None,
    typer.Option("-H", "--hosts", help="Hosts and their slots: h1:2,h2:4.", rich_help_panel=_HOSTS),
]
HostFile = Annotated[
    Path | None,
    typer.Option(
        "--hostfile", help="A file of hosts, a line each: h1 slots=2.", rich_help_panel=_HOSTS
    ),
]
SshPort = Annotated[
    int | None, typer.Option("-p", "--ssh-port", help="Port of ssh.", rich_help_panel=_HOSTS)
]
SshIdentity = Annotated[
    str | None,
    typer.Option("-i", "--ssh-identity-file", help="Key of ssh.", rich_help_panel=_HOSTS),
]
Shell = Annotated[
    str | None,
    typer.Option("--remote-shell", help="Instead of ssh, with options.", rich_help_panel=_HOSTS),
]

MinWorkers = Annotated[
    int | None,
    typer.Option(
        "--min-np",
        "--min-num-proc",
        min=1,
        help="Go on with so many, while others are replaced.",
        rich_help_panel=_ELASTIC,
    ),
]
MaxWorkers = Annotated[
    int | None,
    typer.Option(
        "--max-np",
        "--max-num-proc",
        min=1,
        help="Never more than so many.",
        rich_help_panel=_ELASTIC,
    ),
]
Script = Annotated[
    str | None,
    typer.Option(
        "--host-discovery-script",
        help="Prints the hosts that are there now, host:slots on each line; run every second.",
        rich_help_panel=_ELASTIC,
    ),
]
SlotsPerHost = Annotated[
    int,
    typer.Option(
        "--slots-per-host",
        "--slots",
        min=1,
        help="Slots of hosts for which the script says no number (1).",
        rich_help_panel=_ELASTIC,
    ),
]
ResetLimit = Annotated[
    int | None,
    typer.Option(
        "--reset-limit", min=0, help="How often ranks may meet anew.", rich_help_panel=_ELASTIC
    ),
]
Cooldown = Annotated[
    tuple[float, float] | None,
    typer.Option(
        "--blacklist-cooldown-range",
        help="Seconds that a slot stays empty after its worker failed: at first, and at most.",
        rich_help_panel=_ELASTIC,
    ),
]
StartTimeout = Annotated[
    float | None,
    typer.Option(
        "--start-timeout",
        min=0,
        envvar="HOROVOD_START_TIMEOUT",
        help="Seconds for all workers to begin.",
        rich_help_panel=_ELASTIC,
    ),
]
ElasticTimeout = Annotated[
    float,
    typer.Option(
        "--elastic-timeout",
        envvar="HOROVOD_ELASTIC_TIMEOUT",
        min=0,
        help="Seconds to wait for enough workers when some are gone (600).",
        rich_help_panel=_ELASTIC,
    ),
]

FusionMegabytes = Annotated[
    float | None,
    typer.Option(
        "--fusion-threshold-mb", min=0, help="Up to how much is joined.", rich_help_panel=_HVD
    ),
]
Timeline = Annotated[
    str | None,
    typer.Option("--timeline-filename", help="Write a timeline there.", rich_help_panel=_HVD),
]
MarkCycles = Annotated[
    bool,
    typer.Option("--timeline-mark-cycles/--no-timeline-mark-cycles", rich_help_panel=_HVD),
]
StallCheck = Annotated[
    bool | None,
    typer.Option("--stall-check/--no-stall-check", help="Report stalls.", rich_help_panel=_HVD),
]
StallWarning = Annotated[
    int | None,
    typer.Option(
        "--stall-check-warning-time-seconds",
        min=0,
        help="… that last so long (60).",
        rich_help_panel=_HVD,
    ),
]
StallShutdown = Annotated[
    int | None,
    typer.Option(
        "--stall-check-shutdown-time-seconds",
        min=0,
        help="… and end the session after so long (0: never).",
        rich_help_panel=_HVD,
    ),
]
MeetingSeconds = Annotated[
    int | None,
    typer.Option(
        "--gloo-timeout-seconds", min=1, help="For the ranks to meet (60).", rich_help_panel=_HVD
    ),
]
CheckBuild = Annotated[
    bool,
    typer.Option(
        "-cb",
        "--check-build",
        is_eager=True,
        callback=_show_build,
        help="Show what lockstitch.hvd can use here.",
        rich_help_panel=_HVD,
    ),
]

# What horovodrun understands and has no meaning here.
_FLAGS: Final = """
    --gloo --mpi --jsrun --disable-cache --tcp --mpi-threads-disable --no-mpi-threads-disable
    --hierarchical-allreduce --no-hierarchical-allreduce --hierarchical-allgather
    --no-hierarchical-allgather --torus-allreduce --no-torus-allreduce --autotune --no-autotune
    --log-hide-timestamp --no-log-hide-timestamp --log-with-timestamp
    --prefix-output-with-timestamp
""".split()
_WITH_VALUE: Final = """
    --log-level --cycle-time-ms --cache-capacity --autotune-log-file --autotune-warmup-samples
    --autotune-steps-per-sample --autotune-bayes-opt-max-samples --autotune-gaussian-process-noise
    --mpi-args --binding-args --num-nccl-streams --thread-affinity --network-interface
    --network-interfaces
""".split()

IgnoredFlags = Annotated[bool, typer.Option(*_FLAGS, hidden=True)]
IgnoredValues = Annotated[list[str] | None, typer.Option(*_WITH_VALUE, hidden=True)]


def ignored_among(words: list[str]) -> list[str]:
    """The options among the words that have no effect."""
    known = {*_FLAGS, *_WITH_VALUE}
    names = [word.partition("=")[0] for word in words]
    return sorted({name for name in names if name in known})
