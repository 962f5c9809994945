"""Play many episodes of any games with any policies, batching whatever waits for a model.

Each episode is a coroutine. It awaits its model, which answers all that wait with one pass, so finished episodes cost
nothing and a slow one holds nobody up. Every random number is addressed (:mod:`stratagem.seeding`): an episode is the
same whatever batch it was played in.

A game that raises, hangs (in a worker, :mod:`stratagem.games.worker`) or exits costs its own episode: the trajectory
ends with ``StopReason.GAME_FAILED`` and is counted. When failures pile up, playing stops with a clear error.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from stratagem.agents.base import Policy
from stratagem.agents.hierarchical import HierarchicalAgent, HierarchicalEpisode
from stratagem.agents.history import HistoryAgent, HistoryEpisode
from stratagem.agents.language import LanguageAgent
from stratagem.agents.scoring import ScoringAgent
from stratagem.coroutines import run_coroutine
from stratagem.errors import ConfigError, GameError, StratagemError
from stratagem.games.base import Game, GameStep
from stratagem.seeding import Part, derive_seed, generator, uniforms
from stratagem.types import Finish, Step, StopReason, Trajectory, TrajectoryGroup

__all__ = ["Episode", "Player", "play_episode", "play_episodes", "play_groups"]

Player = Policy | LanguageAgent | HistoryAgent | ScoringAgent | HierarchicalAgent
"""Who sits in a seat."""

T = TypeVar("T")

_MAX_FAILURES = 10
"""So many failed games, and more than half of those that were begun, stop the rollout."""


@dataclass(frozen=True)
class Episode:
    """One episode to play."""

    seed: int
    """Fixes the start state."""
    course: int = 0
    """With ``seed`` fixes what happens by chance."""
    address: tuple[Part, ...] = ()
    """Where in the run it is played: (run seed, purpose, iteration, group, episode). Its draws depend on it."""
    template: int = 0
    """Which template of an ensemble the player whose trajectory is returned plays with; 0 is the first."""
    player: Player | None = None
    """Who plays that seat in this episode, where it is not whoever plays it in the others."""


async def play_episode(
    game: Game,
    players: Sequence[Player],
    episode: Episode,
    *,
    seat: int = 0,
    max_steps: int | None = None,
) -> Trajectory:
    """Play one episode and return the trajectory of one seat.

    Args:
        game: is reset first.
        players: one for each seat.
        episode: which one.
        seat: whose trajectory is returned.
        max_steps: a limit besides the game's own.

    Raises:
        GameError: the game broke its contract.
        ModelError: a model cannot answer.
    """
    if len(players) != game.num_players:
        raise ValueError(f"{len(players)} players for the {game.num_players} seats of {game.name!r}; give one each.")
    observations = _ask(game, partial(_reset, game, episode))
    own = _with_template(episode.player or players[seat], episode.template)
    players = [own if place == seat else player for place, player in enumerate(players)]
    deciding = [p.begin() if isinstance(p, HistoryAgent | HierarchicalAgent) else p for p in players]
    steps: list[Step] = []
    rounds = 0
    success: bool | None = None
    info: dict[str, object] = _named_template(players[seat])

    def finish(reason: StopReason) -> Trajectory:
        return Trajectory(
            game=game.name,
            seed=episode.seed,
            course=episode.course,
            player=seat,
            steps=tuple(steps),
            terminated=reason is StopReason.TERMINATED,
            truncated=reason is not StopReason.TERMINATED,
            stop_reason=reason,
            success=success,
            info=dict(info),
        )

    while True:
        state_key = _ask(game, game.state_key)
        joint: list[str | None] = []
        record: dict[str, object] = {}
        recovery_end = False
        choices = [_ask(game, partial(game.legal_actions, player)) for player in range(game.num_players)]
        if not any(choices):
            raise GameError(f"Game {game.name!r} has not ended, but no player has a legal action; expected some.")
        for player, policy in enumerate(deciding):
            address = (*episode.address, rounds, player)
            legal = choices[player]
            if not legal:  # out of the game, which goes on without this player
                joint.append(None)
                continue
            if isinstance(policy, LanguageAgent | HistoryEpisode | ScoringAgent | HierarchicalEpisode):
                numbers = None
                if policy.num_uniforms > 0:
                    numbers = uniforms(policy.num_uniforms, *address)
                decision = await policy.decide(observations[player], legal, numbers)
                completion = decision.completion
                if completion.finish is Finish.CONTEXT and not completion.completion_ids:
                    return finish(StopReason.CONTEXT)
                executed = decision.action
                if executed is None and policy.recovery == "random":
                    executed = legal[int(generator(*address, "recovery").integers(len(legal)))]
                if executed is None and policy.recovery == "end" and player == seat:
                    recovery_end = True
                if player == seat:
                    record = {
                        "action": decision.action,
                        "invalid_penalty": policy.invalid_penalty if decision.action is None else 0.0,
                        "shaping": decision.shaping,
                        "parse_error": None if decision.parse_error is None else str(decision.parse_error),
                        "completion": completion.text,
                        "prompt_ids": completion.prompt_ids,
                        "completion_ids": completion.completion_ids,
                        "logprobs": completion.logprobs,
                        "finish": completion.finish,
                        "candidates": decision.candidates,
                        "candidate_logprobs": decision.candidate_logprobs,
                        "generations": decision.generations,
                    }
            else:
                executed = _ask(game, partial(policy.act, game, player, observations[player], generator(*address)))
                if player == seat:
                    record = {"action": executed}
            joint.append(executed)
        shown = observations[seat]
        if recovery_end:
            steps.append(Step(observation=shown, reward=0.0, state_key=state_key, **record))  # type: ignore[arg-type]
            return finish(StopReason.INVALID_ACTION)
        result = _ask(game, partial(_step, game, joint))
        observations = result.observations
        rounds += 1
        reward = float(result.rewards[seat])
        duration = int(result.info.get("duration", 1))
        if record:
            steps.append(
                Step(
                    observation=shown,
                    reward=reward,
                    executed_action=joint[seat],
                    state_key=state_key,
                    duration=duration,
                    **record,  # type: ignore[arg-type]
                )
            )
        elif steps:  # earned by what was decided before
            last = steps[-1]
            steps[-1] = replace(last, reward=last.reward + reward, duration=last.duration + duration)
        if result.terminated or result.truncated:
            found = result.info.get("success")
            success = None if found is None else bool(found)
            info.update({key: value for key, value in result.info.items() if key not in ("success", "duration")})
            return finish(StopReason.TERMINATED if result.terminated else StopReason.MAX_STEPS)
        if max_steps is not None and rounds >= max_steps:
            return finish(StopReason.MAX_STEPS)


def play_episodes(
    make_game: Callable[[], Game],
    players: Sequence[Player],
    episodes: Sequence[Episode],
    *,
    seat: int = 0,
    max_steps: int | None = None,
    max_concurrent: int = 256,
    on_finish: Callable[[int, Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Play episodes side by side and return their trajectories in the order of ``episodes``.

    Args:
        make_game: a new game for each episode that is under way.
        players: one for each seat, shared by all episodes.
        episodes: what to play.
        seat: whose trajectories are returned.
        max_steps: a limit besides the game's own.
        max_concurrent: episodes under way at once.
        on_finish: called with the number of an episode and its trajectory as soon as it ends (progress, saving).

    Raises:
        ConfigError: ``max_concurrent`` is below 1.
        GameError: more than half of the games that were begun failed.
        ModelError: a model cannot answer.
    """
    if max_concurrent < 1:
        raise ConfigError(f"max_concurrent={max_concurrent!r} plays nothing; set it to 1 or more.")
    return run_coroutine(_play_all(make_game, players, episodes, seat, max_steps, max_concurrent, on_finish))


