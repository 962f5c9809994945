"""What the runs of a reproduction cost, before any of them starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratagem.evaluation.tables import Table
from stratagem.reproduce.arm import Arm
from stratagem.runs.plan import Plan, make_plan

__all__ = ["Cost", "cost_table", "plan_costs"]


@dataclass(frozen=True)
class Cost:
    """Costs of the runs of an arm that are not finished. Amounts and hours are upper bounds."""

    arm: Arm
    runs: int
    """Not finished, out of ``seeds``."""
    seeds: int
    plan: Plan
    """Of one run."""
    rate: float
    """Planned tokens or decisions in a second."""

    @property
    def episodes(self) -> int:
        """Training and evaluation episodes of the runs that are left."""
        return self.runs * (self.plan.training_episodes + self.plan.evaluation_episodes)

    @property
    def amount(self) -> int:
        """Generated tokens (or decisions) of the runs that are left, every episode taken to its last step."""
        return self.runs * self.plan.work[0]

    @property
    def hours(self) -> float:
        """Of the runs that are left, one after the other."""
        return self.amount / self.rate / 3600


def plan_costs(arms: Sequence[Arm], left: Sequence[int], seeds: int, rate: float) -> list[Cost]:
    """Work out the costs of each arm.

    Args:
        arms: what is run.
        left: for each arm how many of its runs are not finished.
        seeds: runs of each arm.
        rate: planned tokens (or decisions, see :attr:`stratagem.runs.plan.Plan.work`) that one run gets through in a
            second.
    """
    return [Cost(arm, runs, seeds, make_plan(arm.recipe), rate) for arm, runs in zip(arms, left, strict=True)]


def cost_table(costs: Sequence[Cost]) -> Table:
    """Return one row for each arm and one for the sum."""
    rows = [
        (
            cost.arm.name,
            cost.arm.title,
            f"{cost.runs} of {cost.seeds}",
            f"{cost.episodes:,}",
            f"{cost.amount:,}",
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
            f"{sum(cost.amount for cost in costs):,}",
            f"{sum(cost.hours for cost in costs):,.2f}",
        )
    )
    unit = costs[0].plan.work[1].capitalize() if costs else "Tokens"
    return Table(("Arm", "What", "Runs to do", "Episodes", f"{unit} at most", "Hours at most"), tuple(rows))
