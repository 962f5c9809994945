"""Which metrics are drawn together, and what they are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from stratagem.page.charts import Series, smooth
from stratagem.page.data import RunData, flatten, number

__all__ = ["COMPARED", "GROUPS", "Chart", "compared_series", "other_charts", "run_series", "same_settings", "value"]


@dataclass(frozen=True)
class Chart:
    """Metrics on one pair of axes."""

    title: str
    metrics: tuple[tuple[str, str], ...]
    """(name in metrics.jsonl or in ``_DERIVED``, label)."""
    percent: bool = False
    hint: str = ""
    """What it is and how to read it."""


GROUPS: tuple[tuple[str, tuple[Chart, ...]], ...] = (
    (
        "Is it getting better?",
        (
            Chart(
                "Return",
                (
                    ("return_mean", "training episodes"),
                    ("panel_mean", "fixed panel"),
                    ("composite_return_mean", "with shaping"),
                ),
                hint="Reward of the game and penalties for invalid actions, summed over an episode.",
            ),
            Chart(
                "Success",
                (("success_rate", "training episodes"), ("panel_success_rate", "fixed panel")),
                True,
                "Share of episodes that the game calls a success.",
            ),
            Chart(
                "Format",
                (("valid_rate", "training episodes"), ("panel_valid_rate", "fixed panel")),
                True,
                "Share of steps whose answer held a valid action.",
            ),
        ),
    ),
    (
        "What are the episodes like?",
        (
            Chart("Steps per episode", (("episode_length", "steps"),), hint="Mean over the episodes played."),
            Chart("Tokens per step", (("tokens_per_step", "tokens"),), hint="Generated tokens per step."),
        ),
    ),
    (
        "Is the update healthy?",
        (
            Chart(
                "Groups without signal",
                (("groups_without_signal", "share"),),
                True,
                "Groups whose episodes all end alike teach nothing.",
            ),
            Chart("Entropy", (("entropy", "nats"),), hint="Of the next token; near 0 nothing new is tried."),
            Chart(
                "KL divergence",
                (
                    ("approx_kl", "to the sampling policy"),
                    ("kl_to_reference", "to the reference"),
                    ("step_kl", "of the step"),
                ),
                hint="How far the policy moved in an iteration, and from the reference.",
            ),
            Chart("Clipped tokens", (("clip_fraction", "share"),), True, "Tokens on which the clip cuts the gradient."),
            Chart("Gradient norm", (("grad_norm", "before clipping"),), hint="Before clipping to max_grad_norm."),
            Chart("Loss", (("loss", "loss"),), hint="Of the update; its level says little, jumps do."),
            Chart("Learning rate", (("learning_rate", "rate"),), hint="After warm-up and decay."),
            Chart(
                "Kept share of the step", (("step_share", "share"),), True, "With max_kl: how much of a step was kept."
            ),
            Chart(
                "Ratio gap",
                (("ratio_gap", "largest"),),
                hint="Sampler against learner before the update; rounding only.",
            ),
        ),
    ),
    (
        "What does it cost?",
        (
            Chart("Tokens saved by the tree", (("tokens_saved", "share"),), True, "1 - computed / seen row by row."),
            Chart(
                "Peak memory", (("peak_memory_gib", "GiB"), ("peak_gpu_memory_gib", "GiB on the GPU")), hint="So far."
            ),
        ),
    ),
)
"""Charts of one run. Metrics that no chart names are drawn under "Other"."""

COMPARED: tuple[tuple[str, str, bool], ...] = (
    ("return_mean", "Return, training episodes", False),
    ("panel_mean", "Return, fixed panel", False),
    ("success_rate", "Success, training episodes", True),
    ("panel_success_rate", "Success, fixed panel", True),
    ("valid_rate", "Valid actions", True),
    ("groups_without_signal", "Groups without signal", True),
    ("entropy", "Entropy", False),
    ("approx_kl", "KL to the sampling policy", False),
    ("grad_norm", "Gradient norm", False),
    ("seconds", "Seconds per iteration", False),
)
"""Metrics that runs are compared by."""

_HIDDEN = {"iteration", "panel_low", "panel_high", "invalid_action_rate", "panel_invalid_action_rate", "num_updates"}
_HIDDEN |= {"tokens_computed", "tokens_seen", "num_episodes", "return_std"}


def value(row: Mapping[str, Any], name: str) -> float | None:
    """Return a metric of a row, also one that follows from others; None where there is none."""
    if name == "valid_rate":
        rate = number(row.get("invalid_action_rate"))
        return None if rate is None else 1.0 - rate
    if name == "panel_valid_rate":
        rate = number(row.get("panel_invalid_action_rate"))
        return None if rate is None else 1.0 - rate
    if name == "tokens_saved":
        computed, seen = number(row.get("tokens_computed")), number(row.get("tokens_seen"))
        return 1.0 - computed / seen if computed is not None and seen else None
    if name == "seconds":
        parts = [s for key, part in row.items() if key.startswith("seconds_") and (s := number(part)) is not None]
        return sum(parts) if parts else None
    return number(row.get(name))


def run_series(rows: Sequence[Mapping[str, Any]], chart: Chart, window: int) -> list[Series]:
    """Return the lines of a chart of one run; those without a number are left out."""
    found = []
    for place, (name, label) in enumerate(chart.metrics):
        kept = [(row, v) for row in rows if (v := value(row, name)) is not None]
        values: list[float | None] = [v for _, v in kept]
        if name == "composite_return_mean" and all(v == value(row, "return_mean") for row, v in kept):
            continue  # no shaping: the same line twice
        if name == "kl_to_reference" and not any(values):
            continue
        if not values:
            continue
        x = [row["iteration"] for row, _ in kept]
        low = [number(row.get("panel_low")) for row, _ in kept] if name == "panel_mean" else []
        high = [number(row.get("panel_high")) for row, _ in kept] if name == "panel_mean" else []
        smoothed = window > 1 and not name.startswith("panel_")
        found.append(
            Series(
                label, x, smooth(values, window) if smoothed else values, low, high, values if smoothed else (), place
            )
        )
    return found


def other_charts(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Return a chart for each metric that no other chart shows and that was ever different from zero."""
    known = {name for _, charts in GROUPS for chart in charts for name, _ in chart.metrics} | _HIDDEN
    counts = Counter(key for row in rows for key, item in row.items() if number(item))  # zeros say nothing
    return [
        Chart(name, ((name, name),))
        for name, count in counts.items()
        if count > 1 and name not in known and not name.startswith("seconds_")
    ]


