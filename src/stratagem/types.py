"""The records of an interaction: steps, trajectories, groups.

All are frozen. A derived quantity (an advantage, a return-to-go) is never written into a record: it is a new array
beside it. Token ids and log-probabilities are those drawn by the sampler; text is kept for people only and is never
tokenised again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Finish", "Generation", "Step", "StopReason", "Trajectory", "TrajectoryGroup", "generation_from_json"]


class Finish(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """A stop id or the stop text was produced."""
    LENGTH = "length"
    """``max_new_tokens`` was reached first."""
    CONTEXT = "context"
    """The model's context window was full first."""


class StopReason(StrEnum):
    """Why an episode ended."""

    TERMINATED = "terminated"
    """The game reached a terminal state."""
    MAX_STEPS = "max_steps"
    """The step limit of the game or the rollout was reached; the state is not terminal."""
    CONTEXT = "context"
    """A prompt left no room in the model's context window."""
    INVALID_ACTION = "invalid_action"
    """An invalid action met the recovery strategy ``end``."""
    GAME_FAILED = "game_failed"
    """The game raised, hung or exited; the trajectory is reported and never trained on."""


@dataclass(frozen=True)
class Generation:
    """What a model said for another purpose than the action itself, on the way to one decision."""

    role: str
    """Whose words these are: ``high`` names a subtask, ``progress`` sums up (:mod:`stratagem.agents.hierarchical`)."""
    completion: str
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    parse_error: str | None = None
    """Why the completion could not be used as it is; None where it could."""
    finish: Finish | None = None


def generation_from_json(data: Mapping[str, Any]) -> Generation:
    """Return what ``dataclasses.asdict`` made of a generation and JSON kept."""
    ids = {name: tuple(data[name]) for name in ("prompt_ids", "completion_ids", "logprobs")}
    finish = None if data["finish"] is None else Finish(data["finish"])
    return Generation(**{**data, **ids, "finish": finish})


@dataclass(frozen=True)
class Step:
    """One decision of one player: what was seen, said, done and earned.

    For a policy that is not a language model ``prompt_ids``, ``completion_ids`` and ``logprobs`` are empty.
    """

    observation: str
    """What the game showed, o_t."""
    action: str | None
    """psi(y_t); ``None`` is the paper's bottom: the completion holds no valid action."""
    reward: float
    """The game's own reward r_{t+1} for this player, without any penalty."""
    invalid_penalty: float = 0.0
    """Added when ``action`` is None (paper: -0.5). Environment reward R = reward + invalid_penalty."""
    shaping: float = 0.0
    """Phi_t, the format penalty (<= 0)."""
    executed_action: str | None = None
    """What the game was given after recovery; None is "no action"."""
    parse_error: str | None = None
    """Why ``action`` is None; None for a valid action."""
    completion: str = ""
    """The completion as text, special tokens left out, without the assistant's prefix."""
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """log p of each completion id under the sampling distribution (temperature and truncation applied)."""
    finish: Finish | None = None
    state_key: str = ""
    """The game's true state before the action, as text; equal states have equal keys."""
    duration: int = 1
    """Time that the action took, where actions of a game take unequal time (macro actions); a discount counts it."""
    candidates: tuple[tuple[int, ...], ...] = ()
    """Token ids of every action that was chosen among, ``completion_ids`` one of them; empty where tokens were sampled
    freely (:mod:`stratagem.agents.scoring`)."""
    candidate_logprobs: tuple[float, ...] = ()
    """log pi of each of ``candidates``; the choice was drawn from it."""
    generations: tuple[Generation, ...] = ()
    """What was said before the action and is no action, in the order in which it was said."""


@dataclass(frozen=True)
class Trajectory:
    """One episode of one player, from reset to end."""

    game: str
    seed: int
    """Fixes the start state."""
    course: int
    """With ``seed``, fixes everything random after the start."""
    player: int
    steps: tuple[Step, ...]
    terminated: bool
    truncated: bool
    stop_reason: StopReason
    success: bool | None = None
    """The game's own verdict, where it has one."""
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def environment_return(self) -> float:
        """Sum of game rewards and invalid-action penalties; the number that is evaluated."""
        return sum(step.reward + step.invalid_penalty for step in self.steps)

    @property
    def game_return(self) -> float:
        """Sum of game rewards alone."""
        return sum(step.reward for step in self.steps)

    @property
    def composite_return(self) -> float:
        """C_j of eq. 4: environment return plus format penalties."""
        return sum(step.reward + step.invalid_penalty + step.shaping for step in self.steps)

    def discounted_return(self, gamma: float) -> float:
        """Return the environment return with gamma^(time before a step) on each step; time is the sum of durations."""
        total, discount = 0.0, 1.0
        for step in self.steps:
            total += discount * (step.reward + step.invalid_penalty)
            discount *= gamma**step.duration
        return total

    @property
    def num_tokens(self) -> int:
        """|y_j|: generated tokens of the episode."""
        said = (part.completion_ids for step in self.steps for part in step.generations)
        return sum(len(step.completion_ids) for step in self.steps) + sum(map(len, said))

    @property
    def num_invalid(self) -> int:
        """Steps whose completion held no valid action."""
        return sum(step.action is None for step in self.steps)


@dataclass(frozen=True)
class TrajectoryGroup:
    """G trajectories from one and the same start."""

    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        """Refuse a group whose members did not start from the same state."""
        starts = {(t.game, t.seed, t.player, t.steps[0].observation if t.steps else None) for t in self.trajectories}
        if len(starts) > 1:
            raise ValueError(
                f"A group holds trajectories from {len(starts)} different starts; all must share game, seed, player "
                "and first observation. Reset each episode of a group with the same seed."
            )