async def _play_all(
    make_game: Callable[[], Game],
    players: Sequence[Player],
    episodes: Sequence[Episode],
    seat: int,
    max_steps: int | None,
    max_concurrent: int,
    on_finish: Callable[[int, Trajectory], None] | None,
) -> list[Trajectory]:
    results: list[Trajectory | None] = [None] * len(episodes)
    numbers = iter(range(len(episodes)))
    failures = started = 0
    limit = max_concurrent
    """Lowered to what the game allows, once there is one that says so."""
    playing = 0

    async def worker() -> None:
        nonlocal failures, started, limit, playing
        if playing >= limit:
            return  # those that play take what is left
        playing += 1
        game: Game | None = None
        try:
            for number in numbers:
                episode = episodes[number]
                started += 1
                try:
                    if game is None:
                        game = make_game()
                        limit = min(limit, game.max_concurrent or limit)
                    trajectory = await play_episode(game, players, episode, seat=seat, max_steps=max_steps)
                except GameError as error:
                    failures += 1
                    trajectory = _failed(game, episode, seat, error)
                    if game is not None:
                        _close(game)
                        game = None
                    if failures >= _MAX_FAILURES and failures * 2 > started:
                        raise GameError(
                            f"{failures} of {started} episodes failed in the game; the last one said: {error} Run "
                            "check_game on it, or set game.isolate = true if it hangs or exits."
                        ) from error
                results[number] = trajectory
                if on_finish is not None:
                    on_finish(number, trajectory)
        finally:
            if game is not None:
                _close(game)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(max_concurrent, len(episodes))):
                tasks.create_task(worker())
    except BaseExceptionGroup as group:
        # One cause is enough for a user; the others are its echoes.
        first = group.exceptions[0]
        raise first from first.__cause__
    finally:
        for player in players:
            if isinstance(player, LanguageAgent | HistoryAgent | ScoringAgent):
                await player.model.aclose()
            elif isinstance(player, HierarchicalAgent):
                for model in {id(model): model for model in player.models.values()}.values():
                    await model.aclose()
    return [result for result in results if result is not None]