def same_settings(runs: Iterable[RunData]) -> list[list[RunData]]:
    """Return the runs in groups that differ in seed and name only."""
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        recipe = {key: item for key, item in flatten(run.recipe).items() if key not in ("seed", "name")}
        groups.setdefault(repr(sorted(recipe.items(), key=lambda item: item[0])), []).append(run)
    return list(groups.values())


def compared_series(groups: Sequence[Sequence[RunData]], name: str, window: int) -> list[Series]:
    """Return one line for each group of runs: its value, or over several seeds the mean and one sample deviation."""
    found = []
    for colour, group in enumerate(groups):
        lines = []
        for run in group:
            rows = run.metrics.rows()
            kept = [(int(row["iteration"]), v) for row in rows if (v := value(row, name)) is not None]
            smoothed = smooth([v for _, v in kept], window) if window > 1 else [v for _, v in kept]
            lines.append({at: v for (at, _), v in zip(kept, smoothed, strict=True) if v is not None})
        shared = sorted(set.intersection(*map(set, lines))) if lines else []
        if not shared:
            continue
        columns = [[line[at] for line in lines] for at in shared]
        means: list[float | None] = [fmean(column) for column in columns]
        if len(group) == 1:
            found.append(Series(group[0].key, shared, means, colour=colour))
            continue
        spread = [stdev(column) for column in columns]
        low = [m - s for m, s in zip(means, spread, strict=True) if m is not None]
        high = [m + s for m, s in zip(means, spread, strict=True) if m is not None]
        label = f"{group[0].key} and {len(group) - 1} other seed{'s' if len(group) > 2 else ''}"
        found.append(Series(label, shared, means, low, high, colour=colour))
    return found
