"""What to do when training shows no signal; in words, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["no_signal_advice"]


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
