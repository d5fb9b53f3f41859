"""The server of a page, from its first word to the end of its job."""

from __future__ import annotations

import queue
import threading
import urllib.error
import urllib.request

import pytest

pytest.importorskip("uvicorn")

from lockstitch.dashboard import serving
from lockstitch.link.ports import listen
from tests.unit.dashboard.looks import Looks
from tests.unit.observe.jobs import idle, job

PATIENCE_SECONDS = 60


def test_it_serves_at_the_address_that_it_announces_until_the_job_ends() -> None:
    addresses: queue.Queue[str] = queue.Queue()
    thread = threading.Thread(
        target=serving.serve, args=(Looks(job(idle(0))), 0, addresses.put), daemon=True
    )
    thread.start()
    address = addresses.get(timeout=PATIENCE_SECONDS)
    base, _, token = address.partition("/?token=")
    assert base.startswith("http://127.0.0.1:")
    asking = urllib.request.Request(
        f"{base}/api/events", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(asking, timeout=PATIENCE_SECONDS) as answer:
        events = answer.read().decode()  # until the job has ended
    assert '"ended_at":null' in events
    assert "it ended with the job" in events
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=PATIENCE_SECONDS)


def test_a_port_that_is_taken_is_refused() -> None:
    with listen("127.0.0.1", None, 1) as taken, pytest.raises(OSError, match="in use"):
        serving.serve(Looks(), taken.getsockname()[1], print)