def _reset(game: Game, episode: Episode) -> tuple[str, ...]:
    observations = game.reset(seed=episode.seed, course=episode.course)
    if len(observations) != game.num_players:
        raise GameError(
            f"Game {game.name!r} started with {len(observations)} observation(s) for {game.num_players} player(s); "
            "expected one for each."
        )
    return observations


def _step(game: Game, joint: Sequence[str | None]) -> GameStep:
    result = game.step(joint)
    count = game.num_players
    if len(result.observations) != count or len(result.rewards) != count or not all(map(math.isfinite, result.rewards)):
        raise GameError(
            f"Game {game.name!r} answered with {len(result.observations)} observation(s) and rewards "
            f"{result.rewards!r} for {count} player(s); expected one text and one finite number for each."
        )
    return result


def _ask(game: Game, call: Callable[[], T]) -> T:
    """Call into a game; whatever it raises or exits with becomes a GameError."""
    try:
        return call()
    except (StratagemError, KeyboardInterrupt):
        raise
    except (Exception, SystemExit) as error:
        raise GameError(f"Game {game.name!r} raised {type(error).__name__}: {error}.") from error


def _close(game: Game) -> None:
    try:
        game.close()
    except Exception:
        return  # it has failed already; its episode is counted


def _failed(game: Game | None, episode: Episode, seat: int, error: BaseException) -> Trajectory:
    return Trajectory(
        game=game.name if game is not None else "",
        seed=episode.seed,
        course=episode.course,
        player=seat,
        steps=(),
        terminated=False,
        truncated=True,
        stop_reason=StopReason.GAME_FAILED,
        info={"error": f"{type(error).__name__}: {error}"},
    )


