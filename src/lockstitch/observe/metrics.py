"""The counters of a job for Prometheus: asked of its workers whenever somebody scrapes them.

Needs `prometheus-client` (`pip install 'lockstitch[metrics]'`). Who asks must know a token, since
anybody on a host can connect to an address of it.
"""

from __future__ import annotations

import hmac
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from lockstitch.attach.far import UnreachedError
from lockstitch.attach.traffic import BOUNDS
from lockstitch.observe import looking
from lockstitch.observe.grouping import JobNotFoundError
from lockstitch.observe.participants import participants_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from wsgiref.simple_server import WSGIServer

    from lockstitch.attach.values import CallTraffic
    from lockstitch.observe.grouping import Job
    from lockstitch.observe.participants import Participant

Family: TypeAlias = "CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily"
_LABELS: Final = ("job", "worker", "rank")
_OF_CALLS: Final = (*_LABELS, "function", "peer")
_FIRST_DIGITS: Final = "125"
"""Of the bounds of bins, so many are shown for each power of ten: those that begin with these."""
HELP: Final = {
    "lockstitch_up": "Whether the worker answers.",
    "lockstitch_rpc_calls_total": "Requests that the worker has sent.",
    "lockstitch_rpc_served_total": "Requests that it has served.",
    "lockstitch_rpc_call_seconds": "Calls that the worker has made, until the result was there.",
    "lockstitch_rpc_call_failures_total": "Those of them that have raised an error.",
    "lockstitch_rpc_call_sent_bytes_total": "Bytes of the values that they brought.",
    "lockstitch_rpc_call_received_bytes_total": "Bytes of the values that they got.",
    "lockstitch_rpc_serve_seconds": "Calls that the worker has served, until they were answered.",
    "lockstitch_rpc_serve_failures_total": "Those of them that have raised an error.",
    "lockstitch_rpc_serve_sent_bytes_total": "Bytes of the values that it has answered.",
    "lockstitch_rpc_serve_received_bytes_total": "Bytes of the values that came with them.",
    "lockstitch_rpc_calls_pending": "Its requests without an answer yet.",
    "lockstitch_rpc_calls_serving": "Requests that it serves now.",
    "lockstitch_rpc_calls_queued": "Calls that wait for a thread of it.",
    "lockstitch_rpc_threads": "Threads of its pool.",
    "lockstitch_rpc_peers": "Workers that it is connected to.",
    "lockstitch_rrefs_owned": "Values of it that others refer to.",
    "lockstitch_rrefs_used": "References that it holds to values of others.",
    "lockstitch_rrefs_pending": "References that their owner has not confirmed yet.",
    "lockstitch_autograd_contexts": "Contexts of distributed autograd that are open on it.",
    "lockstitch_autograd_passes": "Backward passes that run on it.",
    "lockstitch_collectives_submitted_total": "Collectives that the rank has submitted.",
    "lockstitch_collectives_completed_total": "Collectives that are done.",
    "lockstitch_collectives_failed_total": "Collectives that have failed.",
    "lockstitch_collectives_bytes_total": "Bytes of the tensors that it has submitted.",
    "lockstitch_collectives_pending": "Collectives that are under way.",
    "lockstitch_process_cpu_seconds_total": "Processor time of the process.",
    "lockstitch_process_resident_memory_bytes": "Resident memory of the process.",
    "lockstitch_process_threads": "Threads of the process.",
    "lockstitch_process_open_files": "Files that it has open, sockets included.",
    "lockstitch_step": "The last step that the program has told of.",
    "lockstitch_step_value": "The values of that step, by name.",
}


class JobCollector:
    """Asks a job for its counters whenever they are collected; of one that has ended, or cannot be
    reached, there are none."""

    def __init__(self, wanted: str | int | None) -> None:
        self._wanted = wanted

    def collect(self) -> Iterable[Family]:
        """Yields the families of the counters."""
        try:
            job = looking.status(self._wanted, rate_seconds=0.0)
        except (JobNotFoundError, UnreachedError):
            return
        yield from families(job)


