"""What a run's numbers warn of, and what helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from stratagem.page.curves import value
from stratagem.page.data import RunData
from stratagem.page.store import EpisodeRow
from stratagem.runs.advice import no_signal_advice

__all__ = ["Finding", "warnings_of"]

_RECENT = 5
"""Means are over so many last iterations, so that one odd iteration warns of nothing."""

_GAP, _ROUNDED_GAP = 0.01, 0.2
"""Of the importance ratio before an update, and where products are rounded to bfloat16."""


@dataclass(frozen=True)
class Finding:
    """One finding."""

    what: str
    """With its number."""
    remedy: str


def warnings_of(run: RunData, last_episodes: Sequence[EpisodeRow] = ()) -> list[Finding]:
    """Return what is worth a look, the worst first.

    Args:
        run: whose last iterations are looked at.
        last_episodes: of the newest iteration, for what the metrics do not say.
    """
    rows = [row for row in run.metrics.rows() if "num_episodes" in row][-_RECENT:]
    found = [Finding(problem, "Restore the file from a copy; the rest is shown.") for problem in run.problems]
    if rows:
        found += _signal(run, rows) + _update(run, rows) + _cost(run, rows)
    cut = sum(episode.num_cut for episode in last_episodes) / max(sum(e.num_steps for e in last_episodes), 1)
    if cut > 0.2:
        remedy = "Raise agent.max_new_tokens, or choose a template that asks for less."
        found.append(Finding(f"{cut:.0%} of the answers met their token limit (last iteration).", remedy))
    noted = run.summary.get("warnings")
    found += [Finding(str(text), "Noted by the run itself.") for text in (noted if isinstance(noted, list) else [])]
    return found


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [v for row in rows if (v := value(row, name)) is not None]
    return fmean(values) if values else None


def _signal(run: RunData, rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    found = []
    count = f"last {len(rows)} iterations" if len(rows) > 1 else "last iteration"
    silent = _mean(rows, "groups_without_signal")
    has_warm_start = isinstance(run.setting("warm_start"), dict)
    if silent is not None and silent >= 0.5:
        numbers = {name: v for name in rows[-1] if (v := value(rows[-1], name)) is not None}
        numbers.setdefault("invalid_action_rate", 0.0)
        numbers.setdefault("return_mean", 0.0)
        advice = no_signal_advice(numbers, has_warm_start=has_warm_start)
        found.append(Finding(f"{silent:.0%} of groups carry no signal ({count}).", f"Often {advice}"))
    invalid = _mean(rows, "invalid_action_rate")
    if invalid is not None and invalid > 0.3:
        remedy = "a longer warm_start" if has_warm_start else "a [warm_start]"
        found.append(
            Finding(
                f"{invalid:.0%} of the steps hold no valid action ({count}).",
                f"Add {remedy}, or another agent.template; an episode shows why each answer failed.",
            )
        )
    failed = sum(v for row in rows if (v := value(row, "episodes_failed")) is not None)
    if failed:
        what = f"{failed:.0f} episodes ended because the game failed ({count})."
        found.append(Finding(what, "Run check_game on the game; such episodes are not trained on."))
    return found


def _update(run: RunData, rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    found = []
    broken = [name for name in ("loss", "grad_norm") if name in rows[-1] and rows[-1][name] is None]
    if broken:
        what = f"{' and '.join(broken)} is no number in the last iteration."
        found.append(Finding(what, "Lower algorithm.learning_rate, and go on from an earlier checkpoint."))
    gap = _mean(rows, "ratio_gap")
    rounded = run.recipe.get("model", {}).get("matmul_dtype") == "bfloat16"
    if gap is not None and gap > (_ROUNDED_GAP if rounded else _GAP):
        what = f"Sampler and learner disagree: the ratio before the update is off by {gap:.3f}."
        found.append(Finding(what, "Expected rounding only; compute in float32, or report a bug."))
    entropy, success = _mean(rows, "entropy"), _mean(rows, "success_rate")
    if entropy is not None and entropy < 0.02 and (success is None or success < 0.9):
        what = f"The entropy is {entropy:.3f} nats: the policy hardly tries anything new."
        found.append(Finding(what, "Raise algorithm.ent_coef or agent.temperature, or lower the learning rate."))
    clipped = _mean(rows, "clip_fraction")
    if clipped is not None and clipped > 0.3:
        what = f"The clip cuts the gradient of {clipped:.0%} of the tokens."
        found.append(Finding(what, "Lower algorithm.learning_rate or num_epochs."))
    kept = _mean(rows, "step_share")
    if kept is not None and kept < 0.1:
        what = f"max_kl leaves {kept:.0%} of each step."
        found.append(Finding(what, "Lower algorithm.learning_rate: the step is made and then taken back."))
    return found


def _cost(run: RunData, rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    all_rows = run.metrics.rows()
    total = sum(v for row in all_rows if (v := value(row, "seconds")) is not None)
    share = sum(v for row in all_rows if (v := value(row, "seconds_evaluate")) is not None) / total if total else 0.0
    if share > 0.5 and len(all_rows) > 2 * _RECENT:
        what = f"Evaluation takes {share:.0%} of the time."
        return [Finding(what, "Raise evaluation.every, or lower evaluation.num_episodes.")]
    return []
