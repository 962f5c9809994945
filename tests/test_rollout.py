from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from stratagem.agents.base import PlannerPolicy, Policy, RandomPolicy
from stratagem.agents.language import AgentConfig, LanguageAgent
from stratagem.agents.parsing import ParseError
from stratagem.errors import ConfigError, GameError, ModelError
from stratagem.games import make
from stratagem.games.base import Game, GameStep, check_joint_action
from stratagem.models.base import Completion, Request
from stratagem.models.catalog import ModelConfig
from stratagem.models.local import LocalModel
from stratagem.rollout import Episode, play_episodes, play_groups
from stratagem.types import Finish, StopReason, Trajectory

# ---- a game and a model to play it ---------------------------------------------------------------------------------


class Walk(Game):
    """Walk from a start that the seed gives to cell 4: +1 there, -0.25 for a step to the left."""

    name = "walk"
    max_steps = 6

    def __init__(self, *, num_starts: int = 3, fails: str = "", error: type[BaseException] = RuntimeError) -> None:
        self._num_starts, self._fails, self._error = num_starts, fails, error
        self._place: int | None = None
        self._over = True
        self.closed = 0
        self.given: list[str | None] = []

    def _maybe_fail(self, where: str) -> None:
        if self._fails == where:
            raise self._error("broken pipe")

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        self._maybe_fail("reset")
        self._place, self._steps, self._over = seed % self._num_starts, 0, False
        return (self.observation(),)

    def step(self, actions: Sequence[str | None]) -> GameStep:
        check_joint_action(self, actions, started=self._place is not None, over=self._over)
        if self._steps == 1:
            self._maybe_fail("step")
        assert self._place is not None
        self.given.append(actions[0])
        self._place += {"right": 1, "left": -1, None: 0}[actions[0]]
        self._steps += 1
        won = self._place == 4
        self._over = won or self._steps == self.max_steps
        reward = 1.0 if won else -0.25 if actions[0] == "left" else 0.0
        if self._fails == "nan":
            reward = float("nan")
        info = {"success": won, "cell": self._place} if self._over else {}
        observations = (self.observation(),) * (2 if self._fails == "shape" else 1)
        return GameStep(observations, (reward,), won, self._over and not won, info)

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        return () if self._over or self._fails == "stuck" else ("left", "right")

    def observation(self, player: int = 0) -> str:
        return f"cell {self._place}"

    def state_key(self) -> str:
        self._maybe_fail("state_key")
        return str(self._place)

    def render(self) -> str:
        return self.state_key()

    def random_action(self, player: int, rng: Any) -> str:
        self._maybe_fail("random_action")
        return super().random_action(player, rng)

    def close(self) -> None:
        self.closed += 1
        self._maybe_fail("close")


@dataclass
class Replay:
    """A model that says the same texts one after the other in each episode; the ids are made of text and turn."""

    texts: tuple[str, ...]
    finish: Finish = Finish.STOP
    name: str = "replay"
    context_length: int = 1000
    requests: list[Request] = field(default_factory=list)
    closed: int = 0

    async def generate(self, request: Request) -> Completion:
        await asyncio.sleep(0)  # as a model that is busy: other episodes go on
        turn = len(self.requests)
        self.requests.append(request)
        text = self.texts[turn % len(self.texts)]
        if text == "<full>":
            return Completion("", Finish.CONTEXT, prompt_ids=(9,))
        if text == "<gone>":
            raise ModelError("The server is gone.")
        ids = tuple(text.encode())
        logprobs = tuple(-0.01 * turn for _ in ids)
        return Completion(text, self.finish, (100 + turn,), ids, logprobs, 1, len(ids))

    async def aclose(self) -> None:
        self.closed += 1


RIGHT, LEFT, GARBAGE = "right</action>", "left</action>", "upwards</action>"


def agent(*texts: str, **config: Any) -> LanguageAgent:
    return LanguageAgent.from_config(Replay(texts), AgentConfig(max_new_tokens=30, **config))


def play_one(player: Any, game: Game | None = None, **settings: Any) -> Trajectory:
    (trajectory,) = play_episodes(lambda: game or Walk(), [player], [Episode(seed=0)], **settings)
    return trajectory


# ---- what an episode records -----------------------------------------------------------------------------------------