def play_groups(
    make_game: Callable[[], Game],
    players: Sequence[Player],
    *,
    num_groups: int,
    group_size: int,
    address: tuple[Part, ...],
    excluded_starts: frozenset[str] = frozenset(),
    seat: int = 0,
    max_steps: int | None = None,
    max_concurrent: int = 1024,
    smallest: int = 2,
    first_group: int = 0,
    on_finish: Callable[[int, Trajectory], None] | None = None,
) -> tuple[list[TrajectoryGroup], list[Trajectory]]:
    """Play ``num_groups`` groups of ``group_size`` episodes; the members of a group share their start.

    Args:
        make_game: a new game for each episode that is under way.
        players: one for each seat.
        num_groups: different starts.
        group_size: G episodes from each start; what happens by chance after it differs.
        address: where in the run this is: (run seed, purpose, iteration). Starts and draws depend on it.
        excluded_starts: state keys at which no group may start (those of the evaluation panels).
        seat: whose trajectories are returned.
        max_steps: a limit besides the game's own.
        max_concurrent: episodes under way at once.
        smallest: episodes that a group must have left to be returned; one has nothing to compare with.
        first_group: number of the first group, which its starts and draws depend on: those of 2 groups from number 3 on
            are the last two of 5.
        on_finish: see :func:`play_episodes`.

    Returns:
        Groups of the episodes that were played, and the episodes whose game failed.

    Raises:
        ConfigError: no prompt fits into the model's context window.
        GameError: no start outside ``excluded_starts`` was found, or more than half of the games failed.
    """
    numbers = range(first_group, first_group + num_groups)
    starts = _choose_starts(make_game, numbers, address, excluded_starts)
    templates = [_choose_template(players[seat], (*address, "template", group)) for group in numbers]
    episodes = [
        Episode(start, derive_seed(*address, "course", group, member), (*address, group, member), template)
        for group, start, template in zip(numbers, starts, templates, strict=True)
        for member in range(group_size)
    ]
    played = play_episodes(
        make_game,
        players,
        episodes,
        seat=seat,
        max_steps=max_steps,
        max_concurrent=max_concurrent,
        on_finish=on_finish,
    )
    failed = [t for t in played if t.stop_reason is StopReason.GAME_FAILED]
    if len(failed) == len(played):  # too few to be stopped by play_episodes, but nothing is left to learn from
        raise GameError(
            f"All {len(failed)} episodes failed in the game; the last one said: {failed[-1].info['error']} Run "
            "check_game on it, or set game.isolate = true if it hangs or exits."
        )
    if not any(t.steps for t in played):
        raise ConfigError(
            f"All {len(played)} episodes ended before their first step, since the prompt leaves no room in the model's "
            "context window; shorten agent.template, play a smaller game, or choose a model with a longer context."
        )
    groups = []
    for group in range(num_groups):
        members = played[group * group_size : (group + 1) * group_size]
        whole = tuple(t for t in members if t.stop_reason is not StopReason.GAME_FAILED and t.steps)
        if len(whole) >= smallest:
            groups.append(TrajectoryGroup(whole))
    return groups, failed


def _choose_template(player: Player, address: tuple[Part, ...]) -> int:
    """Return which template of an ensemble a group plays with; drawn only where there is more than one."""
    count = player.num_templates if isinstance(player, LanguageAgent | HistoryAgent) else 1
    return int(generator(*address).integers(count)) if count > 1 else 0


def _with_template(player: Player, place: int) -> Player:
    return player.with_template(place) if isinstance(player, LanguageAgent | HistoryAgent) else player


def _named_template(player: Player) -> dict[str, object]:
    """Return what a trajectory says of the template, where there is more than one."""
    if isinstance(player, LanguageAgent | HistoryAgent) and player.num_templates > 1:
        return {"template": player.template.name}
    return {}


def _choose_starts(
    make_game: Callable[[], Game], numbers: Sequence[int], address: tuple[Part, ...], excluded: frozenset[str]
) -> list[int]:
    """Return start seeds whose states are not excluded; each depends on its own address only."""
    if not excluded:
        return [derive_seed(*address, "start", group, 0) for group in numbers]
    game = make_game()
    starts = []
    failures = 0
    try:
        for group in numbers:
            for attempt in range(1000):
                seed = derive_seed(*address, "start", group, attempt)
                try:
                    _ask(game, partial(game.reset, seed=seed))
                    key = _ask(game, game.state_key)
                except GameError:
                    failures += 1
                    if failures >= _MAX_FAILURES:
                        raise
                    _close(game)
                    game = make_game()
                    continue
                if key not in excluded:
                    starts.append(seed)
                    break
            else:
                raise GameError(
                    f"1000 starts of {game.name!r} in a row are starts of an evaluation panel; expected some that are "
                    "not. Evaluate on fewer episodes, or choose a game with more starts."
                )
    finally:
        _close(game)
    return starts
