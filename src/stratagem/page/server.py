"""The page on a port of this machine: who may ask, and which address shows what.

Starlette answers, Jinja2 fills the templates (everything from files is escaped), uvicorn speaks HTTP. Nothing is
written, nothing is fetched from elsewhere, and the policy sent with each answer forbids the browser to do either.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, urlencode

import uvicorn
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from stratagem import __version__
from stratagem.errors import ConfigError, StratagemError
from stratagem.page import episode, episodes, run, runs
from stratagem.page.answers import format_probability
from stratagem.page.charts import format_number
from stratagem.page.data import Library

__all__ = ["bind", "is_loopback", "make_app", "serve"]

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_STATIC = Path(__file__).parent / "static"

View = Callable[[Library, Request], dict[str, Any]]


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Args:
        host: a name or an address of this machine.
        port: 0 takes any that is free.

    Raises:
        ConfigError: the port is taken or the host is not of this machine.
    """
    listener = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(64)
    except (OSError, OverflowError) as error:
        if listener is not None:
            listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"--host {host} --port {port} cannot be opened ({reason}); choose another --port, or leave it out for any "
            "that is free."
        ) from error
    return listener


def _stamp(library: Library, key: str | None) -> str:
    """Return a text that changes when something was written in a run, or in any run if ``key`` is None."""
    return ";".join(run.stamp() for run in library.runs().values() if key is None or run.key == key)


def make_app(library: Library, *, token: str | None = None, any_host: bool = False) -> ASGIApp:
    """Return the application.

    Args:
        library: what is shown.
        token: what the first address must carry; None lets everybody in who reaches the port.
        any_host: answer to every host name rather than to those of this machine only.
    """
    lock = Lock()  # one reader at a time: the caches are plain dicts
    environment = Environment(
        loader=PackageLoader("stratagem.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        num=format_number, pct=lambda value: format_number(value, percent=True), share=format_probability
    )
    environment.globals.update(version=__version__)

    def route(path: str, template: str, view: View) -> Route:
        def answer(request: Request) -> Response:
            try:
                with lock:
                    # Before the files are read: what is written meanwhile must look new to the page.
                    now = _stamp(library, request.path_params.get("run"))
                    context = view(library, request)
                    text = environment.get_template(template).render(path=request.url.path, stamp_now=now, **context)
            except StratagemError as error:
                text = environment.get_template("missing.html").render(
                    path=request.url.path, title="Not here", message=str(error), stamp_url="", stamp_now="", crumbs=[]
                )
                return HTMLResponse(text, status_code=404)
            return HTMLResponse(text, headers={"Cache-Control": "no-store"})

        return Route(path, answer, methods=["GET"])

    def stamp(request: Request) -> Response:
        with lock:
            text = _stamp(library, request.query_params.get("run"))
        return PlainTextResponse(text, headers={"Cache-Control": "no-store"})

    application = Starlette(
        routes=[
            route("/", "runs.html", runs.show),
            route("/run/{run}", "run.html", run.show),
            route("/run/{run}/episodes", "episodes.html", episodes.show),
            route("/run/{run}/iteration/{iteration:int}/group/{group:int}", "group.html", episode.show_group),
            route(
                "/run/{run}/iteration/{iteration:int}/group/{group:int}/episode/{episode:int}",
                "episode.html",
                episode.show,
            ),
            route("/run/{run}/evaluation/{tag}/{panel}", "episodes.html", episodes.show_evaluation),
            route("/run/{run}/evaluation/{tag}/{panel}/episode/{episode:int}", "episode.html", episode.show_evaluated),
            Route("/stamp", stamp, methods=["GET"]),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ]
    )
    return _Guard(application, token=token, any_host=any_host)


def serve(library: Library, listener: socket.socket, *, token: str | None, any_host: bool) -> None:
    """Answer until Ctrl-C."""
    application = make_app(library, token=token, any_host=any_host)
    config = uvicorn.Config(
        application, log_level="error", access_log=False, lifespan="off", server_header=False, ws="none"
    )
    uvicorn.Server(config).run(sockets=[listener])


class _Guard:
    """Lets in who knows the token and asks for a name of this machine; other pages of the browser know neither."""

    def __init__(self, application: ASGIApp, *, token: str | None, any_host: bool) -> None:
        self.application = application
        self.token = token
        self.any_host = any_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await self._refusal(scope)(scope, receive, self._with_headers(send))

    def _refusal(self, scope: Scope) -> ASGIApp:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if not self.any_host and not is_loopback(name.strip("[]")):
            return PlainTextResponse("This page answers to names of this machine only.\n", status_code=421)
        if self.token is None:
            return self.application
        cookie = f"stratagem-{(scope.get('server') or ('', 0))[1]}"
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token")
        if given is not None and hmac.compare_digest(given.encode(), self.token.encode()):
            rest = urlencode([(key, value) for key, value in query if key != "token"])
            path = "/" + scope.get("raw_path", b"/").decode("latin-1").lstrip("/")  # never //host, which is an address
            answer = RedirectResponse(path + (f"?{rest}" if rest else ""), status_code=303)
            answer.set_cookie(cookie, self.token, httponly=True, samesite="lax")
            return answer
        known = Request(scope).cookies.get(cookie, "")
        if not hmac.compare_digest(known.encode(), self.token.encode()):
            text = "Open the address that `stratagem view` printed: it ends with a token, and this one does not.\n"
            return PlainTextResponse(text, status_code=403)
        return self.application

    def _with_headers(self, send: Send) -> Send:
        async def sender(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = [(key.lower().encode(), value.encode()) for key, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        return sender
