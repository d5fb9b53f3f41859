"""The commands that look at running jobs: `ps`, `status`, `top`, `waits`, `stacks`, `trace`,
`graph`, `metrics`, `dashboard`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import secrets
import threading
import time
import webbrowser
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from lockstitch.observe import looking, tracing
from lockstitch.observe.call_rates import calls
from lockstitch.observe.context_graph import ContextGraph
from lockstitch.observe.grouping import JobNotFoundError
from lockstitch.observe.sampling import holdup_lines, holdups
from lockstitch.observe.tables import calls_table, edges_table, jobs_table, status_table
from lockstitch.observe.text import explanation_lines, headline, stack_lines, unreached_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lockstitch.observe.grouping import Job

TOKEN_VARIABLE: Final = "LOCKSTITCH_METRICS_TOKEN"
JobArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help="Its name, or the number of its launcher or of any of its processes; needed where "
        "there are several.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where a job of other hosts can be asked, instead of JOB; takes the job's secret "
        "(LOCKSTITCH_SECRET_FILE).",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]


def add_commands(app: typer.Typer) -> None:
    """Adds the commands to `app`."""
    for command in (ps, status, top, waits, stacks, trace, graph, metrics, dashboard):
        app.command()(command)


def ps(*, address: Address = None, as_json: AsJson = False) -> None:
    """List the running jobs of this user on this host, with their workers of other hosts."""
    with _errors_in_words():
        found = looking.jobs() if address is None else [looking.status(_at(None, address))]
    if as_json:
        _print_json(found)
    elif found:
        _console().print(jobs_table(found))
    else:
        typer.echo("no job of this user runs on this host", err=True)


def status(job: JobArgument = None, *, address: Address = None, as_json: AsJson = False) -> None:
    """Say what each worker of a job does and has."""
    with _errors_in_words():
        found = looking.status(_at(job, address))
    if as_json:
        _print_json(found)
    else:
        _console().print(_status_view(found))


def top(
    job: JobArgument = None,
    *,
    address: Address = None,
    seconds: Annotated[
        float, typer.Option("--every", min=0.2, help="Seconds between two looks.")
    ] = 1.0,
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=1, help="End after so many looks.")
    ] = None,
) -> None:
    """Show the status of a job, again and again, until Ctrl-C or the end of the job."""
    with _errors_in_words():
        watch = looking.watch(_at(job, address))
        _show_again_and_again(watch, seconds, count)


def _show_again_and_again(
    watch: looking.Watch | looking.FarWatch, seconds: float, count: int | None
) -> None:
    found, pause, console = watch.look(looking.STATUS), threading.Event(), _console()
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as resources:
        show: Callable[[RenderableType], None] = console.print
        if console.is_terminal:  # elsewhere it would show only the last look
            live = resources.enter_context(Live(console=console, auto_refresh=False))
            show = functools.partial(live.update, refresh=True)
        show(_status_view(found))
        looks = 1
        while count is None or looks < count:
            pause.wait(seconds)
            try:
                found = watch.look(looking.STATUS)
            except JobNotFoundError:
                console.print(f"job {found.name} has ended")
                return
            show(_status_view(found))
            looks += 1


def waits(
    job: JobArgument = None,
    *,
    address: Address = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=3600.0,
            help="Look again and again for so long, and say who was waited for how often.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what the workers of a job wait for, and who holds it up.

    Workers that wait for each other in a cycle come first, then those that are waited for and wait
    for nobody, then each worker: the line at which its main thread is, its calls without an answer,
    and what it serves.
    """
    with _errors_in_words():
        if seconds is not None:
            _print_holdups(_at(job, address), seconds, as_json=as_json)
            return
        explanation = looking.waits(_at(job, address))
    if as_json:
        _print_json(explanation)
    else:
        typer.echo("\n".join(explanation_lines(explanation)))


def _print_holdups(job: str | None, seconds: float, *, as_json: bool) -> None:
    began_at = time.monotonic()
    looks = looking.looks_at(job, seconds)
    found = holdups(looks)
    if as_json:
        _print_json(found)
    else:
        lines = holdup_lines(found, len(looks), time.monotonic() - began_at)
        typer.echo("\n".join([headline(looks[-1].job), *lines]))