def families(job: Job) -> list[Family]:
    """Returns the counters of a job's workers as families of Prometheus."""
    found: dict[str, Family] = {}
    for one in participants_of(job):
        for traffic in () if one.worker is None else one.worker.traffic:
            _add_calls(found, [job.name, one.name, one.rank], traffic)
        totals: dict[tuple[str, tuple[str, ...]], float] = defaultdict(float)
        for name, labels, value in _samples(one):
            totals[name, labels] += value
        for (name, more), value in totals.items():
            family = found.get(name)
            if family is None:
                names = [*_LABELS, *(["name"] if more else [])]
                make = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                family = found[name] = make(name, HELP[name], labels=names)
            family.add_metric([job.name, one.name, one.rank, *more], value)
    return list(found.values())


def metrics_text(wanted: str | int | None) -> str:
    """Returns the counters of a job in Prometheus's text format. `wanted`, and what is raised: as
    in `looking.status`."""
    registry = CollectorRegistry()
    job = looking.status(wanted, rate_seconds=0.0)
    registry.register(_Fixed(families(job)))
    return str(generate_latest(registry).decode())


def serve_metrics(wanted: str | int | None, address: tuple[str, int], token: str) -> WSGIServer:
    """Returns a server of the counters that listens at an address and a port (0: any that is free);
    `serve_forever` runs it. Who asks gives the token as a bearer's, or in the URL. Raises
    `OSError`."""
    registry = CollectorRegistry()
    registry.register(JobCollector(wanted))

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        if not _knows(environ, token):
            start("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
            return [b"the token is missing or wrong\n"]
        start("200 OK", [("Content-Type", CONTENT_TYPE_LATEST)])
        return [generate_latest(registry)]

    return make_server(*address, answer, handler_class=_Quiet)


class _Fixed:
    def __init__(self, known: list[Family]) -> None:
        self._known = known

    def collect(self) -> list[Family]:
        return self._known


class _Quiet(WSGIRequestHandler):
    """Does not print each request, in which the token may stand."""

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""


def _knows(environ: dict[str, Any], token: str) -> bool:
    bearer = str(environ.get("HTTP_AUTHORIZATION", "")).removeprefix("Bearer ")
    in_url = parse_qs(str(environ.get("QUERY_STRING", ""))).get("token", [""])[0]
    given = (bearer, in_url)
    return any(hmac.compare_digest(each.encode(), token.encode()) for each in given)


def _samples(one: Participant) -> Iterator[tuple[str, tuple[str, ...], float]]:
    yield "lockstitch_up", (), float(one.report is not None)
    if one.report is None:
        return
    for counter in one.counters:
        yield counter.name, (), counter.value
    if (system := one.report.system) is not None:
        yield "lockstitch_process_cpu_seconds_total", (), system.cpu_seconds
        yield "lockstitch_process_resident_memory_bytes", (), float(system.memory)
        yield "lockstitch_process_threads", (), float(system.threads)
        if system.files:
            yield "lockstitch_process_open_files", (), float(system.files)
    if (step := one.report.step) is not None:
        yield "lockstitch_step", (), float(step.number)
        for name, value in step.values:
            yield "lockstitch_step_value", (name,), value


def _add_calls(found: dict[str, Family], who: list[str], traffic: CallTraffic) -> None:
    """Adds the calls of one function with one peer."""
    prefix = f"lockstitch_rpc_{'call' if traffic.role == 'made' else 'serve'}"
    labels = [*who, traffic.function, traffic.peer]
    seconds = _family(found, f"{prefix}_seconds", HistogramMetricFamily)
    seconds.add_metric(labels, buckets=_buckets(traffic.bins), sum_value=traffic.seconds)
    for name, value in (
        ("failures", traffic.failed),
        ("sent_bytes", traffic.sent),
        ("received_bytes", traffic.received),
    ):
        _family(found, f"{prefix}_{name}_total", CounterMetricFamily).add_metric(labels, value)


def _family(found: dict[str, Family], name: str, make: Any) -> Any:
    family = found.get(name)
    if family is None:
        family = found[name] = make(name, HELP[name], labels=_OF_CALLS)
    return family


def _buckets(bins: Sequence[int]) -> list[tuple[str, float]]:
    """Returns how many durations were no longer than each of the bounds that are shown."""
    buckets, count = [], 0.0
    for bound, more in zip(BOUNDS, [*bins, *[0] * (len(BOUNDS) - len(bins))], strict=False):
        count += more
        digits = f"{bound:e}".partition("e")[0]
        if digits[0] in _FIRST_DIGITS and not digits[1:].strip(".0"):
            buckets.append((str(bound), count))
    return [*buckets, ("+Inf", float(sum(bins)))]
