"""Runs as the trainer writes them, with numbers that the tests know; made without a model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from stratagem.data.token_logprobs import ANSWER, TokenLogprobs, logprobs_file, write_token_logprobs
from stratagem.data.trajectories import read_trajectories, write_trajectories
from stratagem.evaluation.episode_log import write_episodes
from stratagem.evaluation.panels import EvaluationResult, fixed_panel
from stratagem.files import atomic_write_json
from stratagem.games import make
from stratagem.page.data import Library
from stratagem.page.server import bind, make_app
from stratagem.runs.folder import RunFolder
from stratagem.runs.metrics import MetricsLog
from stratagem.types import Finish, Step, StopReason, Trajectory, TrajectoryGroup

RECIPE = """name = "lake"
seed = {seed}

[game]
name = "FrozenLake-NotSlippery"

[game.params]

[model]
name = "tiny"

[algorithm]
name = "ms_grpo"
num_iterations = {total}
learning_rate = {rate}

[evaluation]
panels = ["FrozenLake-NotSlippery"]
"""
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@lru_cache(maxsize=1024)
def ids_of(text: str) -> tuple[int, ...]:
    """Return the byte ids of the tokenizer that :func:`write_tokenizer` writes; ASCII only."""
    return tuple(_tokenizer().encode(text).ids)


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={token: n for n, token in enumerate(SPECIAL + alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return core


def write_tokenizer(run: Path) -> None:
    (run / "model").mkdir(exist_ok=True)
    (run / "model" / "tokenizer.json").write_text(_tokenizer().to_str(), encoding="utf-8")


@lru_cache(maxsize=64)
def play(actions: tuple[str | None, ...], *, seed: int = 3, said: str | None = None) -> Trajectory:
    """Play Frozen Lake; None is an answer without an action."""
    game = make("FrozenLake-NotSlippery", size=4)
    observation = game.reset(seed=seed)[0]
    steps, ended = [], None
    for action in actions:
        text = said if said is not None and action is None else f"{action}</action>"
        key = game.state_key()
        ended = game.step([action])
        ids = ids_of(text + "<|im_end|>")
        steps.append(
            Step(
                observation=observation,
                action=action,
                reward=ended.rewards[0],
                invalid_penalty=0.0 if action is not None else -0.5,
                executed_action=action,
                parse_error=None if action is not None else "no closing tag",
                completion=text,
                prompt_ids=ids_of(f"<|im_start|>user\n{observation}<|im_end|>\n<|im_start|>assistant\n<action>"),
                completion_ids=ids,
                logprobs=tuple(-0.01 * (place + 1) for place in range(len(ids))),
                finish=Finish.STOP,
                state_key=key,
            )
        )
        observation = ended.observations[0]
        if ended.terminated:
            break
    assert ended is not None
    return Trajectory(
        game="frozen_lake",
        seed=seed,
        course=0,
        player=0,
        steps=tuple(steps),
        terminated=ended.terminated,
        truncated=not ended.terminated,
        stop_reason=StopReason.TERMINATED if ended.terminated else StopReason.MAX_STEPS,
        success=ended.info.get("success"),
    )


# Seed 3 has one hole, at (2, 3): two steps to the right of the start in the top left corner; the goal is bottom right.
WIN = ("down", "down", "down", "right", "right", "right")
FALL = ("right", "right")
STRAY = ("up", None, "up")


def metrics_row(iteration: int, **changes: Any) -> dict[str, Any]:
    return {
        "num_episodes": 6.0,
        "return_mean": iteration / 10,
        "return_std": 0.4,
        "composite_return_mean": iteration / 10,
        "success_rate": min(iteration / 8, 1.0),
        "invalid_action_rate": 0.125,
        "episode_length": 3.5,
        "tokens_per_step": 12.0,
        "learning_rate": 1e-4,
        "loss": -0.1,
        "entropy": 0.7,
        "approx_kl": 0.01,
        "clip_fraction": 0.02,
        "ratio_gap": 1e-6,
        "grad_norm": 1.5,
        "tokens_computed": 250.0,
        "tokens_seen": 1000.0,
        "groups_without_signal": 0.25,
        "seconds_play": 2.0,
        "seconds_update": 3.0,
        **changes,
    }


def add_iteration(run: Path, iteration: int, *, said: str = "<action>", **changes: Any) -> None:
    """Write what one iteration leaves: a row of metrics, and two groups of three episodes."""
    MetricsLog(run / "metrics.jsonl").append(iteration, metrics_row(iteration, **changes))
    first = TrajectoryGroup((play(FALL), play(WIN), play(STRAY, said=said)))
    second = TrajectoryGroup((play(FALL, seed=5), play(FALL, seed=5), play(FALL, seed=5)))
    write_trajectories(run / "trajectories", iteration, [first, second], [[-0.5, 1.5, -1.0], [0.0, 0.0, 0.0]])


@lru_cache(maxsize=8)
def evaluated(wins: int, of: int = 4) -> tuple[EvaluationResult, list[Trajectory]]:
    """Return a result of the panel with its episodes; the first are won."""
    panel = fixed_panel("FrozenLake-NotSlippery", num_episodes=of)
    episodes = [
        Trajectory(
            "frozen_lake", seed, 0, 0, play(WIN if place < wins else FALL).steps, True, False,
            StopReason.TERMINATED, place < wins,
        )
        for place, seed in enumerate(panel.seeds)
    ]  # fmt: skip
    return EvaluationResult.from_trajectories(panel, episodes, [1.0] * of), episodes


def add_evaluation(run: Path, tag: str, wins: int) -> None:
    result, episodes = evaluated(wins)
    (run / "evaluation" / tag).mkdir()
    (run / "evaluation" / tag / f"{result.panel}.json").write_text(result.to_json(), encoding="utf-8")
    if not tag.isdigit():
        write_episodes(run / "evaluation" / tag / f"{result.panel}.jsonl", {"panel": result.panel}, episodes)


def make_run(
    root: Path,
    name: str,
    *,
    iterations: int = 3,
    seed: int = 0,
    rate: float = 1e-4,
    finished: bool = True,
    **changes: Any,
) -> Path:
    """Write a run of some iterations, with a tokenizer, an evaluation at the start and, if finished, at the end."""
    text = RECIPE.format(seed=seed, total=max(iterations, 1), rate=rate)
    RunFolder.create(root, name, text, seed=seed).close()
    run = root / name
    (run / ".lock").write_text("")  # nobody trains it
    write_tokenizer(run)
    for iteration in range(1, iterations + 1):
        add_iteration(run, iteration, **changes)
    if iterations:
        add_evaluation(run, "start", 1)
    if finished and iterations:
        add_evaluation(run, "final", 3)
        atomic_write_json(run / "summary.json", {"run": name, "minutes": 1.0, "warnings": []})
    return run


@contextmanager
def served(sources: Sequence[Path], *, token: str | None = None) -> Iterator[str]:
    """Serve the page from a thread; yield its address."""
    listener = bind("127.0.0.1", 0)
    config = uvicorn.Config(
        make_app(Library(sources), token=token), log_level="error", access_log=False, lifespan="off", ws="none"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


@pytest.fixture
def new_run(tmp_path: Path) -> Callable[..., Path]:
    """Make runs in ``tmp_path / "runs"``."""
    return lambda name="first", **settings: make_run(tmp_path / "runs", name, **settings)


@pytest.fixture
def grow() -> Callable[..., None]:
    """Write a further iteration into a run."""
    return add_iteration


@pytest.fixture
def serve_page() -> Callable[..., Any]:
    """Serve runs from a thread, as a context."""
    return served


@pytest.fixture
def markup() -> str:
    """What a file may hold and a browser must not run."""
    return MARKUP


@pytest.fixture
def add_change() -> Callable[..., None]:
    """Write what weights think of an episode of the first group: the sampler's numbers, shifted."""

    def add(run: Path, weights: str, shift: float, *, episode: int = 1) -> None:
        stored = read_trajectories(run / "trajectories" / "000001.parquet")[0].group.trajectories[episode]
        answers = {
            (0, episode, number, ANSWER): TokenLogprobs(step.completion_ids, tuple(p + shift for p in step.logprobs))
            for number, step in enumerate(stored.steps)
        }
        write_token_logprobs(logprobs_file(run, weights, 1), 1, answers, temperature=0.5)

    return add
