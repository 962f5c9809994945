"""Behaviour cloning on demonstrations, as a warm start for reinforcement learning.

Loss: mean over tokens of -log p(y_k | prompt, y_<k), on prompts as the agent sees them and answers in its format. An
agent that remembers is shown the moves of the demonstration that led to a state, as if it had said them itself; where a
move was random, so that the planner's answer is not what happened, it is the move.

Two demonstrators:

- ``random``: states visited by the game's random policy, answered with random legal actions. It teaches the format and
  nothing else: the best a model can learn is the uniform distribution over legal words. A small model that never writes
  the tags by itself gives reinforcement learning no signal without it.
- ``planner``: states and answers of the game's planner (some states are reached by random moves, so that the model also
  sees what to do off the planner's path).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stratagem.agents.base import Policy
from stratagem.agents.history import HistoryAgent, HistoryEpisode
from stratagem.agents.language import LanguageAgent
from stratagem.algorithms.checks import check_at_least_one
from stratagem.errors import ConfigError, GameError
from stratagem.games.base import Game
from stratagem.models.base import TokenRow, TrainableModel
from stratagem.seeding import derive_seed, generator

__all__ = ["WarmStartConfig", "answer_text", "check_templates", "demonstrations", "warm_start"]


@dataclass(frozen=True)
class WarmStartConfig:
    """Settings of the warm start."""

    demonstrator: Literal["random", "planner"] = "random"
    """Whose answers are cloned."""
    num_episodes: int = 32
    """Demonstration episodes, each from its own start."""
    answers_per_state: int = 4
    """``random``: answers drawn for each state, so that the model sees a spread and not one word. ``planner`` has 1."""
    exploration: float = 0.3
    """``planner``: share of random moves while collecting states; the answer stays the planner's."""
    num_steps: int = 40
    """Optimizer steps."""
    batch_size: int = 32
    """Demonstrations (prompt, answer) of one step."""
    learning_rate: float = 5e-5
    """AdamW; linear decay to a tenth."""
    max_grad_norm: float = 1.0
    max_tokens_per_pass: int = 2048
    """Distinct tokens in one pass; bounds memory, never changes the gradient."""

    def __post_init__(self) -> None:
        """Refuse values that teach nothing."""
        check_at_least_one(self, "num_episodes", "answers_per_state", "num_steps", "batch_size", "max_tokens_per_pass")
        if not 0 <= self.exploration <= 1:
            raise ConfigError(f"exploration={self.exploration!r} is a share; use 0 to 1.")
        if math.isinf(self.learning_rate):
            raise ConfigError(f"learning_rate={self.learning_rate!r} is no step size; use a finite number.")
        if not self.learning_rate > 0 or not self.max_grad_norm > 0:
            raise ConfigError(
                f"learning_rate={self.learning_rate!r} and max_grad_norm={self.max_grad_norm!r} must be above 0."
            )


def answer_text(agent: LanguageAgent | HistoryAgent, action: str) -> str:
    """Return a well-formed answer with ``action``, as the agent's template asks for it, without its prefix.

    Raises:
        ConfigError: the template's prefix is not the beginning of such an answer.
    """
    tags = agent.template.tags or ("action",)
    body = {tag: "I look at the board and choose one move." for tag in tags[:-1]} | {tags[-1]: action}
    text = "".join(f"<{tag}>{body[tag]}</{tag}>" for tag in tags)
    prefix = agent.template.assistant_prefix
    if not text.startswith(prefix):
        raise ConfigError(
            f"Template {agent.template.name!r} begins the answer with {prefix!r}, but a well-formed answer begins with "
            f"{text[:20]!r}; make the prefix its beginning, or leave warm_start out."
        )
    return text[len(prefix) :]


def check_templates(agent: LanguageAgent | HistoryAgent, config: WarmStartConfig, action: str) -> None:
    """Refuse a warm start that cannot show every template of an ensemble.

    Args:
        agent: whose templates.
        config: settings.
        action: any word that is legal in the game.

    Raises:
        ConfigError: there are fewer episodes than templates, or a prefix is not the beginning of an answer.
    """
    if config.num_episodes < agent.num_templates:
        raise ConfigError(
            f"warm_start.num_episodes={config.num_episodes!r} cannot show the {agent.num_templates} templates of "
            "agent.template, one in an episode; set it to as many or more."
        )
    for place in range(agent.num_templates):
        answer_text(agent.with_template(place), action)


