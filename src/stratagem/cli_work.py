"""The verbs that compute: train, eval, export."""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stratagem.agents.language import AgentConfig
from stratagem.cli_players import find_contestant, find_run, free_folder, parse_params, run_model, run_weights
from stratagem.cli_trials import evaluate_in_trials, print_invalid
from stratagem.cli_view import make_console, print_trajectory, show_results
from stratagem.errors import ConfigError, RunError
from stratagem.evaluation.episode_log import EpisodeLog, read_episodes
from stratagem.evaluation.panels import EvaluationResult, fixed_panel, panel_optima
from stratagem.evaluation.play import evaluate, seat_opponents
from stratagem.evaluation.tables import format_interval
from stratagem.files import atomic_write_json, atomic_write_text
from stratagem.models.catalog import TINY
from stratagem.recipe import Recipe, dump_toml, load_recipe
from stratagem.rollout import Player
from stratagem.runs.display import Display
from stratagem.runs.experiment import build_agent, check_recipe, panel_names, panel_params
from stratagem.runs.folder import RunFolder
from stratagem.runs.interrupts import StopRequest
from stratagem.runs.load import load_warning
from stratagem.runs.plan import make_plan
from stratagem.types import Step, Trajectory

__all__ = ["evaluate_command", "export", "train"]

_INTERRUPTED = 130

_TINY = (
    "The model tiny is random and learns nothing: it is there to try the commands. One that learns: "
    "stratagem train frozen_lake_demo"
)


# ---- train -------------------------------------------------------------------------------------------------------


def train(arguments: argparse.Namespace) -> int:
    """Train what a recipe says."""
    recipe = _recipe(arguments)
    if arguments.print_config:
        print(dump_toml(recipe), end="")
        return 0
    check_recipe(recipe)
    from stratagem.models.local import check_device
    from stratagem.runs.training import ALGORITHMS, train_run

    ALGORITHMS[type(recipe.algorithm)].check_agent(build_agent(None, recipe))  # type: ignore[arg-type]
    if arguments.dry_run:
        return _dry_run(recipe, arguments)
    check_device(recipe.model.device)
    console = make_console()
    text = dump_toml(recipe)
    with RunFolder.create(arguments.runs_dir, arguments.name, text, resume=arguments.resume) as folder:
        if (busy := load_warning()) is not None:
            print(f"warning: {busy}", file=sys.stderr)
        with StopRequest() as stop, Display(console) as display:
            notice = "Stopping after this iteration, with a checkpoint. Press Ctrl-C again to stop at once."
            # From a thread: a signal that arrives while a line is written would have it written twice.
            stop.on_request = lambda: threading.Thread(target=display.note, args=(notice,), daemon=True).start()
            try:
                outcome = train_run(recipe, folder, display, stop=stop)
            except KeyboardInterrupt:
                display.close()
                print(f"\nStopped at once. {_resume_hint(folder, arguments)}", file=sys.stderr)
                return _INTERRUPTED
        if not outcome.completed:
            saved = f"Saved after iteration {outcome.iteration}." if outcome.saved else "Nothing was trained yet."
            print(f"{saved} {_resume_hint(folder, arguments)}", file=sys.stderr)
            return _INTERRUPTED
        by_tag = {tag: e.results for tag, e in outcome.evaluations.items() if not tag.isdigit()}
        show_results(console, by_tag)
        console.print()
        _print_summary(outcome.summary, folder, console)
        if recipe.model.name == TINY:
            print(_TINY)
    return 0


def _recipe(arguments: argparse.Namespace) -> Recipe:
    overrides = list(arguments.overrides)
    if arguments.seed is not None:
        overrides.append(f"seed={arguments.seed}")
    if arguments.recipe is not None:
        return load_recipe(arguments.recipe, overrides)
    if not arguments.resume or arguments.name is None:
        raise ConfigError("RECIPE is missing; name one, or continue a run with --name NAME --resume.")
    return load_recipe(find_run(arguments.name, arguments.runs_dir).recipe_file, overrides, of_run=True)


def _resume_hint(folder: RunFolder, arguments: argparse.Namespace) -> str:
    runs_dir = "" if arguments.runs_dir == "runs" else f" --runs-dir {arguments.runs_dir}"
    return f"Continue with: stratagem train --name {folder.name} --resume{runs_dir}"


