"""The server of a job's page: it ends with the job, and with it the token that opens the page."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from functools import partial
from typing import TYPE_CHECKING, Final

import uvicorn

from lockstitch.dashboard.application import make_application
from lockstitch.dashboard.watching import Watcher
from lockstitch.link.ports import listen

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from types import FrameType

    from lockstitch.observe.tracing import Looks

HOST: Final = "127.0.0.1"
_BACKLOG: Final = 64
_LAST_WORD_SECONDS: Final = 2


def serve(watch: Looks, port: int, announce: Callable[[str], object]) -> None:
    """Serves the page of a job at a port of 127.0.0.1 (0: any that is free) until the job ends, or
    Ctrl-C. `announce` is told its address, in which the token stands. Raises `OSError`."""
    with listen(HOST, range(port, port + 1) if port else None, _BACKLOG) as listener:
        token = secrets.token_urlsafe()
        announce(f"http://{HOST}:{listener.getsockname()[1]}/?token={token}")
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_Serving(watch, token).run(listener))


class _Serving:
    def __init__(self, watch: Looks, token: str) -> None:
        self._watcher = Watcher(watch)
        self._server = _Server(
            uvicorn.Config(
                make_application(self._watcher, watch, token),
                access_log=False,  # in the address of a request the token may stand
                log_level="warning",
                timeout_graceful_shutdown=_LAST_WORD_SECONDS,
                lifespan="off",
                ws="none",
                server_header=False,
            )
        )

    async def run(self, listener: socket.socket) -> None:
        watching = asyncio.create_task(self._watch())
        self._server.call_at_exit(watching.cancel)
        try:
            await self._server.serve(sockets=[listener])
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    async def _watch(self) -> None:
        try:
            await self._watcher.run()
        finally:
            self._server.should_exit = True


class _Server(uvicorn.Server):
    """Ends the streams of events at Ctrl-C, for which it would wait else."""

    _at_exit: Callable[[], object] | None = None

    def call_at_exit(self, function: Callable[[], object]) -> None:
        """Has the loop call a function when a signal ends the server."""
        self._at_exit = partial(asyncio.get_running_loop().call_soon_threadsafe, function)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._at_exit is not None:
            self._at_exit()
