"""What is answered at which path. The page itself is the same for every job; what tells of the job
lies below `/api/`, which `access.py` guards. Nothing here changes anything of it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lockstitch.attach.values import Question
from lockstitch.dashboard.access import Access
from lockstitch.observe.context_graph import ContextNotFoundError, graph_of
from lockstitch.observe.grouping import JobNotFoundError
from lockstitch.observe.tracing import bounded, trace_of, trace_question

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from lockstitch.dashboard.watching import Watcher
    from lockstitch.observe.tracing import Looks

_LONGEST_TRACE: Final = 60.0
_CONTEXTS: Final = Question(contexts=True, seconds=1.0)
STATIC: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""The files of the page, by path."""


def make_application(watcher: Watcher, watch: Looks, token: str) -> Access:
    """Returns the application of a page. `watcher` is run by whoever serves it; `watch`: the same
    job, for what is asked only when somebody wants to see it."""
    pages = _Pages(watcher, watch)
    routes = [Route(path, _static(name, kind)) for path, (name, kind) in STATIC.items()]
    routes += [Route("/api/events", pages.events), Route("/api/graph", pages.graph)]
    routes.append(Route("/api/trace", pages.trace))
    return Access(Starlette(routes=routes), token)


def _static(name: str, kind: str) -> Any:
    content = resources.files(__package__).joinpath("static").joinpath(name).read_bytes()

    async def answer(_request: Request) -> Response:
        return Response(content, media_type=kind)

    return answer


class _Pages:
    def __init__(self, watcher: Watcher, watch: Looks) -> None:
        self._watcher = watcher
        self._watch = watch

    async def events(self, _request: Request) -> Response:
        """Server-sent events: what each look has found."""
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[str]:
        async for state, points in self._watcher.updates():
            told = {
                "state": dataclasses.asdict(state),
                "points": [dataclasses.asdict(each) for each in points],
            }
            yield f"data: {json.dumps(told, separators=(',', ':'))}\n\n"

    async def graph(self, request: Request) -> Response:
        """The picture of an open autograd context."""
        asked = request.query_params.get("context", "")
        context_id = int(asked) if asked.isdecimal() else None
        try:
            job = await asyncio.to_thread(self._watch.look, _CONTEXTS)
            picture = graph_of(job, context_id).svg()
        except (ContextNotFoundError, JobNotFoundError) as error:
            return JSONResponse({"error": str(error)}, status_code=404)
        return Response(picture, media_type="image/svg+xml")

    async def trace(self, request: Request) -> Response:
        """What all workers do for some seconds, as a file for Perfetto."""
        try:
            seconds = float(request.query_params.get("seconds", "nan"))
            if not seconds <= _LONGEST_TRACE:
                raise ValueError(f"a trace takes at most {_LONGEST_TRACE:g} s here")
            question = await asyncio.to_thread(bounded, trace_question(seconds), self._watch)
            job = await asyncio.to_thread(self._watch.look, question)
        except (ValueError, JobNotFoundError) as error:
            return JSONResponse({"error": str(error)}, status_code=404)
        recorded = await asyncio.to_thread(trace_of, job, seconds)
        return StreamingResponse(recorded.text(), media_type="application/json")
