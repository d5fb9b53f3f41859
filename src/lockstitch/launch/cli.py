"""The command `lockstitch`, and `horovodrun`, which is `lockstitch run`."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from lockstitch import __version__
from lockstitch.attach.presence import JOB_VARIABLE, new_job
from lockstitch.attach.system import name_of_program
from lockstitch.launch import manifest, observing, options
from lockstitch.launch.elastic import Elasticity, ElasticJob
from lockstitch.launch.local import LocalJob
from lockstitch.launch.multi_host import MultiHostJob
from lockstitch.launch.outputs import Outputs
from lockstitch.launch.placing import (
    check_room,
    check_script,
    check_shell,
    named_hosts,
    number_of_workers,
    own_allocation,
    remote_shell,
)
from lockstitch.launch.process import GRACE_SECONDS
from lockstitch.launch.screen import Screen
from lockstitch.launch.tuning import variables_of
from lockstitch.launcher_link.rank_coordinator import CoordinatorOptions
from lockstitch.trust import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstitch.launch.hosts import Slots
    from lockstitch.launch.remote import RemoteShell

# Whatever follows the script is the script's own, options too.
_RUN: Final[Any] = {"context_settings": {"allow_interspersed_args": False}}


_PLAINLY: Final[Any] = {
    "add_completion": False,
    "rich_markup_mode": None,  # its tables cut long names of options off
    "pretty_exceptions_enable": False,
}

app = typer.Typer(
    help="Remote calls, references and one backward pass over many PyTorch workers.",
    no_args_is_help=True,
    **_PLAINLY,
)
app.add_typer(manifest.app, name="manifest")
observing.add_commands(app)


def main() -> None:
    """Runs the console script `lockstitch`."""
    _call(app, sys.argv[1:], "lockstitch")


def horovodrun() -> None:
    """Runs the console script `horovodrun`."""
    given = sys.argv[1:]
    if given in (["--version"], ["-v"]):
        _call(app, ["--version"], "horovodrun")
    else:
        runner = typer.Typer(**_PLAINLY)
        runner.command(**_RUN)(run)
        _call(runner, given, "horovodrun")


def _call(command: typer.Typer, arguments: list[str], name: str) -> None:
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # it was closed when this process began
            setattr(sys, stream, Path(os.devnull).open("w"))  # noqa: SIM115 - to the end
    try:
        command(arguments, prog_name=name)
    except BrokenPipeError:
        # Our reader has gone (`lockstitch run … | head`): say no more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lockstitch {__version__}")
        raise typer.Exit


@app.callback()
def lockstitch(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version."),
    ] = False,
) -> None:
    """Options before any command."""


@app.command(**_RUN)
def run(
    program: options.Program,
    arguments: options.Arguments = None,
    *,
    workers: options.Workers = None,
    module: options.Module = False,
    grace_seconds: options.Grace = GRACE_SECONDS,
    output_folder: options.OutputFolder = None,
    replace: options.Replace = None,
    name: options.Name = None,
    timestamps: options.Timestamps = False,
    curves: options.CurvesFolder = None,
    tensorboard: options.TensorBoard = None,
    verdict: options.Verdict = None,
    verbose: options.Verbose = False,
    hosts: options.Hosts = None,
    hostfile: options.HostFile = None,
    ssh_port: options.SshPort = None,
    ssh_identity: options.SshIdentity = None,
    shell: options.Shell = None,
    min_workers: options.MinWorkers = None,
    max_workers: options.MaxWorkers = None,
    script: options.Script = None,
    slots_per_host: options.SlotsPerHost = 1,
    reset_limit: options.ResetLimit = None,
    cooldown: options.Cooldown = None,
    start_timeout: options.StartTimeout = None,
    elastic_timeout: options.ElasticTimeout = 600.0,
    fusion_megabytes: options.FusionMegabytes = None,
    timeline: options.Timeline = None,
    mark_cycles: options.MarkCycles = None,
    stall_check: options.StallCheck = None,
    stall_warning: options.StallWarning = None,
    stall_shutdown: options.StallShutdown = None,
    meeting_seconds: options.MeetingSeconds = None,
    log_level: options.LogLevel = None,
    log_timestamp: options.LogTimestamp = None,
    config_file: options.ConfigFile = None,
    check_build: options.CheckBuild = False,
    ignored_flags: options.IgnoredFlags = False,
    ignored_values: options.IgnoredValues = None,
) -> None:
    """Run PROGRAM as N workers, on this machine or on several.

    Each worker finds its place in RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT, and the job's secret in LOCKSTITCH_SECRET_FILE; init_rpc reads them by itself.
    Lines are marked with the worker that wrote them.

    Ctrl-C ends all workers. When one fails the others are ended too; what it said last is repeated
    at the end, and its exit status is the job's.

    With --min-np, --max-np or --host-discovery-script workers that fail are replaced, and may come
    and go: programs train in hvd.elastic.run.
    """
    raise typer.Exit(_run(locals()))


def _run(given: Mapping[str, Any]) -> int:
    """Runs the job; returns its exit status. `given`: the parameters of `run`."""
    own = given["arguments"] or []
    command = _command(given["program"], own, given["module"])
    os.environ.update(variables_of(given))
    for variable in ("curves", "tensorboard"):
        if given[variable] is not None:
            os.environ[f"LOCKSTITCH_{variable.upper()}"] = str(given[variable].absolute())
    os.environ[JOB_VARIABLE] = new_job(given["name"] or name_of_program(command))
    where = named_hosts(given["hosts"], given["hostfile"])
    allocation = None if where or given["script"] is not None else own_allocation()
    if allocation is not None:
        where = allocation.slots
        os.environ.setdefault("OMP_NUM_THREADS", str(allocation.cpus_per_worker))
    remote = remote_shell(given, allocation)
    check_shell(remote, where)
    workers = number_of_workers(given["workers"], given["min_workers"], where, own)
    if allocation is not None:
        check_room(given["min_workers"] or workers, allocation)
    if given["script"] is not None:
        check_script(given["script"])
    job = _Launch(
        command,
        workers,
        given["grace_seconds"],
        given["output_folder"],
        given["verbose"],
        "--hostfile" if given["hosts"] is None else "-H",
        given["verdict"],
        given["timestamps"],
    )
    if given["ignored_flags"] or given["ignored_values"]:
        job.note_ignored(sys.argv[1:])
    if all(given[name] is None for name in ("min_workers", "max_workers", "script")):
        return job.run(where, remote)
    hosts = where or (("localhost", workers),)
    return job.run_elastic(
        Elasticity(
            _coordinator_options(given, workers),
            hosts,
            given["script"],
            given["slots_per_host"],
            remote,
        )
    )


def _coordinator_options(given: Mapping[str, Any], workers: int) -> CoordinatorOptions:
    min_workers, start_timeout = given["min_workers"], given["start_timeout"]
    for hint, least, most in (
        ("--min-np", min_workers, given["workers"]),
        ("--min-np", min_workers, given["max_workers"]),
        ("--max-np", given["workers"], given["max_workers"]),
    ):
        if least is not None and most is not None and least > most:
            raise typer.BadParameter(f"{least} workers are more than {most}", param_hint=hint)
    elastic_timeout = given["elastic_timeout"]
    return CoordinatorOptions(
        workers,
        workers if min_workers is None else min_workers,
        given["max_workers"],
        given["reset_limit"],
        start_seconds=elastic_timeout if start_timeout is None else start_timeout,
        elastic_seconds=elastic_timeout,
        cooldown_seconds=given["cooldown"] or (0.0, 0.0),
        is_fixed=given["script"] is None,
    )


@app.command()
def secret(
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A new file for it, which only you can read."),
    ] = None,
) -> None:
    """Make a secret for a job that another launcher starts.

    Every worker of the job gets the same: the text in LOCKSTITCH_SECRET, or the file's name in
    LOCKSTITCH_SECRET_FILE. (`lockstitch run` does that by itself.)
    """
    made = Secret.make()
    if output is None:
        typer.echo(made.text())
        return
    try:
        made.write(output)
    except OSError as error:
        raise typer.BadParameter(
            f"cannot write {output}: {error.strerror}", param_hint="--output"
        ) from error


@app.command()
def doctor() -> None:
    """Say what is here, what is in force, and what is wrong with it.

    The exit status is 1 if something is.
    """
    # Imported for this alone: `run` has no use for it, and a job waits for its launcher.
    libraries, surroundings, report = (
        import_module(f"lockstitch.doctor.{name}")
        for name in ("libraries", "surroundings", "report")
    )
    findings = itertools.chain(libraries.look_at_libraries(), surroundings.look_around(os.environ))
    raise typer.Exit(1 if report.show(findings, Console()) else 0)


@dataclass
class _Launch:
    """What the command line says of a job, whatever its kind."""

    command: list[str]
    workers: int
    grace_seconds: float
    output_folder: Path | None
    is_verbose: bool
    hosts_hint: str
    """The option that has named the hosts."""
    verdict: Path | None = None
    has_timestamps: bool = False

    def __post_init__(self) -> None:
        err = Console(stderr=True)
        self._screen = Screen(
            self.workers,
            out=Console(),
            err=err,
            verdict=self.verdict,
            clock=datetime.now if self.has_timestamps else None,
        )
        if self.is_verbose:
            self._screen.note(f"each of {self.workers} workers runs: {shlex.join(self.command)}")

    def note_ignored(self, words: list[str]) -> None:
        """Says which of the options have no effect."""
        names = ", ".join(options.ignored_among(words))
        self._screen.note(f"without effect here: {names}")

    def run(self, where: Slots, shell: RemoteShell) -> int:
        """Runs a job whose workers stand and fall together; returns its exit status."""
        slots = sum(count for _, count in where)
        if where and slots < self.workers:
            raise typer.BadParameter(
                f"{self.workers} workers do not fit into {slots} slots", param_hint=self.hosts_hint
            )
        with ExitStack() as resources:
            outputs = self._outputs(resources)
            if any(shell.starts_on(host) for host, _ in where):
                return MultiHostJob(
                    self.command,
                    self.workers,
                    (where, shell),
                    self._screen,
                    self.grace_seconds,
                    outputs,
                ).run()
            return LocalJob(
                self.command, self.workers, self._screen, self.grace_seconds, outputs
            ).run()

    def run_elastic(self, elasticity: Elasticity) -> int:
        """Runs a job whose workers come and go; returns its exit status."""
        with ExitStack() as resources:
            outputs = self._outputs(resources)
            job = ElasticJob(self.command, elasticity, self._screen, self.grace_seconds, outputs)
            return job.run()

    def _outputs(self, resources: ExitStack) -> Outputs | None:
        if self.output_folder is None:
            return None
        try:
            self.output_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(
                f"cannot make the folder {self.output_folder}: {error.strerror}",
                param_hint="--output-filename",
            ) from error
        return resources.enter_context(Outputs(self.output_folder, self.workers))


def _is_for_python(file: Path) -> bool:
    """Whether a file is a script of Python's, and no other program that the system can run."""
    if file.suffix == ".py" or not os.access(file, os.X_OK):
        return True
    try:
        with file.open("rb") as opened:
            beginning = opened.readline(256)
    except OSError:  # to be run, but not to be read
        return False
    return b"python" in beginning if beginning.startswith(b"#!") else b"\0" not in beginning


def _command(program: str, arguments: list[str], is_module: bool) -> list[str]:
    """Returns the command of a worker: a module or a script is run by this Python, anything else is
    a command of its own, such as `python train.py` or `./train.sh`."""
    if is_module:
        return [sys.executable, "-m", program, *arguments]
    if (file := Path(program)).is_file():
        if _is_for_python(file):
            return [sys.executable, program, *arguments]
        return [program if os.sep in program else os.path.join(os.curdir, program), *arguments]
    if shutil.which(program) is not None:
        return [program, *arguments]
    is_folder = Path(program).is_dir()
    reason = f"{program!r} is a folder" if is_folder else f"there is no file {program!r}"
    raise typer.BadParameter(reason, param_hint="PROGRAM")
