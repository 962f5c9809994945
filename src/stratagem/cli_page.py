"""The verbs that make a page: view in the browser, and report."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import sys
import webbrowser
from pathlib import Path

from stratagem.errors import ConfigError, RunError

__all__ = ["TERMINAL_OPTIONS", "report", "view", "wants_page"]

TERMINAL_OPTIONS = ("iteration", "evaluation", "panel", "group", "episode", "best", "worst", "full")
"""Options of ``view`` that choose what the terminal shows."""


def wants_page(arguments: argparse.Namespace) -> bool:
    """Return whether ``view`` opens the page: on a terminal, or where an option asks for it."""
    given = {name for name, setting in vars(arguments).items() if setting is not None and setting is not False}
    page_options = ("page", "host", "port", "no_token", "no_browser")
    asked = [f"--{name.replace('_', '-')}" for name in page_options if name in given]
    printed = [f"--{name}" for name in ("text", *TERMINAL_OPTIONS) if name in given]
    if asked and printed:
        raise ConfigError(f"{asked[0]} opens the page and {printed[0]} prints; give one of them.")
    return bool(asked) or (not printed and sys.stdout.isatty())


def view(arguments: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from stratagem.page.data import Library

    library = Library.find(arguments.runs, arguments.runs_dir)
    try:
        from stratagem.page.server import bind, is_loopback, serve
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"The page needs the package {error.name!r}; run `pip install -e '.[page]'` in a clone of Stratagem, or "
            "print with --text."
        ) from error
    host = "127.0.0.1" if arguments.host is None else arguments.host
    if arguments.no_token and not is_loopback(host):
        raise ConfigError(
            f"--no-token with --host {host} would show the runs to everybody who reaches this machine; leave one of "
            "them out."
        )
    listener = bind(host, 0 if arguments.port is None else arguments.port)
    token = None if arguments.no_token else secrets.token_urlsafe(16)
    port = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}/" + ("" if token is None else f"?token={token}")
    print(f"{address}\nCtrl-C ends it. On another machine: ssh -L {port}:localhost:{port} HOST", flush=True)
    if not arguments.no_browser and sys.stdout.isatty():
        with contextlib.suppress(webbrowser.Error):
            webbrowser.open(address)
    if hasattr(os, "nice"):
        os.nice(10)  # training on the same cores comes first
    with contextlib.suppress(KeyboardInterrupt):
        serve(library, listener, token=token, any_host=not is_loopback(host))
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Write a run as one HTML file and one Markdown file."""
    from stratagem.page.data import Library
    from stratagem.page.document import write_document

    runs = list(Library.find([arguments.run], arguments.runs_dir).runs().values())
    if len(runs) != 1:
        names = ", ".join(sorted(run.key for run in runs)) or "none"
        raise RunError(f"{arguments.run!r} is a folder of runs; name one of {names}.")
    folder = runs[0].path if arguments.to is None else Path(arguments.to)
    for path in write_document(runs[0], folder):
        print(path)
    return 0
