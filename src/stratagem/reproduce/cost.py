"""What the runs of a reproduction cost, before any of them starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratagem.evaluation.tables import Table
from stratagem.reproduce.arms import Arm
from stratagem.runs.plan import Plan, make_plan

__all__ = ["Cost", "cost_table", "plan_costs"]


@dataclass(frozen=True)
class Cost:
    """Costs of the runs of an arm that are not finished. Tokens and hours are upper bounds."""

    arm: Arm
    runs: int
    """Not finished, out of ``seeds``."""
    seeds: int
    plan: Plan
    """Of one run."""
    tokens_per_second: float

    @property
    def episodes(self) -> int:
        """Training and evaluation episodes of the runs that are left."""
        return self.runs * (self.plan.training_episodes + self.plan.evaluation_episodes)

    @property
    def tokens(self) -> int:
        """Generated tokens of the runs that are left, every episode taken to its last step."""
        return self.runs * self.plan.generated_tokens

    @property
    def hours(self) -> float:
        """Of the runs that are left, one after the other."""
        return self.tokens / self.tokens_per_second / 3600


def plan_costs(arms: Sequence[Arm], left: Sequence[int], seeds: int, tokens_per_second: float) -> list[Cost]:
    """Work out the costs of each arm.

    Args:
        arms: what is run.
        left: for each arm how many of its runs are not finished.
        seeds: runs of each arm.
        tokens_per_second: planned tokens that one run gets through in a second.
    """
    return [
        Cost(arm, runs, seeds, make_plan(arm.recipe), tokens_per_second) for arm, runs in zip(arms, left, strict=True)
    ]


def cost_table(costs: Sequence[Cost]) -> Table:
    """Return one row for each arm and one for the sum."""
    rows = [
        (
            cost.arm.name,
            cost.arm.title,
            f"{cost.runs} of {cost.seeds}",
            f"{cost.episodes:,}",
            f"{cost.tokens:,}",
            f"{cost.hours:,.2f}",
        )
        for cost in costs
    ]
    rows.append(
        (
            "all",
            "",
            f"{sum(cost.runs for cost in costs)} of {sum(cost.seeds for cost in costs)}",
            f"{sum(cost.episodes for cost in costs):,}",
            f"{sum(cost.tokens for cost in costs):,}",
            f"{sum(cost.hours for cost in costs):,.2f}",
        )
    )
    return Table(("Arm", "What", "Runs to do", "Episodes", "Tokens at most", "Hours at most"), tuple(rows))
