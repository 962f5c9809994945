"""A policy that is a table: exact, fast and without transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from stratagem.agents.language import LanguageAgent
from stratagem.agents.prompts import PromptTemplate
from stratagem.games.base import Game, GameStep, check_joint_action
from stratagem.models.base import Completion, GenerationConfig, Request, TokenRow
from stratagem.types import Finish, Step, StopReason, Trajectory, TrajectoryGroup

WORDS = ("a</action>", "b</action>", "???", "")  # one token each; the last is the end of the text
EOS = 3


@dataclass(frozen=True)
class TableBatch:
    logprobs: Tensor
    entropy: Tensor
    num_computed: int
    num_seen: int


class TableModel:
    """softmax(table[prompt's first id, place in the completion] / T): a TrainableModel of 4 tokens."""

    name = "table"
    context_length = 1000

    def __init__(self, num_prompts: int = 2, max_tokens: int = 3) -> None:
        self.table = Parameter(torch.zeros(num_prompts, max_tokens, len(WORDS)))
        self.sampled_from = self.table.detach().clone()
        self.reference: Tensor | None = None
        self.num_splits = 0

    def log_p(self, table: Tensor, rows: Sequence[TokenRow], temperature: float) -> Tensor:
        return torch.stack(
            [torch.log_softmax(table[p[0], k] / temperature, -1) for p, c in rows for k in range(len(c))]
        )

    def logprobs(self, rows: Sequence[TokenRow], *, temperature: float = 1.0) -> TableBatch:
        log_p = self.log_p(self.table, rows, temperature)
        tokens = torch.tensor([token for _, completion in rows for token in completion])
        entropy = -(log_p.exp() * log_p).sum(-1)
        return TableBatch(log_p.gather(1, tokens[:, None])[:, 0], entropy, len(tokens), len(tokens))

    def reference_logprobs(self, rows: Sequence[TokenRow], *, temperature: float = 1.0) -> Tensor:
        assert self.reference is not None
        tokens = torch.tensor([token for _, completion in rows for token in completion])
        return self.log_p(self.reference, rows, temperature).gather(1, tokens[:, None])[:, 0]

    def split(self, rows: Sequence[TokenRow], max_tokens: int) -> list[list[int]]:
        self.num_splits += 1
        size = max(1, max_tokens)
        return [list(range(start, min(start + size, len(rows)))) for start in range(0, len(rows), size)]

    def encode_chat(
        self, messages: Sequence[tuple[str, str]], assistant_prefix: str = "", sampled: Sequence[tuple[int, ...]] = ()
    ) -> tuple[int, ...]:
        return (int(messages[-1][1]),)

    def encode(self, text: str) -> tuple[int, ...]:
        return (WORDS.index(text),)

    def named_parameters(self) -> dict[str, Parameter]:
        return {"table": self.table}

    def keep_reference(self) -> None:
        self.reference = self.table.detach().clone()

    def weights_changed(self) -> None:
        self.sampled_from = self.table.detach().clone()

    async def generate(self, request: Request) -> Completion:
        assert request.uniforms is not None
        prompt = self.encode_chat(request.messages)
        ids: list[int] = []
        logprobs: list[float] = []
        while len(ids) < min(request.config.max_new_tokens, self.table.shape[1]):
            p = torch.softmax(self.sampled_from[prompt[0], len(ids)] / request.config.temperature, -1).numpy()
            token = int(np.searchsorted(np.cumsum(p), request.uniforms[len(ids)], side="right"))
            ids.append(min(token, EOS))
            logprobs.append(math.log(p[ids[-1]]))
            if ids[-1] != 2:
                break
        text = "".join(WORDS[i] for i in ids)
        return Completion(text, Finish.STOP, prompt, tuple(ids), tuple(logprobs), 1, len(ids))

    async def aclose(self) -> None:
        return None


class Bandit(Game):
    """One round (or several): arm a pays 1, arm b pays 0; the observation is the number of the round."""

    name = "bandit"

    def __init__(self, rewards: tuple[float, float] = (1.0, 0.0), rounds: int = 1) -> None:
        self.rewards, self.rounds = rewards, rounds
        self._round = -1

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        self._round = 0
        return (self.observation(),)

    def step(self, actions: Sequence[str | None]) -> GameStep:
        check_joint_action(self, actions, started=self._round >= 0, over=self._round == self.rounds)
        self._round += 1
        reward = {"a": self.rewards[0], "b": self.rewards[1], None: 0.0}[actions[0]]
        return GameStep((self.observation(),), (reward,), self._round == self.rounds, False)

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        return () if self._round == self.rounds else ("a", "b")

    def observation(self, player: int = 0) -> str:
        return str(min(self._round, self.rounds - 1))

    def state_key(self) -> str:
        return str(self._round)

    def render(self) -> str:
        return self.state_key()

    def planner_action(self, player: int = 0) -> str | None:
        return "a"


def make_agent(model: Any, *, temperature: float = 1.0, **settings: Any) -> LanguageAgent:
    template = PromptTemplate("bare", None, "{observation}", "<action>", ("action",))
    generation = GenerationConfig(max_new_tokens=3, temperature=temperature, stop=("</action>",))
    return LanguageAgent(model, **({"generation": generation, "template": template} | settings))


def make_trajectory(*steps: tuple[float, Sequence[int]], logprob: float = -1.0, course: int = 0) -> Trajectory:
    """Return an episode of (reward, completion ids) steps."""
    return Trajectory(
        "toy",
        0,
        course,
        0,
        tuple(
            Step(
                "o",
                "a",
                reward,
                prompt_ids=(0,),
                completion_ids=tuple(ids),
                logprobs=(logprob,) * len(ids),
            )
            for reward, ids in steps
        ),
        True,
        False,
        StopReason.TERMINATED,
    )


def make_group(*episodes: Sequence[tuple[float, Sequence[int]]], logprob: float = -1.0) -> TrajectoryGroup:
    return TrajectoryGroup(
        tuple(make_trajectory(*steps, logprob=logprob, course=n) for n, steps in enumerate(episodes))
    )


@pytest.fixture
def toys() -> SimpleNamespace:
    """The classes and makers of this file; test modules cannot import it."""
    return SimpleNamespace(
        TableModel=TableModel,
        Bandit=Bandit,
        make_agent=make_agent,
        make_group=make_group,
        make_trajectory=make_trajectory,
        EOS=EOS,
    )
