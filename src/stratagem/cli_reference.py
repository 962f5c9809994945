"""``docs/cli.md`` from the help texts: ``python -m stratagem.cli_reference > docs/cli.md``. A test compares."""

from __future__ import annotations

from stratagem.cli import VERBS, build_parser, verb_parser

__all__ = ["cli_reference"]

_HEAD = """# Command line

`stratagem VERB ...`; this page is what `--help` prints.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | `doctor` found something broken |
| 2 | an error, told in one line; `STRATAGEM_DEBUG=1` shows the traceback |
| 130 | interrupted; what was paid for is saved, and the command to go on is printed |

| environment variable | meaning |
|---|---|
| `STRATAGEM_CACHE` | folder of prepared weights (`~/.cache/stratagem`) |
| `STRATAGEM_DEBUG` | 1 shows tracebacks |
| `OMP_NUM_THREADS` | threads of torch |
"""


def cli_reference() -> str:
    """Return the page."""
    parts = [_HEAD, _block("stratagem", build_parser().format_help())]
    parts += [_block(f"stratagem {verb}", verb_parser(verb).format_help()) for verb in VERBS]
    return "\n".join(parts)


def _block(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text.rstrip()}\n```\n"


if __name__ == "__main__":
    print(cli_reference(), end="")