def stacks(
    job: JobArgument = None,
    *,
    address: Address = None,
    native: Annotated[
        bool,
        typer.Option(
            "--native", help="Those of C and C++ too, by py-spy (pip install 'lockstitch[native]')."
        ),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those in which only libraries run.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the stacks of the threads of a job's workers.

    A worker that does not answer is looked at from outside, by py-spy, where that is installed.
    """
    with _errors_in_words():
        participants = looking.stacks(_at(job, address), native=native)
    if as_json:
        _print_json(participants)
    else:
        typer.echo("\n".join(stack_lines(participants, everything=everything)))


def trace(
    job: JobArgument = None,
    *,
    address: Address = None,
    seconds: Annotated[
        float, typer.Option(min=0.01, max=3600.0, help="For so long it is recorded.")
    ] = 10.0,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to be written.")] = Path(
        "trace.json"
    ),
    most_spans: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="So many calls and the like each process keeps, the latest; by default 100,000, "
            "and fewer where there are more than five.",
        ),
    ] = None,
) -> None:
    """Record what all workers of a job do, as one file for Perfetto.

    Open it at https://ui.perfetto.dev, which reads it in the browser and uploads nothing, or at
    chrome://tracing.
    """
    with _errors_in_words():
        recorded = tracing.trace(
            _at(job, address), seconds=seconds, path=output, most_spans=most_spans
        )
    typer.echo(_in_words(recorded, output))
    for silent in recorded.silent:
        typer.echo(f"lockstitch: {silent}", err=True)


def metrics(
    job: JobArgument = None,
    *,
    address: Address = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Serve them over HTTP at this port (0: any), until Ctrl-C."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
) -> None:
    """Print the counters of a job in the format of Prometheus, or serve them to it.

    Who asks over HTTP must give the token that is printed, as a bearer's or in the URL; or that of
    the variable LOCKSTITCH_METRICS_TOKEN.
    """
    module = _import_with_extra(
        "lockstitch.observe.metrics",
        "prometheus-client is not installed: pip install 'lockstitch[metrics]'",
    )
    with _errors_in_words():
        wanted = _at(job, address)
        if port is None:
            typer.echo(module.metrics_text(wanted), nl=False)
            return
        looking.status(wanted, rate_seconds=0.0)
        token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe()
        server = module.serve_metrics(wanted, (host, port), token)
        typer.echo(f"http://{host}:{server.server_port}/metrics?token={token}")
        with contextlib.suppress(KeyboardInterrupt), server:
            server.serve_forever()


def dashboard(
    job: JobArgument = None,
    *,
    address: Address = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen at; 0: any that is free.")
    ] = 0,
    open_it: Annotated[
        bool, typer.Option("--open", help="Open it in this user's browser.")
    ] = False,
) -> None:
    """Serve a page that shows a job, live, until the job ends or Ctrl-C.

    It listens at 127.0.0.1 only, and whoever opens it must know the token in the address that is
    printed.
    """
    module = _import_with_extra(
        "lockstitch.dashboard.serving",
        "the page needs {missing}: pip install 'lockstitch[dashboard]'",
    )

    def announce(address: str) -> None:
        typer.echo(address)
        if open_it:
            webbrowser.open(address)

    with _errors_in_words():
        watch = looking.watch(_at(job, address))
        module.serve(watch, port, announce)
        typer.echo(f"job {watch.name} has ended", err=True)


def graph(
    job: JobArgument = None,
    *,
    address: Address = None,
    context: Annotated[
        int | None,
        typer.Option("--context", help="Its id; needed where several contexts are open."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A file that ends in .svg, .html, .dot or .json."),
    ] = None,
) -> None:
    """Draw the graph of an open autograd context over its workers.

    Without a file it is printed as text for Graphviz.
    """
    if output is not None and output.suffix not in _FORMS:
        raise typer.BadParameter(f"{output} must end in one of {', '.join(_FORMS)}")
    with _errors_in_words():
        found = looking.graph(context, _at(job, address))
        if output is None:
            typer.echo(found.dot(), nl=False)
        else:
            output.write_text(_FORMS[output.suffix](found))


# ---------------------------------------------------------------- inside


def _import_with_extra(module: str, complaint: str) -> Any:
    """Returns a module that needs an extra; where that is not installed the command ends with the
    complaint, in which `{missing}` is what cannot be imported."""
    try:
        return import_module(module)
    except ImportError as error:
        typer.echo(f"lockstitch: {complaint.format(missing=error.name)}", err=True)
        raise typer.Exit(1) from error


def _in_words(recorded: tracing.Trace, path: Path) -> str:
    spans = sum(len(each.spans) for each in recorded.tracks)
    words = (
        f"{path}: {spans} spans of {len(recorded.tracks)} processes in {recorded.seconds:g} s, "
        f"{len(recorded.flows)} flows"
    )
    if recorded.cut:
        words += f" ({recorded.cut} ends of others, cut by the edges or dropped)"
    if recorded.dropped:
        words += f"; {recorded.dropped} earlier spans were dropped (--most-spans)"
    return words


def _as_page(found: ContextGraph) -> str:
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" '
        f'content="light dark"><title>context {found.context_id}</title>{found.svg()}</html>\n'
    )


_FORMS: Final[Mapping[str, Callable[[ContextGraph], str]]] = {
    ".svg": ContextGraph.svg,
    ".html": _as_page,
    ".dot": ContextGraph.dot,
    ".json": lambda found: json.dumps(dataclasses.asdict(found), indent=2) + "\n",
}


def _at(job: str | None, address: str | None) -> str | None:
    """Returns what names a job: one of this host, or the address of a gateway."""
    if address is None:
        return job
    if job is not None:
        raise typer.BadParameter("say JOB or --address, not both", param_hint="--address")
    return f"tcp://{address}"


@contextlib.contextmanager
def _errors_in_words() -> Iterator[None]:
    try:
        yield
    except (LookupError, OSError, RuntimeError, ValueError) as error:
        typer.echo(f"lockstitch: {error}", err=True)
        raise typer.Exit(1) from error


def _status_view(job: Job) -> Group:
    found = calls(job)
    tables = (status_table(job), calls_table(found), edges_table(found))
    parts: list[RenderableType] = [Text(headline(job), style="bold")]
    parts += [Text(each, style="red") for each in unreached_lines(job)]
    for table in tables:
        parts += [] if table is None else [table, ""]
    return Group(*parts[:-1])


def _console() -> Console:
    # Where nobody looks, lines are not cut at the width of a terminal.
    console = Console()
    return console if console.is_terminal else Console(width=200)


def _print_json(value: Any) -> None:
    as_plain: Callable[[Any], Any] = dataclasses.asdict
    plain = [as_plain(each) for each in value] if isinstance(value, list) else as_plain(value)
    typer.echo(json.dumps(plain, indent=2))