def _dry_run(recipe: Recipe, arguments: argparse.Namespace) -> int:
    if arguments.resume:
        print(
            f"Would continue run {arguments.name!r} in {arguments.runs_dir!r}; the numbers are those of the whole run."
        )
    panels = ", ".join(panel_names(recipe))
    warm_start = ""
    if recipe.warm_start is not None:
        warm_start = f" after {recipe.warm_start.num_steps} steps of warm start ({recipe.warm_start.demonstrator})"
    print(
        f"Would train {recipe.model.name} ({recipe.model.dtype}, {recipe.model.device}) on {recipe.game.name} for "
        f"{recipe.algorithm.num_iterations} iterations{warm_start}, with panels {panels}."
    )
    for line in make_plan(recipe).lines():
        print(f"  {line}")
    free = shutil.disk_usage(_existing(Path(arguments.runs_dir))).free / 2**30
    print(f"  free        {free:.1f} GiB where the runs lie")
    return 0


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _print_summary(summary: Mapping[str, Any], folder: RunFolder, console: Any) -> None:
    for change in summary["improvement"]:
        text = format_interval(change["mean"], change["interval"], signed=True)
        print(f"{change['panel']}: final - {change['from']} = {text}, on the same episodes")
    for warning in summary["warnings"]:
        print(f"warning: {warning}")
    tag = "final"
    panel = summary["evaluations"][tag]["panels"][0]["panel"]
    _, episodes = read_episodes(folder.evaluation / tag / f"{panel}.jsonl")
    console.print()
    console.print(f"The first episode of {panel} after training:", markup=False)
    print_trajectory(console, episodes[0])
    console.print()
    print(f"{summary['iterations']} iterations, {summary['minutes']:.1f} minutes, {summary['peak_memory_gib']:.1f} GiB")
    for text, path in (
        ("model", folder.path / "model"),
        ("curve", folder.figures / "learning_curve.png"),
        ("numbers", folder.path / "summary.json"),
    ):
        print(f"  {text:<8} {path}")
    print(f"Look closer with: stratagem view {folder.path}")


# ---- eval --------------------------------------------------------------------------------------------------------


def evaluate_command(arguments: argparse.Namespace) -> int:
    """Play a panel and measure."""
    if arguments.resume and arguments.out is None:
        raise ConfigError("--resume needs the folder of the evaluation; give it with --out.")
    if arguments.max_concurrent < 1:
        raise ConfigError(f"--max-concurrent {arguments.max_concurrent} plays nothing; set it to 1 or more.")
    contestant = find_contestant(arguments.who, arguments)
    recipe = contestant.recipe
    game = arguments.game or (panel_names(recipe)[0] if recipe is not None else None)
    if game is None:
        raise ConfigError("--game is missing; name a game or variant of `stratagem games`.")
    params = (panel_params(recipe, game) if recipe is not None else {}) | parse_params(arguments.params)
    gamma = arguments.gamma
    if gamma is None:
        gamma = 1.0 if recipe is None else recipe.evaluation.gamma
    panel = fixed_panel(game, params, arguments.episodes, gamma=gamma)
    seed = arguments.seed if arguments.seed is not None else 0 if recipe is None else recipe.seed
    played_game = panel.make_game()
    opponents = seat_opponents(played_game)
    header = {
        **{f"who.{key}": value for key, value in contestant.settings.items()},
        "panel": panel.name,
        "panel_hash": panel.hash,
        "params": params,
        "seed": seed,
        "opponents": [played_game.default_opponent(seat) for seat in range(1, played_game.num_players)],
    }
    played_game.close()
    out = Path(arguments.out) if arguments.out is not None else free_folder(contestant.label, game)
    if contestant.num_trials is not None:
        return evaluate_in_trials(contestant, panel, opponents, header, out, arguments)
    log = EpisodeLog(out / "episodes.jsonl", header, resume=arguments.resume)
    started = time.perf_counter()
    console = make_console()
    with Display(console) as display:
        display.start(arguments.episodes, f"{contestant.label} on {game}", completed=len(log.done), unit="episodes")
        player = contestant.load()
        count = len(log.done)

        def on_finish(place: int, trajectory: Trajectory) -> None:
            nonlocal count
            log.append(place, trajectory)
            count += 1
            display.advance(count)

        try:
            result, trajectories = evaluate(
                panel,
                [player, *opponents],
                address=(seed, "panel", panel.name),
                optima=panel_optima(panel),
                max_concurrent=arguments.max_concurrent,
                on_finish=on_finish,
                done=log.done,
            )
        except KeyboardInterrupt:
            display.close()
            print(
                f"\nStopped with {count} of {arguments.episodes} episodes saved. Continue with the same command and "
                f"--out {out} --resume",
                file=sys.stderr,
            )
            return _INTERRUPTED
    tokens = _count_tokens(player, trajectories)
    atomic_write_text(out / "result.json", result.to_json())
    results = {contestant.label: [result]}
    beside = out / "result_undiscounted.json"
    beside.unlink(missing_ok=True)
    if gamma < 1:
        plain = replace(panel, gamma=1.0)
        summed = EvaluationResult.from_trajectories(plain, trajectories, panel_optima(plain))
        atomic_write_text(beside, summed.to_json())
        results = {f"{contestant.label}, discounted by {gamma:g}": [result], "undiscounted": [summed]}
    seconds = time.perf_counter() - started
    atomic_write_json(out / "settings.json", {**header, "seconds": seconds, "tokens": tokens})
    _print_results(console, results, result, tokens, out)
    print_invalid(trajectories)
    return 0


