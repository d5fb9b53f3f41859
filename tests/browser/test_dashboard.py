"""The page of `lockstitch dashboard` in Chromium, of jobs under load: `make test-browser`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any

import pytest

from lockstitch import observe
from tests.unit.observe.jobs import idle, job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.attach.values import Question

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install 'lockstitch[browser]'"
)
pytest.importorskip("uvicorn", reason="needs the server: pip install 'lockstitch[dashboard]'")

from lockstitch.dashboard.serving import serve  # noqa: E402 - needs the server

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
AXE = Path(__file__).parents[2] / "packaging/dashboard/node_modules/axe-core/axe.min.js"
PATIENCE_SECONDS = 60
SEEN_WITHIN_SECONDS = 2.0
VIEWS = ("workers", "calls", "time", "waits", "graph", "trace")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium; CHROMIUM names another one"),
]

LOAD = """
    import os, random, threading, torch
    from lockstitch import observe, rpc
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    pause = threading.Event()
    def double(values):
        return values * 2
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
    for number in range(10**9):
        other = random.choice([each for each in range(size) if each != rank])
        rpc.rpc_sync(f"worker{other}", double, (torch.ones(64),))
        observe.step(loss=1 / (1 + number))
        pause.wait(0.002)
"""
CYCLE = """
    import os, threading
    from lockstitch import rpc
    rank, lock = int(os.environ["RANK"]), threading.Lock()
    def ask():
        with lock:
            return rank
    with lock:  # before the other can call
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        rpc.rpc_sync(f"worker{1 - rank}", ask, timeout=0)
"""
CONTEXT = """
    import os, threading, torch
    import torch.nn as nn
    from lockstitch import rpc
    import lockstitch.autograd as dist_autograd
    rank = int(os.environ["RANK"])
    def double(values):
        return values * 2
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    if rank == 0:
        with dist_autograd.context() as context:
            rpc.rpc_sync("worker1", double, (torch.ones(3, requires_grad=True),)).sum()
            threading.Event().wait()
    threading.Event().wait()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts commands of Lockstitch; they are ended afterwards."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "lockstitch", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()
    for process in started:
        process.communicate(timeout=PATIENCE_SECONDS)


