"""What the episodes of an iteration were like, as metrics; the same names for every algorithm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stratagem.types import TrajectoryGroup

__all__ = ["describe_episodes"]


def describe_episodes(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Return means over the episodes played; only ``num_episodes`` where there were none."""
    played = [t for group in groups for t in group.trajectories]
    if not played:
        return {"num_episodes": 0.0}
    steps = sum(len(t.steps) for t in played)
    verdicts = [t.success for t in played if t.success is not None]
    return {
        "num_episodes": float(len(played)),
        "return_mean": float(np.mean([t.environment_return for t in played])),
        "return_std": float(np.std([t.environment_return for t in played])),
        "composite_return_mean": float(np.mean([t.composite_return for t in played])),
        "success_rate": float(np.mean(verdicts)) if verdicts else float("nan"),
        "invalid_action_rate": sum(t.num_invalid for t in played) / steps,
        "episode_length": steps / len(played),
        "tokens_per_step": sum(t.num_tokens for t in played) / steps,
    }
