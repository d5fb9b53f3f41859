"""The command `lockstitch manifest`: writes what other engines need to run a job of workers."""

from __future__ import annotations

import shlex
from importlib import import_module
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated, Any, Final

import typer

from lockstitch.launch.kubernetes.workload import BadOptionError, Kind, Workload

app = typer.Typer(
    help="Write manifests for engines that run the workers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

# Whatever follows the command's first word is the command's own, options too.
_K8S: Final[Any] = {"context_settings": {"allow_interspersed_args": False}}


@app.command(**_K8S)
def k8s(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="What each pod runs (what its image says)."),
    ] = None,
    *,
    workers: Annotated[
        int, typer.Option("-n", "--workers", help="Number of workers, each in a pod of its own.")
    ],
    image: Annotated[str, typer.Option("--image", help="Image with the program and Lockstitch.")],
    kind: Annotated[Kind, typer.Option("--kind", help="What the workers are.")] = Kind.JOB,
    name: Annotated[str, typer.Option("--name", help="Name of the job.")] = "lockstitch",
    namespace: Annotated[
        str, typer.Option("--namespace", help="Namespace, unless it is the one kubectl uses.")
    ] = "",
    secret_name: Annotated[
        str,
        typer.Option("--secret-name", help="The Secret with the job's secret (NAME-secret)."),
    ] = "",
    cpu: Annotated[str, typer.Option("--cpu", help="Cores of each pod: 2, 500m.")] = "",
    memory: Annotated[str, typer.Option("--memory", help="Memory of each pod: 8Gi.")] = "",
    gpus: Annotated[int, typer.Option("--gpus", help="GPUs of each pod.")] = 0,
    command: Annotated[
        str,
        typer.Option("--command", help="COMMAND as one argument; words that follow are added."),
    ] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write to (standard output).")
    ] = None,
) -> None:
    """Write the YAML with which Kubernetes runs a job of N workers.

    The job's secret comes from a Secret of the cluster, which has to be there before:
    lockstitch secret | kubectl create secret generic NAME-secret --from-file=secret=/dev/stdin
    """
    try:
        split = tuple(shlex.split(command))
    except ValueError as error:
        raise typer.BadParameter(f"{command!r}: {error}", param_hint="--command") from error
    try:
        workload = Workload(
            kind,
            name,
            workers,
            image,
            (*split, *(words or ())),
            namespace,
            secret_name,
            cpu,
            memory,
            gpus,
        )
    except BadOptionError as error:
        raise typer.BadParameter(str(error), param_hint=error.option) from error
    text: str = import_module("lockstitch.launch.kubernetes.writing").manifest(workload)
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text)
    except OSError as error:
        reason = f"cannot write {output}: {error.strerror}"
        raise typer.BadParameter(reason, param_hint="--output") from error
