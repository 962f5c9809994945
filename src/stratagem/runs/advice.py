"""What to do when training shows no signal or ends no better; in words, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["no_gain_advice", "no_signal_advice"]


def no_gain_advice(first: Mapping[str, float], last: Mapping[str, float], change: float) -> str:
    """Say that a run ended no better than it began, and what to look at.

    Args:
        first: metrics of the first iteration.
        last: metrics of the last one.
        change: of the panel's mean since before training.
    """
    text = f"Training did not help: the panel's mean changed by {change:+.3f}. "
    before, after = first.get("entropy"), last.get("entropy")
    if before is not None and after is not None and after < 0.25 * before:
        return text + (
            f"Entropy fell from {before:.3f} to {after:.3f} nats a token, so the policy froze on few answers; try "
            "another seed, a lower algorithm.learning_rate, or what keeps entropy up (ent_coef, kl_coef, max_kl)."
        )
    if last.get("invalid_action_rate", 0.0) > 0.5:
        return text + (
            f"{last['invalid_action_rate']:.0%} of the answers hold no valid action; lower "
            "algorithm.learning_rate, or give the form of an answer more weight (a [warm_start], a [format_penalty])."
        )
    return text + "Try more iterations, more groups or another seed, and look at the curves with `stratagem view`."


def no_signal_advice(metrics: Mapping[str, float], *, has_warm_start: bool) -> str:
    """Say why no group has a signal and what helps."""
    if not metrics.get("num_episodes"):
        return "no episode was left to learn from, since the games failed. Run check_game on the game."
    if metrics["invalid_action_rate"] > 0.9:
        remedy = "a longer one (warm_start.num_steps)" if has_warm_start else "a [warm_start]"
        return (
            f"{metrics['invalid_action_rate']:.0%} of the answers hold no valid action. Add {remedy}, or choose "
            "another agent.template or more agent.max_new_tokens."
        )
    if metrics.get("success_rate", 0.0) > 0.95:
        return "all episodes of a group succeed alike. The game is solved; stop here or choose a harder one."
    return (
        f"all episodes of a group end with the same return (mean {metrics['return_mean']:.3f}), so none is better than "
        'another. Raise agent.temperature or algorithm.group_size, add a [warm_start] with demonstrator = "planner", '
        "or choose an easier game."
    )