def test_an_episode_records_what_was_seen_said_done_and_earned() -> None:
    game = Walk()
    player = agent(RIGHT, LEFT, RIGHT, RIGHT, RIGHT, RIGHT)
    trajectory = play_one(player, game)
    assert [step.observation for step in trajectory.steps] == [f"cell {n}" for n in (0, 1, 0, 1, 2, 3)]
    assert [step.state_key for step in trajectory.steps] == ["0", "1", "0", "1", "2", "3"]
    assert [step.action for step in trajectory.steps] == ["right", "left", *["right"] * 4] == game.given
    assert [step.reward for step in trajectory.steps] == [0, -0.25, 0, 0, 0, 1]
    assert trajectory.steps[1].completion_ids == tuple(LEFT.encode())
    assert trajectory.steps[1].prompt_ids == (101,)
    assert trajectory.steps[1].logprobs == (-0.01,) * len(LEFT)
    assert trajectory.steps[1].finish is Finish.STOP
    assert (trajectory.terminated, trajectory.truncated) == (True, False)
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert trajectory.success is True
    assert trajectory.info == {"cell": 4}
    assert game.closed == 1
    assert player.model.closed == 1  # type: ignore[attr-defined]


def test_garbage_on_step_two_leaves_every_later_step_aligned() -> None:
    game = Walk()
    trajectory = play_one(agent(RIGHT, GARBAGE, RIGHT, RIGHT, RIGHT), game)
    second, third = trajectory.steps[1], trajectory.steps[2]
    assert (second.action, second.executed_action) == (None, None)
    assert second.parse_error == ParseError.UNKNOWN
    assert (second.reward, second.invalid_penalty) == (0.0, -0.5)
    assert second.completion == GARBAGE
    # each step holds its own completion: ids and log-probabilities of turn 2 stand beside what turn 2 saw
    assert third.observation == "cell 1"
    assert third.prompt_ids == (102,)
    assert third.completion_ids == tuple(RIGHT.encode())
    assert third.logprobs[0] == -0.02
    assert [step.action for step in trajectory.steps] == ["right", None, "right", "right", "right"]
    assert game.given == ["right", None, "right", "right", "right"]
    assert trajectory.environment_return == 0.5  # -0.5 + 1


def test_an_invalid_first_action_gives_its_reason_like_a_later_one() -> None:
    trajectory = play_one(agent(GARBAGE, GARBAGE, RIGHT))
    assert [step.parse_error for step in trajectory.steps[:2]] == [ParseError.UNKNOWN] * 2


def test_the_same_draw_is_never_used_twice() -> None:
    player = agent(RIGHT)
    play_episodes(Walk, [player], [Episode(0, address=(1, n)) for n in range(3)])
    requests = player.model.requests  # type: ignore[attr-defined]
    numbers = [tuple(request.uniforms) for request in requests]
    assert len(set(numbers)) == len(numbers) == 12
    assert {len(request) for request in numbers} == {30}


def test_greedy_needs_no_uniform_numbers() -> None:
    player = agent(RIGHT, temperature=0)
    play_one(player)
    assert player.model.requests[0].uniforms is None  # type: ignore[attr-defined]


# ---- recovery --------------------------------------------------------------------------------------------------------


def test_recovery_no_action_gives_the_game_none() -> None:
    game = Walk()
    trajectory = play_one(agent(GARBAGE, recovery="no_action"), game)
    assert game.given == [None] * 6
    assert trajectory.stop_reason is StopReason.MAX_STEPS


def test_recovery_random_executes_a_legal_action_and_keeps_the_penalty() -> None:
    game = Walk()
    trajectory = play_one(agent(GARBAGE, recovery="random"), game)
    assert set(game.given) == {"left", "right"}
    assert [step.executed_action for step in trajectory.steps] == game.given
    assert {step.action for step in trajectory.steps} == {None}
    assert {step.invalid_penalty for step in trajectory.steps} == {-0.5}
    again = play_one(agent(GARBAGE, recovery="random"))
    assert again == trajectory


def test_recovery_end_ends_the_episode_without_a_step_of_the_game() -> None:
    game = Walk()
    trajectory = play_one(agent(RIGHT, GARBAGE, recovery="end"), game)
    assert game.given == ["right"]
    assert [step.action for step in trajectory.steps] == ["right", None]
    assert trajectory.steps[1].invalid_penalty == -0.5
    assert trajectory.steps[1].executed_action is None
    assert (trajectory.terminated, trajectory.truncated) == (False, True)
    assert trajectory.stop_reason is StopReason.INVALID_ACTION


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_a_policy_that_never_ends_meets_the_limit_of_the_game() -> None:
    trajectory = play_one(agent(RIGHT, LEFT))
    assert len(trajectory.steps) == 6
    assert (trajectory.terminated, trajectory.truncated) == (False, True)
    assert trajectory.stop_reason is StopReason.MAX_STEPS
    assert trajectory.success is False