@pytest.fixture
def dashboard(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> Callable[..., tuple[str, subprocess.Popen[str]]]:
    """Starts a job and the page of it; returns the address of that, and its command."""

    def dashboard(
        program: str, name: str, workers: int = 3, *options: str
    ) -> tuple[str, subprocess.Popen[str]]:
        script = tmp_path / f"{name}.py"
        script.write_text(textwrap.dedent(program))
        start("run", "--name", name, "--grace", "0.2", "-n", str(workers), *options, str(script))
        when(lambda: len(observe.status(name).processes) == workers)
        when(lambda: all(each.workers for each in observe.status(name).processes))
        command = start("dashboard", name)
        assert command.stdout is not None
        return command.stdout.readline().strip(), command

    return dashboard


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that must not fail, nor ask anybody but the command for anything."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    made = context.new_page()
    made.set_default_timeout(1000 * PATIENCE_SECONDS)
    wrong: list[str] = []
    made.on("pageerror", lambda error: wrong.append(str(error)))
    made.on("console", lambda told: wrong.append(told.text) if told.type == "error" else None)
    made.on(
        "request",
        lambda asked: (
            None
            if re.match(r"(http://127\.0\.0\.1:\d+/|blob:http://127\.0\.0\.1)", asked.url)
            else wrong.append(asked.url)
        ),
    )
    yield made
    context.close()
    assert wrong == []


def when(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if condition():
                return
        except observe.JobNotFoundError:
            pass
        assert time.monotonic() < deadline


def cell(page: Any, worker: str, column: str) -> str:
    """What the table says of a worker in a column; nothing where there is no such column yet."""
    heads = page.locator("table.workers thead th").all_inner_texts()
    if column not in heads:
        return ""
    row = page.locator("table.workers tbody tr", has_text=worker)
    return str(row.locator("th, td").nth(heads.index(column)).inner_text())


def test_it_shows_a_job_under_load_and_asks_nobody_else(dashboard: Any, page: Any) -> None:
    address, _ = dashboard(LOAD, "load")
    page.goto(address)
    page.get_by_text("live", exact=True).wait_for()
    assert "token" not in page.url  # it could be bookmarked
    when(lambda: cell(page, "worker1", "Calls/s") not in ("", "0"))
    before = cell(page, "worker0", "Step")
    when(lambda: cell(page, "worker0", "Step") != before)
    page.reload()  # the token is kept
    page.get_by_text("live", exact=True).wait_for()
    page.get_by_role("button", name="Worker").click()
    page.get_by_role("button", name="Worker").click()
    when(lambda: page.locator("tbody tr .name").first.inner_text() == "worker2")
    page.get_by_role("link", name="Time").click()
    page.locator("figcaption", has_text="loss").wait_for()
    when(lambda: page.locator("figure canvas").count() >= 4)
    page.get_by_role("link", name="Who calls whom").click()
    page.get_by_role("row", name=re.compile("^double ")).wait_for()
    when(lambda: re.search(r"[1-9][\d.]*/s", page.locator("table.matrix").inner_text()))
    page.get_by_role("link", name="Waits").click()
    page.get_by_text("worker0 (rank 0").wait_for()
    page.get_by_role("link", name="Trace").click()
    page.get_by_label("Record for").select_option("1")
    with page.expect_download() as download:
        page.get_by_role("button", name="Record a trace").click()
    told = json.loads(Path(download.value.path()).read_text())
    assert any(each.get("ph") == "X" for each in told["traceEvents"])
    # Its first paint, and how large it is.
    script = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
    print(f"first paint after {page.evaluate(script):.0f} ms")


def test_a_killed_worker_is_marked_with_how_and_the_end_of_the_job_is_told(
    dashboard: Any, page: Any
) -> None:
    address, command = dashboard(LOAD, "killed")
    page.goto(address)
    page.get_by_text("live", exact=True).wait_for()
    victim = observe.status("killed").processes[2].card.pid
    began_at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    gone = page.locator("tr[data-state='gone']", has_text="worker2")
    gone.wait_for()
    took = time.monotonic() - began_at
    assert took < SEEN_WITHIN_SECONDS + 5  # a machine that is busy; the figure is printed
    print(f"a killed worker was marked after {took:.2f} s")
    page.locator("#about", has_text="has ended at").wait_for()
    assert "killed by SIGKILL" in gone.inner_text()
    assert page.locator("#link").inner_text() == "ended"
    assert command.wait(timeout=PATIENCE_SECONDS) == 0  # and with it its token


def test_a_cycle_is_told_in_red(dashboard: Any, page: Any) -> None:
    address, _ = dashboard(CYCLE, "cycle", 2)
    page.goto(f"{address}#waits")
    cycle = page.locator("article[data-kind='cycle']")
    cycle.wait_for()
    assert "2 workers wait for each other in a cycle" in cycle.inner_text()
    assert "with lock:" in cycle.inner_text()
    badge = page.get_by_role("link", name="Waits").locator(".badge")
    assert badge.inner_text() == "1"


class FarJob:
    """A job of which another host does not answer."""

    name = "far"
    is_over = False

    def look(self, _question: Question) -> observe.Job:
        if self.is_over:
            raise observe.JobNotFoundError("job far has ended")
        return replace(job(idle(0)), name=self.name, unreached=("beta:41873 cannot be asked",))


def test_hosts_that_could_not_be_reached_are_told(page: Any) -> None:
    watch, addresses = FarJob(), Queue[str]()
    serving = threading.Thread(target=serve, args=(watch, 0, addresses.put))
    serving.start()
    try:
        page.goto(addresses.get(timeout=PATIENCE_SECONDS))
        told = page.locator("#unreached")
        told.wait_for()
        assert told.inner_text() == "of another host nothing is known: beta:41873 cannot be asked"
    finally:
        watch.is_over = True
        serving.join()


def test_the_graph_of_a_context_is_drawn(dashboard: Any, page: Any) -> None:
    address, _ = dashboard(CONTEXT, "context", 2)
    page.goto(f"{address}#graph")
    picture = page.locator(".picture img")
    picture.wait_for()
    when(lambda: page.evaluate("document.querySelector('.picture img').naturalWidth") > 100)


def test_a_lost_connection_is_told_and_found_again(
    dashboard: Any, start: Any, browser: Any
) -> None:
    address, command = dashboard(LOAD, "lost")
    page = browser.new_page()
    page.goto(address)
    page.get_by_text("live", exact=True).wait_for()
    command.kill()
    page.get_by_text("Trying again").wait_for()
    # Another command, another token: that of the page is of no use there.
    port = re.search(r":(\d+)/", address)
    assert port is not None
    start("dashboard", "lost", "--port", port[1])
    page.get_by_text("no valid token").wait_for()
    page.close()


def test_strangers_and_other_origins_are_refused(dashboard: Any, browser: Any) -> None:
    address, _ = dashboard(LOAD, "strangers")
    base, _, token = address.partition("/?token=")
    page = browser.new_page()
    assert page.goto(f"{base}/?token=wrong").status == 403
    page.goto(base)  # the page without a token shows nothing of the job
    page.get_by_text("no valid token").wait_for()
    assert "strangers" not in page.content()
    # A page of another origin gets nothing, not even with the token.
    port = int(base.rpartition(":")[2])
    page.goto(f"http://localhost:{port}/icon.svg")
    script = """async ([address, token]) => {
        const headers = {authorization: `Bearer ${token}`};
        try { return (await fetch(address, {headers})).status; } catch { return "refused"; }
    }"""
    assert page.evaluate(script, [f"{base}/api/events", token]) == "refused"
    page.close()
    for headers in ({"Host": f"evil.example:{port}"}, {"Origin": "http://evil.example"}):
        asking = urllib.request.Request(
            f"{base}/api/events", headers={"Authorization": f"Bearer {token}", **headers}
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(asking, timeout=PATIENCE_SECONDS)
        assert caught.value.code == 403
        caught.value.close()


@pytest.mark.skipif(not AXE.is_file(), reason="needs axe-core: `make test-browser` installs it")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_labels_and_roles_are_as_they_should_be(
    dashboard: Any, browser: Any, scheme: str
) -> None:
    address, _ = dashboard(LOAD, f"axe{scheme}")
    for width in (1280, 390):
        context = browser.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 800}, bypass_csp=True
        )
        page = context.new_page()
        page.goto(address)
        page.get_by_text("live", exact=True).wait_for()
        page.evaluate(AXE.read_text())
        for view in VIEWS:
            page.evaluate(f"location.hash = '{view}'")
            page.wait_for_timeout(1500)
            found = page.evaluate("axe.run().then(told => told.violations)")
            told = [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]
            assert told == [], f"{view}, {scheme}, {width}: {json.dumps(told, indent=2)}"
            # Nothing but tables and pictures is wider than the window.
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        context.close()
