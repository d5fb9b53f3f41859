"""The command `lockstitch`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lockstitch import __version__
from lockstitch.launch.local import GRACE_SECONDS, run_local
from lockstitch.launch.screen import Screen
from lockstitch.trust import Secret

app = typer.Typer(
    help="Remote calls, references and one backward pass over many PyTorch workers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """What the console script calls."""
    try:
        app(prog_name="lockstitch")
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


# Whatever follows the script is the script's own, options too.
@app.command(context_settings={"allow_interspersed_args": False})
def run(
    program: Annotated[str, typer.Argument(help="Script, or with -m a module, that each runs.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What it gets as sys.argv.")] = None,
    *,
    workers: Annotated[int, typer.Option("-n", "--workers", min=1, help="Number of processes.")],
    module: Annotated[bool, typer.Option("-m", "--module", help="PROGRAM is a module.")] = False,
    grace_seconds: Annotated[
        float,
        typer.Option("--grace", min=0, help="Seconds that a worker may take to obey a signal."),
    ] = GRACE_SECONDS,
) -> None:
    """Run PROGRAM as N workers on this machine.

    Each worker finds its place in RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT, and the job's secret in LOCKSTITCH_SECRET_FILE; init_rpc reads them by itself.
    Lines are marked with the worker that wrote them.

    Ctrl-C ends all workers. When one fails the others are ended too; what it said last is repeated
    at the end, and its exit status is the job's.
    """
    if not module and not Path(program).is_file():
        raise typer.BadParameter(f"there is no file {program!r}", param_hint="PROGRAM")
    target = ["-m", program] if module else [program]
    command = [sys.executable, *target, *(arguments or [])]
    screen = Screen(workers, out=Console(), err=Console(stderr=True))
    raise typer.Exit(run_local(command, workers, screen, grace_seconds))


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
            f"cannot write {output}: {error}", param_hint="--output"
        ) from error
