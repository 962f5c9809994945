"""Expert episodes as samples of an agent without roles, which is shown the history or the present observation alone.

STEP-HRL's comparison with an agent that is conditioned on all of its history (Zhen et al. 2026, arXiv:2604.05808,
section 4.4): same episodes, same losses, same learner; only what a prompt shows differs. There is one role, ``low``. A
decision is rewarded by what the game pays, and an episode is one path of the token tree where the whole history is
shown.
"""

from __future__ import annotations

from typing import Any

from stratagem.agents.history import HistoryAgent
from stratagem.agents.language import LanguageAgent
from stratagem.agents.react import ReActAgent, react_answer
from stratagem.algorithms.bc import answer_text
from stratagem.algorithms.hierarchy import Sample
from stratagem.data.annotations import AnnotatedEpisode
from stratagem.errors import RunError
from stratagem.games.base import Game

__all__ = ["flat_samples", "written_answer"]


def written_answer(agent: LanguageAgent | HistoryAgent, action: str) -> str:
    """Return how an agent should say an action, without its prefix; a ReAct agent without a thought.

    Raises:
        ConfigError: the template's prefix is not the beginning of such an answer.
    """
    if isinstance(agent, ReActAgent):
        return react_answer(action)
    return answer_text(agent, action)


def flat_samples(agent: LanguageAgent | HistoryAgent, game: Game, episode: AnnotatedEpisode) -> list[Sample]:
    """Return the samples of an expert episode, played again so that prompts are what the agent will be shown.

    Args:
        agent: its prompts are filled and its model's tokenizer used.
        game: the one that is trained on.
        episode: annotated; its subtasks and progress are not used.

    Raises:
        RunError: the episode is not of this game.
    """
    model: Any = agent.model
    generation = agent.generation
    player = agent.begin() if isinstance(agent, HistoryAgent) else agent
    found: list[tuple[tuple[int, ...], tuple[int, ...], float]] = []
    observations = game.reset(seed=episode.seed, course=episode.course)
    for number, step in enumerate(episode.steps):
        legal = game.legal_actions(0)
        if step.action not in legal:
            raise RunError(
                f"Step {number} of the annotated episode with seed={episode.seed} has action={step.action!r}, which "
                f"game {game.name!r} does not allow there; annotate episodes of the game that is trained on, with the "
                "same settings."
            )
        request = player.request(observations[0], None, legal)
        text = written_answer(agent, step.action)
        # An answer that its own last words end is cut there when it is sampled; any other ends with a token.
        ends = any(text.endswith(stop) for stop in generation.stop)
        answer = (*model.encode(text), *(() if ends else (model.end_id,)))
        prompt = model.encode_chat(request.messages, request.assistant_prefix, request.sampled)
        if not isinstance(player, LanguageAgent):
            player.remember(observations[0], text, answer)
        result = game.step((step.action,))
        found.append((prompt, answer, float(result.rewards[0])))
        observations = result.observations
    after = [prompt for prompt, _, _ in found[1:]] + [()]
    return [
        Sample("low", prompt, answer, reward, following)
        for (prompt, answer, reward), following in zip(found, after, strict=True)
    ]