def test_a_limit_of_the_rollout_stops_before_that_of_the_game() -> None:
    trajectory = play_one(agent(RIGHT, LEFT), max_steps=2)
    assert len(trajectory.steps) == 2
    assert trajectory.truncated
    assert trajectory.stop_reason is StopReason.MAX_STEPS
    assert trajectory.success is None


def test_a_full_context_ends_the_episode_and_keeps_its_steps() -> None:
    trajectory = play_one(agent(RIGHT, RIGHT, "<full>"))
    assert [step.action for step in trajectory.steps] == ["right", "right"]
    assert (trajectory.terminated, trajectory.truncated) == (False, True)
    assert trajectory.stop_reason is StopReason.CONTEXT


def test_a_completion_that_fills_the_context_is_a_step_like_any() -> None:
    player = LanguageAgent.from_config(Replay((RIGHT, "rig"), finish=Finish.CONTEXT), AgentConfig(max_new_tokens=30))
    trajectory = play_one(player)
    assert trajectory.steps[0].action == "right"
    assert trajectory.steps[1].parse_error == ParseError.UNCLOSED


# ---- games that break ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["reset", "step", "state_key"])
@pytest.mark.parametrize("error", [RuntimeError, SystemExit, GameError], ids=lambda e: str(e.__name__))
def test_a_game_that_breaks_costs_its_own_episode(where: str, error: type[BaseException]) -> None:
    made: list[Walk] = []

    def make_game() -> Walk:
        made.append(Walk(fails=where if len(made) == 1 else "", error=error))
        return made[-1]

    episodes = [Episode(seed=n % 3, address=(n,)) for n in range(6)]
    played = play_episodes(make_game, [agent(RIGHT)], episodes, max_concurrent=3)
    assert len(played) == 6
    failed = [t for t in played if t.stop_reason is StopReason.GAME_FAILED]
    assert len(failed) == 1
    said = "broken pipe" if error is GameError else f"Game 'walk' raised {error.__name__}: broken pipe."
    assert failed[0].info == {"error": f"GameError: {said}"}
    assert (failed[0].terminated, failed[0].truncated, failed[0].steps) == (False, True, ())
    assert [t.seed for t in played] == [episode.seed for episode in episodes]
    assert all(game.closed == 1 for game in made)


def test_a_game_that_breaks_in_its_random_action_costs_its_own_episode() -> None:
    (trajectory,) = play_episodes(lambda: Walk(fails="random_action"), [RandomPolicy()], [Episode(0)])
    assert trajectory.info == {"error": "GameError: Game 'walk' raised RuntimeError: broken pipe."}


def test_a_game_that_cannot_even_close_costs_nothing() -> None:
    assert play_one(agent(RIGHT), Walk(fails="close")).terminated


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "nan",
            "Game 'walk' answered with 1 observation(s) and rewards (nan,) for 1 player(s); expected one text and one "
            "finite number for each.",
        ),
        (
            "shape",
            "Game 'walk' answered with 2 observation(s) and rewards (0.0,) for 1 player(s); expected one text and one "
            "finite number for each.",
        ),
        ("stuck", "Game 'walk' has not ended, but no player has a legal action; expected some."),
    ],
)
def test_a_broken_contract_is_named(fault: str, message: str) -> None:
    trajectory = play_one(agent(RIGHT), Walk(fails=fault))
    assert trajectory.stop_reason is StopReason.GAME_FAILED
    assert trajectory.info == {"error": f"GameError: {message}"}


def test_when_failures_pile_up_playing_stops() -> None:
    made = []

    def make_game() -> Walk:
        made.append(1)
        return Walk(fails="step")

    message = (
        "10 of 10 episodes failed in the game; the last one said: Game 'walk' raised RuntimeError: broken pipe. Run "
        "check_game on it, or set game.isolate = true if it hangs or exits."
    )
    with pytest.raises(GameError, match=f"^{re.escape(message)}$") as caught:
        play_episodes(make_game, [RandomPolicy()], [Episode(0)] * 50, max_concurrent=1)
    assert isinstance(caught.value.__cause__, GameError)  # and the game's own traceback below it
    assert isinstance(caught.value.__cause__.__cause__, RuntimeError)
    assert len(made) == 10