def demonstrations(
    agent: LanguageAgent | HistoryAgent,
    make_game: Callable[[], Game],
    config: WarmStartConfig,
    *,
    seed: int,
    opponents: tuple[Policy, ...] = (),
    excluded_starts: frozenset[str] = frozenset(),
) -> list[list[TokenRow]]:
    """Play demonstration episodes and return the (prompt ids, answer ids) pairs of each, in the order of play.

    The templates of an ensemble take turns: an episode shows one of them.

    Raises:
        ConfigError: the game has no planner, or a demonstration is longer than the model's context.
        GameError: no start outside ``excluded_starts`` was found.
    """
    model: TrainableModel = agent.model  # type: ignore[assignment]
    episodes: list[list[TokenRow]] = []
    game = make_game()
    try:
        for episode in range(config.num_episodes):
            rng = generator(seed, "demonstration", episode)
            for attempt in range(1000):
                observations = game.reset(
                    seed=derive_seed(seed, "demonstration", episode, attempt), course=int(rng.integers(2**31))
                )
                if game.state_key() not in excluded_starts:
                    break
            else:
                raise GameError(
                    f"1000 starts of {game.name!r} in a row are starts of an evaluation panel; expected some that are "
                    "not. Evaluate on fewer episodes, or choose a game with more starts."
                )
            shown = agent.with_template(episode % agent.num_templates)
            rows: list[TokenRow] = []
            asking = shown.begin() if isinstance(shown, HistoryAgent) else shown
            ended = False
            while not ended:
                asked = asking.request(observations[0])
                prompt = model.encode_chat(asked.messages, asked.assistant_prefix, asked.sampled)
                legal = game.legal_actions(0)
                move: str | None
                if config.demonstrator == "planner":
                    move = game.planner_action(0)
                    if move is None:
                        raise ConfigError(
                            f"warm_start.demonstrator='planner' but game {game.name!r} has no planner; use 'random'."
                        )
                    answers = [move]
                    if rng.random() < config.exploration:
                        move = game.random_action(0, rng)
                else:
                    draws = rng.permutation(len(legal) * -(-config.answers_per_state // len(legal)))
                    answers = [legal[int(i) % len(legal)] for i in draws[: config.answers_per_state]]
                    move = game.random_action(0, rng)
                rows.extend((prompt, _fitting(model, prompt, answer_text(shown, answer))) for answer in answers)
                if isinstance(asking, HistoryEpisode):
                    said = answer_text(shown, move)
                    asking.remember(observations[0], said, model.encode(said))
                others = [
                    opponent.act(game, seat, observations[seat], rng) if game.legal_actions(seat) else None
                    for seat, opponent in enumerate(opponents, start=1)
                ]
                result = game.step([move, *others])
                observations = result.observations
                ended = result.terminated or result.truncated
            episodes.append(rows)
    finally:
        game.close()
    return episodes


def _fitting(model: TrainableModel, prompt: tuple[int, ...], answer: str) -> tuple[int, ...]:
    ids = model.encode(answer)
    if len(prompt) + len(ids) > model.context_length:
        raise ConfigError(
            f"A demonstration takes {len(prompt) + len(ids)} tokens and the context of model {model.name!r} holds "
            f"{model.context_length}; use a shorter template or fewer agent.context_steps."
        )
    return ids


def warm_start(
    agent: LanguageAgent | HistoryAgent,
    make_game: Callable[[], Game],
    config: WarmStartConfig,
    *,
    seed: int,
    opponents: tuple[Policy, ...] = (),
    excluded_starts: frozenset[str] = frozenset(),
) -> Iterator[dict[str, float]]:
    """Clone demonstrations; yield the metrics of each optimizer step.

    Args:
        agent: its model is trained in place.
        make_game: makes the game of the demonstrations.
        config: settings.
        seed: of the run.
        opponents: who plays seats 1, 2, ...
        excluded_starts: state keys at which no demonstration may start.
    """
    import torch  # here: a recipe is checked without it

    model: TrainableModel = agent.model  # type: ignore[assignment]
    episodes = demonstrations(agent, make_game, config, seed=seed, opponents=opponents, excluded_starts=excluded_starts)
    parameters = list(model.named_parameters().values())
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=0.0, foreach=True)
    # Episodes are shuffled, their rows are not: rows of one episode share most of their tokens, so a batch is cheap.
    queue: list[TokenRow] = []
    num_passes = 0
    for step in range(config.num_steps):
        while len(queue) < config.batch_size:
            for episode in generator(seed, "demonstration order", num_passes).permutation(len(episodes)):
                queue.extend(episodes[episode])
            num_passes += 1
        batch, queue = queue[: config.batch_size], queue[config.batch_size :]
        num_tokens = sum(len(completion) for _, completion in batch)
        optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for part in model.split(batch, config.max_tokens_per_pass):
            logprobs = model.logprobs([batch[i] for i in part]).logprobs
            share = -logprobs.sum() / num_tokens
            share.backward()  # type: ignore[no-untyped-call]
            loss += float(share.detach())
        norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * (1 - 0.9 * step / config.num_steps)
        optimizer.step()
        model.weights_changed()
        yield {"step": float(step + 1), "loss": loss, "grad_norm": float(norm), "epoch": float(num_passes)}


def expected_random_loss(num_legal: int, num_tokens: float) -> float:
    """Return the loss of a perfect clone of random answers: log(legal words), spread over the answer's tokens.

    >>> round(expected_random_loss(4, 4.0), 4)
    0.3466
    """
    return float(np.log(num_legal)) / num_tokens
