"""The command line: parses, calls, prints. Nothing heavy is imported before a verb is known.

Every error of :mod:`stratagem.errors` is one line on standard error and exit code 2; ``STRATAGEM_DEBUG=1`` shows the
traceback. An interrupted command ends with exit code 130.
"""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from stratagem.cli_parser import build_parser, verb_parser
from stratagem.errors import ConfigError, StratagemError, UnknownNameError

__all__ = ["VERBS", "build_parser", "main", "verb_parser"]

_COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("cli_work", "train"),
    "eval": ("cli_work", "evaluate_command"),
    "play": ("cli_play", "play"),
    "view": ("cli_view", "view"),  # printed; the page is opened by cli_page
    "report": ("cli_page", "report"),
    "logprobs": ("cli_logprobs", "logprobs"),
    "reproduce": ("cli_reproduce", "reproduce"),
    "retention": ("cli_retention", "retention"),
    "baseline": ("cli_baselines", "baseline"),
    "games": ("cli_view", "games"),
    "models": ("cli_view", "models"),
    "doctor": ("cli_doctor", "doctor"),
    "export": ("cli_work", "export"),
    "data": ("cli_data", "data"),
}
"""Verb -> module and function, imported when the verb is given."""

VERBS = tuple(_COMMANDS)

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells use it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without Unicode shows "?" rather than a traceback
            stream.reconfigure(errors="replace")
    parser = build_parser()
    words = list(sys.argv[1:] if argv is None else argv)
    if words and not words[0].startswith("-") and words[0] not in VERBS:
        print(f"error: {UnknownNameError('verb', words[0], VERBS)}", file=sys.stderr)
        return 2
    arguments = parser.parse_args(words)
    if arguments.verb is None:
        parser.print_help()
        return 0
    # Ctrl-C in the middle of a rollout leaves a task behind, which asyncio would report with a traceback.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            return _dispatch(arguments)
        except StratagemError as error:
            if os.environ.get("STRATAGEM_DEBUG") == "1":
                raise
            print(f"error: {' '.join(str(error).splitlines())}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("\nInterrupted.", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:
            # The reader (head, less) has seen enough; nothing may be written to it any more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except OSError as error:
            if os.environ.get("STRATAGEM_DEBUG") == "1":
                raise
            where = "" if error.filename is None else f"{str(error.filename)!r}: "
            reason = error.strerror or " ".join(str(error).splitlines())
            print(f"error: {where}{reason}. Check the path, its permissions and the free space.", file=sys.stderr)
            return 2


def _dispatch(arguments: argparse.Namespace) -> int:
    if arguments.verb == "view":
        from stratagem.cli_page import view, wants_page

        if wants_page(arguments):
            return view(arguments)
        if len(arguments.runs) > 1:
            raise ConfigError(
                f"{len(arguments.runs)} runs cannot be printed at once; name one, or open the page with --page."
            )
        arguments.run = arguments.runs[0] if arguments.runs else None
    module, function = _COMMANDS[arguments.verb]
    code: int = getattr(importlib.import_module(f"stratagem.{module}"), function)(arguments)
    return code


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    print(f"warning: {' '.join(str(message).splitlines())}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