def test_fewer_failures_than_played_episodes_do_not_stop() -> None:
    count = 0

    def make_game() -> Walk:
        nonlocal count
        count += 1
        return Walk(fails="reset" if count % 3 == 0 else "")

    played = play_episodes(make_game, [agent(RIGHT)], [Episode(0)] * 60, max_concurrent=60)
    assert sum(t.stop_reason is StopReason.GAME_FAILED for t in played) == 20


def test_a_model_that_is_gone_ends_the_rollout_and_everything_is_closed() -> None:
    games: list[Walk] = []

    def make_game() -> Walk:
        games.append(Walk())
        return games[-1]

    player = agent(RIGHT, RIGHT, RIGHT, "<gone>")
    with pytest.raises(ModelError, match=r"^The server is gone\.$"):
        play_episodes(make_game, [player], [Episode(0)] * 4)
    assert all(game.closed == 1 for game in games)
    assert player.model.closed == 1  # type: ignore[attr-defined]


def test_a_planner_in_a_game_without_one_is_a_wrong_setting_and_no_failure_of_the_game() -> None:
    message = "Game 'walk' has no planner for player 0; choose another policy."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        play_one(PlannerPolicy())


def test_one_player_too_many_is_refused() -> None:
    message = "2 players for the 1 seats of 'walk'; give one each."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        play_episodes(Walk, [RandomPolicy(), RandomPolicy()], [Episode(0)])


# ---- order and progress ----------------------------------------------------------------------------------------------


def test_trajectories_come_in_the_order_of_the_episodes_and_are_reported_once() -> None:
    reported: dict[int, Trajectory] = {}
    episodes = [Episode(seed=n % 3, course=n, address=(n,)) for n in range(20)]
    played = play_episodes(
        Walk, [agent(RIGHT)], episodes, max_concurrent=4, on_finish=lambda n, t: reported.update({n: t})
    )
    assert [t.course for t in played] == list(range(20))
    assert [reported[n] for n in range(20)] == played


def test_games_are_used_again_by_later_episodes() -> None:
    made = []

    def make_game() -> Walk:
        made.append(1)
        return Walk()

    play_episodes(make_game, [agent(RIGHT)], [Episode(0, address=(n,)) for n in range(20)], max_concurrent=4)
    assert len(made) == 4


# ---- groups ----------------------------------------------------------------------------------------------------------


def play_walk_groups(**settings: Any) -> tuple[list[Any], list[Trajectory]]:
    make_game: Callable[[], Game] = settings.pop("make_game", Walk)
    defaults: dict[str, Any] = dict(num_groups=4, group_size=3, address=(7, "train", 1))
    return play_groups(make_game, [settings.pop("player", RandomPolicy())], **(defaults | settings))


def test_members_of_a_group_share_their_start_and_nothing_else() -> None:
    groups, failed = play_walk_groups(group_size=8)
    assert failed == []
    assert [len(group.trajectories) for group in groups] == [8] * 4
    for group in groups:
        assert len({t.seed for t in group.trajectories}) == 1
        assert len({t.steps[0].observation for t in group.trajectories}) == 1
        assert len({t.course for t in group.trajectories}) == 8
        assert len({tuple(s.action for s in t.steps) for t in group.trajectories}) > 1
    assert len({group.trajectories[0].seed for group in groups}) == 4


def test_iterations_and_runs_play_other_episodes() -> None:
    seeds = [
        tuple(group.trajectories[0].seed for group in play_walk_groups(address=address)[0])
        for address in ((7, "train", 1), (7, "train", 2), (8, "train", 1), (7, "panel", 1))
    ]
    assert len(set(seeds)) == 4
    assert seeds[0] == tuple(group.trajectories[0].seed for group in play_walk_groups()[0])


def test_a_smaller_collection_is_the_beginning_of_a_larger_one() -> None:
    large, _ = play_walk_groups(num_groups=4, group_size=3)
    small, _ = play_walk_groups(num_groups=2, group_size=2)
    assert [g.trajectories for g in small] == [g.trajectories[:2] for g in large[:2]]


def test_no_group_starts_where_an_evaluation_starts() -> None:
    groups, _ = play_walk_groups(excluded_starts=frozenset({"0", "2"}), num_groups=10)
    assert {group.trajectories[0].steps[0].state_key for group in groups} == {"1"}


def test_a_start_that_is_not_excluded_does_not_depend_on_the_others() -> None:
    free, _ = play_walk_groups(num_groups=10)
    bound, _ = play_walk_groups(num_groups=10, excluded_starts=frozenset({"0"}))
    for left, right in zip(free, bound, strict=True):
        if left.trajectories[0].steps[0].state_key != "0":
            assert left.trajectories == right.trajectories


