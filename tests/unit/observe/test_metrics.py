"""Counters for Prometheus, read back by its own parser."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from lockstitch.attach.asking import Silence
from lockstitch.attach.far import UnreachedError
from lockstitch.attach.traffic import Traffic
from lockstitch.attach.values import Counter, GroupReport, StepReport, WorkerReport
from lockstitch.observe import looking, metrics
from lockstitch.observe.grouping import JobNotFoundError
from tests.unit.attach.cards import card, process
from tests.unit.observe.jobs import job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstitch.observe.grouping import Job


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Job:
    calls = (Counter("lockstitch_rpc_calls_total", 5, "counter"),)
    groups = tuple(
        GroupReport("c10d", name, 0, 2, counters=(Counter("lockstitch_collectives_pending", 2),))
        for name in "ab"
    )
    report = process(10, workers=(WorkerReport("ps", 0, counters=calls),), groups=groups, rank="0")
    report = replace(report, step=StepReport(7, 1.0, 2.0, (("loss", 0.5),)))
    whole = job(report, silent=(Silence(card(11, rank="1"), "", None),))
    monkeypatch.setattr(looking, "status", lambda _wanted, rate_seconds: whole)
    return whole


LABELS = ("job", "worker", "rank", "name")


def values(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(sample.labels[each] for each in LABELS if each in sample.labels)): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_all_counters_have_a_name_of_the_conventions_and_a_help(told: Job) -> None:
    assert all(name.startswith("lockstitch_") for name in metrics.HELP)
    found = values(metrics.metrics_text(None))
    assert found["lockstitch_up", "train", "ps", "0"] == 1
    assert found["lockstitch_up", "train", "rank 1", "1"] == 0
    assert found["lockstitch_rpc_calls_total", "train", "ps", "0"] == 5
    assert found["lockstitch_collectives_pending", "train", "ps", "0"] == 4  # of both groups
    assert found["lockstitch_process_cpu_seconds_total", "train", "ps", "0"] == 1.5
    assert found["lockstitch_step", "train", "ps", "0"] == 7
    assert found["lockstitch_step_value", "train", "ps", "0", "loss"] == 0.5


@pytest.fixture
def url(told: Job) -> Iterator[str]:
    server = metrics.serve_metrics(None, ("127.0.0.1", 0), "right")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()
    thread.join()


def test_who_knows_the_token_is_answered(url: str) -> None:
    with urllib.request.urlopen(f"{url}?token=right", timeout=30) as answer:
        assert values(answer.read().decode())["lockstitch_up", "train", "ps", "0"] == 1
    asking = urllib.request.Request(url, headers={"Authorization": "Bearer right"})
    with urllib.request.urlopen(asking, timeout=30) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong"])
def test_who_does_not_is_refused(url: str, query: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{url}{query}", timeout=30)
    assert caught.value.code == 401
    caught.value.close()


@pytest.mark.parametrize("error", [JobNotFoundError, UnreachedError])
def test_of_a_job_that_has_ended_there_are_none(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def gone(_wanted: object, rate_seconds: float) -> Job:
        raise error("it has ended")

    monkeypatch.setattr(looking, "status", gone)
    assert list(metrics.JobCollector(None).collect()) == []


def test_calls_are_histograms_by_function_and_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic()
    for seconds in (1e-6, 0.0011, 0.0011, 0.3, 1000.0):
        traffic.series(("call", "m:f", "w", "ps")).note(seconds, 100, 7, has_failed=seconds > 500)
    traffic.series(("serve", "m:g", "w", "ps")).note(0.5, 1, 2, has_failed=False)
    worker = WorkerReport("ps", 0, traffic=traffic.of("w"))
    whole = job(process(10, workers=(worker,), rank="0"))
    monkeypatch.setattr(looking, "status", lambda _wanted, rate_seconds: whole)
    samples = [
        sample
        for family in text_string_to_metric_families(metrics.metrics_text(None))
        for sample in family.samples
        if sample.labels.get("function") == "m:f"
    ]
    buckets = {each.labels["le"]: each.value for each in samples if "le" in each.labels}
    assert buckets["1e-06"] == 1
    assert buckets["0.001"] == 1
    assert buckets["0.002"] == 3
    assert buckets["0.5"] == 4
    assert buckets["500.0"] == 4
    assert buckets["+Inf"] == 5
    assert len(buckets) == 3 * 9 + 1
    plain = {each.name: each.value for each in samples if "le" not in each.labels}
    assert plain == {
        "lockstitch_rpc_call_seconds_count": 5,
        "lockstitch_rpc_call_seconds_sum": pytest.approx(1000.302201),
        "lockstitch_rpc_call_failures_total": 1,
        "lockstitch_rpc_call_sent_bytes_total": 500,
        "lockstitch_rpc_call_received_bytes_total": 35,
    }
