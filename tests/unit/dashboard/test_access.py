"""Who may have the page of a job."""

from __future__ import annotations

from typing import Any

import pytest

from lockstitch.dashboard.access import Access
from tests.unit.dashboard.client import Answer, get


async def tell(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"told"})


class Client:
    def get(self, path: str, headers: dict[str, str] | None = None) -> Answer:
        return get(Access(tell, "right"), path, headers or {})


@pytest.fixture
def client() -> Client:
    return Client()


BEARER = {"Authorization": "Bearer right"}


@pytest.mark.parametrize("path", ["/", "/?token=right", "/page.js"])
def test_the_page_itself_is_no_secret(client: Client, path: str) -> None:
    assert client.get(path).text == "told"


def test_what_tells_of_the_job_wants_the_token_in_a_header(client: Client) -> None:
    assert client.get("/api/events", headers=BEARER).text == "told"
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "token=right"}):
        assert client.get("/api/events", headers=headers).status == 403
    # An address can be read by others: it opens the page, and nothing else.
    assert client.get("/api/events?token=right").status == 403
    answer = client.get("/?token=wrong")
    assert (answer.status, "told" in answer.text) == (403, False)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:4000", "127.0.0.1.evil.example", ""]
)
def test_a_name_that_was_led_here_is_refused(client: Client, host: str) -> None:
    for path in ("/", "/api/events"):
        assert client.get(path, headers={**BEARER, "Host": host}).status == 403


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1:9", "[::1]:4000"])
def test_names_of_this_host_are_known_at_any_port(client: Client, host: str) -> None:
    # A port may have been forwarded.
    headers = {**BEARER, "Host": host, "Origin": f"http://{host}"}
    assert client.get("/api/events", headers=headers).status == 200


@pytest.mark.parametrize(
    "told",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:4001"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_pages_of_other_origins_are_refused(client: Client, told: dict[str, str]) -> None:
    assert client.get("/api/events", headers={**BEARER, **told}).status == 403


def test_a_link_to_the_page_may_be_anywhere(client: Client) -> None:
    told = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/?token=right", headers=told).status == 200


@pytest.mark.parametrize("path", ["/", "/?token=wrong", "/api/events"])
def test_the_browser_is_told_to_load_nothing_from_elsewhere(client: Client, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"