def test_a_game_whose_every_start_is_excluded_says_so() -> None:
    message = (
        "1000 starts of 'walk' in a row are starts of an evaluation panel; expected some that are not. Evaluate on "
        "fewer episodes, or choose a game with more starts."
    )
    with pytest.raises(GameError, match=f"^{re.escape(message)}$"):
        play_walk_groups(excluded_starts=frozenset("012"))


def test_a_game_that_breaks_while_starts_are_chosen_is_made_again() -> None:
    made: list[Walk] = []

    def make_game() -> Walk:
        made.append(Walk(fails="" if len(made) != 0 else "reset"))
        return made[-1]

    groups, failed = play_walk_groups(make_game=make_game, excluded_starts=frozenset({"0"}))
    assert len(groups) == 4
    assert failed == []
    with pytest.raises(GameError, match=r"^Game 'walk' raised RuntimeError: broken pipe\.$"):
        play_walk_groups(make_game=lambda: Walk(fails="reset"), excluded_starts=frozenset({"0"}))


def test_failed_episodes_leave_their_group_and_are_reported() -> None:
    count = 0

    def make_game() -> Walk:
        nonlocal count
        count += 1
        return Walk(fails="step" if count in (2, 5, 6) else "")

    # 3 groups of 3, all under way at once: episode 2 of the first group and 2 and 3 of the second fail
    groups, failed = play_walk_groups(make_game=make_game, num_groups=3, player=agent(RIGHT))
    assert [len(group.trajectories) for group in groups] == [2, 3]  # a group of one has nothing to compare with
    assert len(failed) == 3


def test_a_collection_in_which_every_game_fails_stops_however_small_it_is() -> None:
    message = (
        "All 6 episodes failed in the game; the last one said: GameError: Game 'walk' raised RuntimeError: broken "
        "pipe. Run check_game on it, or set game.isolate = true if it hangs or exits."
    )
    with pytest.raises(GameError, match=f"^{re.escape(message)}$"):
        play_walk_groups(make_game=lambda: Walk(fails="step"), num_groups=2)


