"""Asks an application what a browser would, without a network."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstitch.dashboard.access import Application


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""

    @property
    def text(self) -> str:
        return self.content.decode()

    def json(self) -> Any:
        return json.loads(self.content)


def get(
    application: Application, path: str, headers: Mapping[str, str] = {}, *, method: str = "GET"
) -> Answer:
    """Returns the answer, whole."""
    answer = Answer()
    path, _, query = path.partition("?")
    given = {"host": "127.0.0.1:4000", **{name.lower(): it for name, it in headers.items()}}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), it.encode()) for name, it in given.items()],
    }

    requests = [{"type": "http.request"}]

    async def receive() -> dict[str, Any]:
        if not requests:
            await asyncio.Event().wait()  # it stays connected
        return requests.pop()

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): it.decode() for name, it in message["headers"]}
        else:
            answer.content += message.get("body", b"")

    asyncio.run(application(scope, receive, send))
    return answer
