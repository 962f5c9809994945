"""Results as tables: Markdown for documents and reports, rich for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import rich.table
from rich.text import Text

from stratagem.errors import ConfigError
from stratagem.evaluation.panels import EvaluationResult
from stratagem.evaluation.statistics import Interval, Summary, paired_difference

__all__ = [
    "Table",
    "comparison_table",
    "difference",
    "format_endings",
    "format_interval",
    "format_share",
    "format_std",
    "results_table",
    "share_note",
]

_NONE = "-"


def format_interval(value: float, interval: Interval | None, *, signed: bool = False) -> str:
    """Return a number with its interval.

    >>> format_interval(0.5, (0.25, 0.75))
    '0.500 [0.250, 0.750]'
    """
    sign = "+" if signed else ""
    text = f"{value:{sign}.3f}"
    return text if interval is None else f"{text} [{interval[0]:{sign}.3f}, {interval[1]:{sign}.3f}]"


def format_share(share: float | None) -> str:
    """Return a share as a percentage.

    >>> format_share(0.5), format_share(None)
    ('50.0%', '-')
    """
    return _NONE if share is None else f"{share:.1%}"


def share_note(shares: Iterable[float | None]) -> str | None:
    """Return a footnote where a share of the optimum is above 100%, which looks like a mistake and is none.

    >>> share_note([0.5, 1.0, None])
    """
    if all(share is None or round(share, 3) <= 1 for share in shares):
        return None
    return "Above 100% of the optimum: that is what perfect play gets on average, and here chance was kinder."


def format_endings(stop_reasons: Mapping[str, int]) -> str:
    """Return how episodes ended, the most frequent reason first.

    >>> format_endings({"max_steps": 5, "terminated": 45})
    'terminated 45, max_steps 5'
    """
    ordered = sorted(stop_reasons.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{reason} {count}" for reason, count in ordered) or _NONE


def format_std(std: float | None) -> str:
    """Return a standard deviation; of one episode there is none.

    >>> format_std(0.5), format_std(None)
    ('0.500', '-')
    """
    return _NONE if std is None else f"{std:.3f}"


@dataclass(frozen=True)
class Table:
    """Cells of text under headers; the first column is left-aligned, the others right-aligned."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """Return a GitHub-flavoured Markdown table, padded so that it reads well as text."""
        cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (self.headers, *self.rows)]
        widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(self.headers))]

        def line(row: Sequence[str]) -> str:
            padded = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
            return "| " + " | ".join(padded) + " |"

        rule = "| " + " | ".join(["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]) + " |"
        return "\n".join([line(cells[0]), rule, *map(line, cells[1:])]) + "\n"

    def rich(self, title: str | None = None) -> rich.table.Table:
        """Return a table for :class:`rich.console.Console`."""
        # Text, so that brackets in a cell are not read as markup.
        table = rich.table.Table(title=title, title_justify="left")
        for column, header in enumerate(self.headers):
            table.add_column(Text(header), justify="left" if column == 0 else "right", no_wrap=column == 0)
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table


def results_table(results: Mapping[str, Sequence[EvaluationResult]]) -> Table:
    """Return one row for each panel and agent.

    Args:
        results: agent (or checkpoint) in words -> its results.
    """
    rows = [
        (
            f"{result.panel} ({label})" if len(results) > 1 else result.panel,
            format_interval(result.mean, result.interval),
            format_std(result.std),
            format_share(result.success_rate),
            format_share(result.share_of_optimum),
            format_share(result.invalid_action_rate),
            f"{result.mean_episode_length:.1f}",
            f"{result.tokens_per_step:.1f}",
            str(result.num_episodes),
            format_endings(result.stop_reasons),
        )
        for label, of_agent in results.items()
        for result in of_agent
    ]
    headers = (
        *("Panel", "Return [95%]", "Std", "Success", "Of optimum", "Invalid", "Steps", "Tokens/step", "Episodes"),
        "Ended by",
    )
    return Table(headers, tuple(rows))


def difference(before: EvaluationResult, after: EvaluationResult) -> Summary:
    """Return after - before over the episodes that both played, with a paired interval.

    Raises:
        ConfigError: the results are of different panels, or share no episode.
    """
    if (before.panel, before.panel_hash) != (after.panel, after.panel_hash):
        raise ConfigError(
            f"panel={before.panel!r} (hash {before.panel_hash}) cannot be compared with panel={after.panel!r} "
            f"(hash {after.panel_hash}); evaluate both agents on the same panel."
        )
    first = dict(zip(before.seeds, before.returns, strict=True))
    second = dict(zip(after.seeds, after.returns, strict=True))
    shared = [seed for seed in first if seed in second]
    if not shared:
        raise ConfigError(
            f"panel={before.panel!r} has no episode that counts in both results, since a game failed in each; "
            "evaluate again."
        )
    return paired_difference([first[seed] for seed in shared], [second[seed] for seed in shared])


def comparison_table(
    before: Sequence[EvaluationResult],
    after: Sequence[EvaluationResult],
    labels: tuple[str, str] = ("before", "after"),
) -> Table:
    """Return one row for each panel: before, after and the paired difference.

    Args:
        before: one result for each panel.
        after: of the same panels, in the same order.
        labels: how to call the two.

    Raises:
        ConfigError: the results are not of the same panels.
    """
    if len(before) != len(after):
        raise ConfigError(
            f"before has {len(before)} results and after {len(after)}; evaluate both agents on the same panels."
        )
    first, second = labels
    rows = []
    for old, new in zip(before, after, strict=True):
        change = difference(old, new)
        rows.append(
            (
                old.panel,
                format_interval(old.mean, old.interval),
                format_interval(new.mean, new.interval),
                format_interval(change.mean, change.interval, signed=True),
                f"{format_share(old.success_rate)} / {format_share(new.success_rate)}",
                f"{format_share(old.share_of_optimum)} / {format_share(new.share_of_optimum)}",
                f"{format_share(old.invalid_action_rate)} / {format_share(new.invalid_action_rate)}",
                str(change.count),
            )
        )
    pair = f"{first} / {second}"
    headers = (
        "Panel",
        f"Return {first} [95%]",
        f"Return {second} [95%]",
        "Difference [95%]",
        f"Success {pair}",
        f"Of optimum {pair}",
        f"Invalid {pair}",
        "Episodes",
    )
    return Table(headers, tuple(rows))