def test_prompts_that_leave_no_room_for_an_answer_stop_the_collection() -> None:
    message = (
        "All 6 episodes ended before their first step, since the prompt leaves no room in the model's context window; "
        "shorten agent.template, play a smaller game, or choose a model with a longer context."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        play_walk_groups(player=agent("<full>"), num_groups=2)


def test_no_room_for_an_episode_is_refused() -> None:
    message = "max_concurrent=0 plays nothing; set it to 1 or more."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        play_one(agent(RIGHT), max_concurrent=0)


# ---- several seats ---------------------------------------------------------------------------------------------------


class Duel(Walk):
    """Three players; player k leaves after round k, the game ends after four rounds. A round pays 1 to everyone."""

    name = "duel"
    num_players = 3

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        super().reset(seed=seed)
        self.rounds: list[tuple[str | None, ...]] = []
        return ("o",) * 3

    def step(self, actions: Sequence[str | None]) -> GameStep:
        check_joint_action(self, actions, started=True, over=self._over)
        self.rounds.append(tuple(actions))
        self._over = len(self.rounds) == 4
        return GameStep(("o",) * 3, (1.0, 10.0, 100.0), self._over, False)

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        return () if self._over or (player and len(self.rounds) >= player) else ("left", "right")


@pytest.mark.parametrize(("seat", "rewards"), [(0, [1, 1, 1, 1]), (1, [40]), (2, [100, 300])])
def test_a_player_who_left_is_not_asked_and_keeps_earning(seat: int, rewards: list[float]) -> None:
    game = Duel()
    policies = [agent(RIGHT), agent(LEFT), RandomPolicy()]
    (trajectory,) = play_episodes(lambda: game, policies, [Episode(0)], seat=seat)
    assert [actions[:2] for actions in game.rounds] == [("right", "left"), *[("right", None)] * 3]
    assert [actions[2] is None for actions in game.rounds] == [False, False, True, True]
    assert [step.reward for step in trajectory.steps] == rewards
    assert trajectory.player == seat
    assert trajectory.terminated


def test_recovery_end_of_an_opponent_does_not_end_the_episode() -> None:
    game = Duel()
    (trajectory,) = play_episodes(
        lambda: game, [agent(RIGHT), agent(GARBAGE, recovery="end"), RandomPolicy()], [Episode(0)]
    )
    assert len(trajectory.steps) == 4
    assert game.rounds[0][1] is None


# ---- a real model ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    patch = pytest.MonkeyPatch()
    patch.setenv("STRATAGEM_CACHE", str(tmp_path_factory.mktemp("cache")))
    model = LocalModel.load(ModelConfig("tiny"))
    patch.undo()
    return model


def comparable(trajectory: Trajectory) -> Any:
    """Everything but log-probabilities, which may differ by rounding."""
    return (
        trajectory.stop_reason,
        [(s.observation, s.prompt_ids, s.completion_ids, s.reward) for s in trajectory.steps],
    )


def test_an_episode_does_not_depend_on_the_batch_it_was_played_in(tiny: LocalModel) -> None:
    player = LanguageAgent.from_config(tiny, AgentConfig(max_new_tokens=6, recovery="random"))
    episodes = [Episode(n, n, (3, "batch", n)) for n in range(5)]
    frozen_lake = lambda: make("frozen_lake", max_steps=5)  # noqa: E731
    together = play_episodes(frozen_lake, [player], episodes)
    for number in (0, 3):
        tiny.weights_changed()
        (alone,) = play_episodes(frozen_lake, [player], [episodes[number]])
        assert comparable(alone) == comparable(together[number])
        for left, right in zip(alone.steps, together[number].steps, strict=True):
            np.testing.assert_allclose(left.logprobs, right.logprobs, rtol=0.0, atol=1e-4)
    tiny.weights_changed()
    two_by_two = play_episodes(frozen_lake, [player], episodes[::-1], max_concurrent=2)
    assert [comparable(t) for t in two_by_two[::-1]] == [comparable(t) for t in together]


def test_two_language_agents_play_each_other(tiny: LocalModel) -> None:
    one = LanguageAgent.from_config(tiny, AgentConfig(max_new_tokens=4, recovery="random"))
    two = LanguageAgent.from_config(tiny, AgentConfig(max_new_tokens=4, recovery="random", temperature=0.5))
    episodes = [Episode(n, n, (3, "self-play", n)) for n in range(3)]
    snake: Callable[[], Game] = lambda: make("snake", width=4, height=4, num_apples=2, max_steps=4)  # noqa: E731
    seats = [play_episodes(snake, [one, two], episodes, seat=seat) for seat in (0, 1)]
    for left, right in zip(*seats, strict=True):
        assert (left.player, right.player) == (0, 1)
        assert left.stop_reason is right.stop_reason
        assert [s.state_key for s in left.steps] == [s.state_key for s in right.steps]
        assert all(step.completion_ids for t in (left, right) for step in t.steps)
        assert left.steps[0].prompt_ids != right.steps[0].prompt_ids
        assert left.steps[0].completion_ids != right.steps[0].completion_ids


def test_a_rollout_that_failed_leaves_nothing_behind_in_the_model(tiny: LocalModel) -> None:
    player = LanguageAgent.from_config(tiny, AgentConfig(max_new_tokens=20, recovery="random"))
    with pytest.raises(GameError, match="check_game"):
        play_episodes(lambda: Walk(fails="step"), [player], [Episode(n, address=(n,)) for n in range(30)])
    tiny.weights_changed()
    assert tiny.sampler.num_running == 0
    played = play_episodes(Walk, [player], [Episode(n, address=(n,)) for n in range(5)])
    assert all(t.steps for t in played)


def test_policies_of_code_get_their_own_draws() -> None:
    class Recorder(Policy):
        name = "recorder"

        def __init__(self) -> None:
            self.drawn: list[float] = []

        def act(self, game: Game, player: int, observation: str, rng: np.random.Generator) -> str | None:
            self.drawn.append(float(rng.random()))
            return "right"

    recorder, again = Recorder(), Recorder()
    play_episodes(Walk, [recorder], [Episode(0, address=(n,)) for n in range(3)])
    assert len(set(recorder.drawn)) == len(recorder.drawn) == 12
    play_episodes(Walk, [again], [Episode(0, address=(1,))])
    assert again.drawn == recorder.drawn[4:8]


def test_episodes_are_played_where_an_event_loop_runs_already() -> None:
    episodes = [Episode(seed, 0, ("notebook", seed)) for seed in range(3)]

    async def cell() -> list[Trajectory]:
        return play_episodes(lambda: make("FrozenLake-NotSlippery"), [RandomPolicy()], episodes)

    inside = asyncio.run(cell())
    assert inside == play_episodes(lambda: make("FrozenLake-NotSlippery"), [RandomPolicy()], episodes)
