"""Who may have the page of a job, as a layer around its application (ASGI).

Anybody on a host can connect to an address of it, and any page in a user's browser can send
requests there. So what tells of the job wants a token, in a header that no other page can know or
send: not in a cookie, since browsers give cookies of one port to servers of all others. A request
must name this host by a name of its own, else a stranger's name might have been led here (DNS
rebinding), and come from this page or from none. The answers tell the browser to load nothing from
elsewhere and to show the page in no other.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    Application = Callable[[Scope, Receive, Send], Awaitable[None]]

HOSTS: Final = frozenset({"127.0.0.1", "localhost", "::1"})
PRIVATE: Final = "/api/"
"""Below this path a request has to prove itself; the rest is the same for every job."""
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Access:
    """Lets requests through to `application` that may have what they ask for, and answers 403 to
    the others. The host may be called by one of `HOSTS`."""

    def __init__(self, application: Application, token: str) -> None:
        self._application = application
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, as servers of ASGI ask for it."""
        if scope["type"] != "http":  # the application has nothing else to offer
            await self._application(scope, receive, send)
        elif refusal := self._refusal(scope):
            await _refuse(refusal, _with_headers(send))
        else:
            await self._application(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> str:
        """Returns why a request is refused; empty where it is not."""
        headers = {name.decode("latin-1"): it.decode("latin-1") for name, it in scope["headers"]}
        host = headers.get("host", "")
        if _host_name(host) not in HOSTS:
            return "this host is not called that way here: open 127.0.0.1"
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return "a page of another origin may not ask"
        is_page = not scope["path"].startswith(PRIVATE)
        from_where = headers.get("sec-fetch-site", "none")
        if from_where not in ("same-origin", "none") and not is_page:
            return "a page of another origin may not ask"
        if is_page:
            given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token")
            is_right = given is None or self._is_token(given[0])
        else:
            is_right = self._is_token(headers.get("authorization", "").removeprefix("Bearer "))
        return "" if is_right else "the token is missing or wrong: open the address printed last"

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            known = {name for name, _ in message["headers"]}
            added = [(name.encode(), it.encode()) for name, it in HEADERS.items()]
            message["headers"] = [
                *message["headers"],
                *(each for each in added if each[0] not in known),
            ]
        await send(message)

    return send_with_headers


async def _refuse(why: str, send: Send) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": f"{why}\n".encode()})