def _print_results(
    console: Any,
    results: Mapping[str, Sequence[EvaluationResult]],
    result: EvaluationResult,
    tokens: Mapping[str, int],
    out: Path,
) -> None:
    show_results(console, results)
    if tokens["completion"]:
        print(f"tokens: {tokens['prompt']:,} in prompts, {tokens['completion']:,} generated")
    full = result.stop_reasons.get("context", 0)
    if full:
        print(f"warning: {full} episodes ended because the prompt filled the model's context window")
    failed = result.stop_reasons.get("game_failed", 0)
    if failed:
        print(f"warning: {failed} episodes failed in the game and are left out; --resume plays them again")
    print(f"saved in {out}")


def _count_tokens(player: Player, trajectories: list[Trajectory]) -> dict[str, int]:
    usage = getattr(getattr(player, "model", None), "usage", None)
    if usage is not None:
        return {
            "prompt": usage.prompt_tokens,
            "completion": usage.completion_tokens,
            "requests": usage.requests,
            "retries": usage.retries,
            "answers_without_usage": usage.answers_without_usage,
        }
    return {
        "prompt": sum(len(ids) for t in trajectories for step in t.steps for ids in _prompts(step)),
        "completion": sum(t.num_tokens for t in trajectories),
    }


def _prompts(step: Step) -> list[tuple[int, ...]]:
    return [step.prompt_ids, *(part.prompt_ids for part in step.generations)]


# ---- export ------------------------------------------------------------------------------------------------------


def export(arguments: argparse.Namespace) -> int:
    """Write a run's model as a folder."""
    run = find_run(arguments.run, arguments.runs_dir)
    recipe = load_recipe(run.recipe_file, of_run=True)
    target = Path(arguments.to)
    if target.exists():
        raise RunError(f"--to {str(target)!r} exists; name a new folder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    finished = run.path / "model"
    if finished.is_dir() and (recipe.model.lora is None or not arguments.merged):
        from stratagem.files import publish_folder

        temporary = target.parent / f".tmp-{target.name}"
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(finished, temporary)
        publish_folder(temporary, target)
    else:
        from stratagem.runs.weights import save_model

        model = run_model(run, recipe)
        # A finished adapter is merged when it is loaded.
        save_model(model, target, merged=arguments.merged and model.config.lora is not None)
    size = sum(path.stat().st_size for path in target.iterdir()) / 2**20
    if not finished.is_dir():
        print(
            f"The run is not finished: these are the weights after iteration {int(run_weights(run).partition('.')[0])}."
        )
    print(
        f"{target}: {size:.1f} MiB, read by transformers' from_pretrained and by `stratagem eval {target} --game ...`"
    )
    if isinstance(recipe.agent, AgentConfig):
        print(f"Other programs have to stop an answer after </{recipe.agent.tag}> (stop_strings in transformers).")
    return 0
