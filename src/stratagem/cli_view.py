"""The verbs that show: view, games, models. And how an episode is printed."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from stratagem.cli_players import find_run, parse_params, stored_recipe
from stratagem.data.trajectories import read_trajectories, trajectory_file
from stratagem.errors import ConfigError, RunError, UnknownNameError
from stratagem.evaluation.episode_log import read_episodes
from stratagem.evaluation.figures import sparkline
from stratagem.evaluation.panels import EvaluationResult, fixed_panel, panel_optima
from stratagem.evaluation.tables import Table, format_endings, format_interval, format_share, format_std, share_note
from stratagem.games import GAMES, VARIANTS, game_class, make, parameters
from stratagem.runs.folder import RunFolder, list_runs
from stratagem.runs.metrics import read_metrics
from stratagem.types import Step, Trajectory

__all__ = ["games", "make_console", "models", "print_trajectory", "show_results", "show_table", "view"]

_PIPE_WIDTH = 140
_TAIL = 100


def make_console() -> Console:
    """Return a console on standard output; where that is no terminal, wide enough that tables keep their lines."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(_PIPE_WIDTH, console.width))
    return console


def show_table(console: Console, table: Table, title: str | None = None) -> None:
    """Print a table without a frame, which fits 80 columns."""
    shown = table.rich()
    shown.box = None
    shown.pad_edge = False
    shown.padding = (0, 2, 0, 0)
    shown.header_style = "bold"
    if title is not None:
        console.print(title, markup=False)
    console.print(shown)


def show_results(console: Console, results: Mapping[str, Sequence[EvaluationResult]]) -> None:
    """Print a table for each panel with one line for each agent or moment.

    Args:
        console: where.
        results: agent or moment in words -> its results, one for each panel.
    """
    panels = dict.fromkeys(result.panel for of_agent in results.values() for result in of_agent)
    for panel in panels:
        shown = [(label, r) for label, of_agent in results.items() for r in of_agent if r.panel == panel]
        rows = tuple(
            (
                label,
                format_interval(result.mean, result.interval),
                format_std(result.std),
                format_share(result.success_rate),
                format_share(result.share_of_optimum),
                format_share(result.invalid_action_rate),
                f"{result.mean_episode_length:.1f}",
            )
            for label, result in shown
        )
        episodes = " or ".join(map(str, sorted({result.num_episodes for _, result in shown})))
        headers = ("", "Return [95%]", "Std", "Success", "Of optimum", "Invalid", "Steps")
        show_table(console, Table(headers, rows), f"\n{panel}, {episodes} episodes")
        note = share_note(result.share_of_optimum for _, result in shown)
        if note is not None:
            console.print(note, markup=False, soft_wrap=True)
        # Below, since a column of them would not fit 100 characters.
        for label, result in shown:
            console.print(f"{label} ended by: {format_endings(result.stop_reasons)}", markup=False, soft_wrap=True)


# ---- an episode ----------------------------------------------------------------------------------------------------


def print_trajectory(
    console: Console,
    trajectory: Trajectory,
    *,
    advantage: float | None = None,
    decode: Callable[[Sequence[int]], str] | None = None,
    full: bool = False,
) -> None:
    """Print an episode step by step.

    Args:
        console: where.
        trajectory: what.
        advantage: as the update used it.
        decode: ids to text with special tokens; None prints the completion as it was recorded.
        full: every observation whole; else the first one, and of the others the lines that changed.
    """
    before: list[str] = []
    for number, step in enumerate(trajectory.steps):
        lines = step.observation.splitlines()
        console.print(f"[bold]step {number + 1}[/bold]")
        known = set(before)
        for line in lines:
            if full or not before or line not in known:
                console.print(Text(f"  {_visible(line)}", style="dim"), soft_wrap=True)
        before = lines
        _print_answer(console, step, decode)
    ending = f"end: {trajectory.stop_reason}"
    if trajectory.success is not None:
        ending += ", success" if trajectory.success else ", no success"
    ending += f", return {trajectory.environment_return:+.2f}"
    if trajectory.composite_return != trajectory.environment_return:
        ending += f" ({trajectory.composite_return:+.2f} with shaping)"
    if advantage is not None:
        ending += f", advantage {advantage:+.3f}"
    if "error" in trajectory.info:
        ending += f"; {trajectory.info['error']}"
    console.print(ending, markup=False, soft_wrap=True)


def _visible(line: str) -> str:
    """Return a line whose control characters, which could move the cursor or end the output, are escapes."""
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in line)


def _print_answer(console: Console, step: Step, decode: Callable[[Sequence[int]], str] | None) -> None:
    for part in step.generations:
        said = decode(part.completion_ids) if part.completion_ids and decode is not None else part.completion
        wrong = "" if part.parse_error is None else f" [red]{escape(part.parse_error)}[/red]"
        console.print(f"  {part.role:<12} [cyan]{escape(repr(said)[1:-1])}[/cyan]{wrong}", soft_wrap=True)
    if step.prompt_ids and decode is not None:
        tail = decode(step.prompt_ids)[-_TAIL:]
        console.print(f"  prompt ends  [dim]...{escape(repr(tail)[1:-1])}[/dim]", soft_wrap=True)
    if step.completion or step.completion_ids:
        said = decode(step.completion_ids) if step.completion_ids and decode is not None else step.completion
        counts = f" ({len(step.completion_ids)} tokens, {step.finish})" if step.finish is not None else ""
        console.print(f"  answer       [cyan]{escape(repr(said)[1:-1])}[/cyan]{counts}", soft_wrap=True)
    if step.action is not None:
        action = f"[green]{escape(step.action)}[/green]"
    else:
        action = f"[red]none[/red]: {escape(step.parse_error or 'no reason recorded')}"
        if step.executed_action is not None:
            action += f"; {escape(step.executed_action)} was played instead"
    console.print(f"  action       {action}", soft_wrap=True)
    parts = [f"reward {step.reward:+.2f}"]
    if step.invalid_penalty:
        parts.append(f"invalid {step.invalid_penalty:+.2f}")
    if step.shaping:
        parts.append(f"format {step.shaping:+.2f}")
    console.print(f"  {'  '.join(parts)}", markup=False)


# ---- view ----------------------------------------------------------------------------------------------------------


def view(arguments: argparse.Namespace) -> int:
    """Look into a run."""
    console = make_console()
    if arguments.run is None:
        return _list_runs(console, arguments.runs_dir)
    run = find_run(arguments.run, arguments.runs_dir)
    if arguments.iteration is not None and arguments.evaluation is not None:
        raise ConfigError("--iteration and --evaluation are different places; give one of them.")
    if arguments.panel is not None and arguments.evaluation is None:
        raise ConfigError("--panel has no effect without --evaluation; give both, or leave it out.")
    if arguments.evaluation is not None:
        return _view_evaluation(console, run, arguments)
    picks = (arguments.group, arguments.episode, arguments.best or None, arguments.worst or None)
    if arguments.iteration is None and any(pick is not None for pick in picks):
        arguments.iteration = _last_iteration(run)
    if arguments.iteration is not None:
        return _view_iteration(console, run, arguments)
    return _view_run(console, run)


def _list_runs(console: Console, runs_dir: str) -> int:
    names = list_runs(runs_dir)
    if not names:
        console.print(f"No runs in {runs_dir!r}; make one with `stratagem train tiny`.", markup=False)
        return 0
    rows = []
    for name in names:
        run = RunFolder.open(Path(runs_dir) / name)
        try:
            metrics = read_metrics(run.metrics_file)
            recipe = stored_recipe(run)
        except RunError:  # must not hide the others; `view NAME` says what is wrong
            rows.append((name, "damaged", "-", "-", "-"))
            continue
        done = metrics[-1]["iteration"] if metrics else 0
        means = [row["panel_mean"] for row in metrics if isinstance(row.get("panel_mean"), (int, float))]
        rows.append(
            (
                name,
                recipe["game"]["name"],
                Path(recipe["model"]["name"]).name,
                f"{done}/{recipe['algorithm']['num_iterations']}",
                "-" if not means else f"{means[0]:.3f} -> {means[-1]:.3f}",
            )
        )
    show_table(console, Table(("Run", "Game", "Model", "Iterations", "Panel mean"), tuple(rows)))
    return 0


def _view_run(console: Console, run: RunFolder) -> int:
    recipe = stored_recipe(run)
    rows = read_metrics(run.metrics_file)
    done = rows[-1]["iteration"] if rows else 0
    total = recipe["algorithm"]["num_iterations"]
    state = "finished" if (run.path / "summary.json").is_file() else "not finished"
    console.print(
        f"{run.name}: {recipe['model']['name']} on {recipe['game']['name']}, {done} of {total} iterations, {state}",
        markup=False,
    )
    by_tag = {tag: results for tag in ("start", "warm_start", "final") if (results := _results(run, tag))}
    if by_tag:
        show_results(console, by_tag)
        console.print()
    summary_file = run.path / "summary.json"
    if summary_file.is_file():
        try:
            summary = json.loads(summary_file.read_text(encoding="utf-8"))
            seconds = ", ".join(f"{phase} {value / 60:.1f}" for phase, value in summary["seconds"].items() if value)
            line = f"{summary['minutes']:.1f} minutes ({seconds}), {summary['peak_memory_gib']:.1f} GiB"
            notes = [f"warning: {warning}" for warning in summary["warnings"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(summary_file, error) from error
        for text in (line, *notes):
            console.print(text, markup=False, soft_wrap=True)
    for label, key in (("return", "return_mean"), ("panel mean", "panel_mean")):
        values = [row[key] for row in rows if isinstance(row.get(key), (int, float))]
        if values:
            line = sparkline(values, 60)
            console.print(f"{label:<11} {line}  {values[0]:.3f} -> {values[-1]:.3f}", markup=False)
    _print_iterations(console, rows)
    if not (run.path / "summary.json").is_file():
        from stratagem.runs.checkpoint import list_checkpoints  # here: it loads torch

        latest = [path.name for path in list_checkpoints(run.checkpoints)][-1:] or ["none"]
        console.print(f"newest checkpoint: {latest[0]}", markup=False)
    if done:
        console.print(f"One episode: stratagem view {run.path} --iteration {done} --best", markup=False, soft_wrap=True)
    return 0


def _print_iterations(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    played = [row for row in rows if row["iteration"] > 0]
    if not played:
        return

    def cell(row: dict[str, Any], key: str, spec: str) -> str:
        value = row.get(key)
        return format(value, spec) if isinstance(value, (int, float)) else "-"

    columns = (
        ("Return", "return_mean", ".3f"),
        ("Success", "success_rate", ".1%"),
        ("Invalid", "invalid_action_rate", ".1%"),
        ("Steps", "episode_length", ".1f"),
        ("Entropy", "entropy", ".3f"),
        ("Panel mean", "panel_mean", ".3f"),
    )
    cells = [
        (str(row["iteration"]), *(cell(row, key, spec) for _, key, spec in columns), f"{_seconds(row):.1f}")
        for row in played
    ]
    headers = ("Iteration", *(title for title, _, _ in columns), "Seconds")
    show_table(console, Table(headers, tuple(cells)))


def _seconds(row: dict[str, Any]) -> float:
    return float(sum(value for key, value in row.items() if key.startswith("seconds_") and value is not None))


def _results(run: RunFolder, tag: str) -> list[EvaluationResult]:
    results = []
    for path in sorted((run.evaluation / tag).glob("*.json")):
        try:
            results.append(EvaluationResult.from_json(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(path, error) from error
    return results


def _damaged(path: Path, error: Exception) -> RunError:
    return RunError(
        f"{str(path)!r} is damaged ({type(error).__name__}: {error}); restore it from a copy, or delete it."
    )


def _iterations(run: RunFolder) -> list[int]:
    return sorted(int(path.stem) for path in run.trajectories.glob("*.parquet") if path.stem.isdigit())


def _last_iteration(run: RunFolder) -> int:
    numbers = _iterations(run)
    if not numbers:
        raise RunError(f"Run {run.name!r} holds no trajectories yet; look again later, or at --evaluation start.")
    return numbers[-1]


def _view_iteration(console: Console, run: RunFolder, arguments: argparse.Namespace) -> int:
    path = trajectory_file(run.trajectories, arguments.iteration)
    if not path.is_file():
        numbers = _iterations(run)
        found = f"{numbers[0]} to {numbers[-1]}" if numbers else "none"
        raise RunError(
            f"Run {run.name!r} holds no trajectories of iteration {arguments.iteration}; iterations with some: {found}."
        )
    items = [
        (group.index, place, trajectory, group.advantages[place])
        for group in read_trajectories(path)
        for place, trajectory in enumerate(group.group.trajectories)
        if arguments.group is None or group.index == arguments.group
    ]
    chosen = _choose(items, arguments, lambda item: item[2].composite_return, lambda item: item[1])
    index, place, trajectory, advantage = chosen
    console.print(f"{run.name}, iteration {arguments.iteration}, group {index}, episode {place}", markup=False)
    print_trajectory(console, trajectory, advantage=advantage, decode=_decoder(run, trajectory), full=arguments.full)
    return 0


def _view_evaluation(console: Console, run: RunFolder, arguments: argparse.Namespace) -> int:
    folder = run.evaluation / arguments.evaluation
    panels = [path.stem for path in sorted(folder.glob("*.jsonl"))]
    if not panels:
        tags = [path.name for path in sorted(run.evaluation.glob("*")) if any(path.glob("*.jsonl"))]
        raise UnknownNameError("evaluation with episodes", arguments.evaluation, tags)
    configured = stored_recipe(run)["evaluation"].get("panels") or panels
    panel = arguments.panel or (configured[0] if configured[0] in panels else panels[0])
    if panel not in panels:
        raise UnknownNameError("panel", panel, panels)
    if arguments.group is not None:
        raise ConfigError("--group has no meaning in an evaluation, which has no groups; choose with --episode.")
    _, episodes = read_episodes(folder / f"{panel}.jsonl")
    place, trajectory = _choose(
        list(episodes.items()), arguments, lambda item: item[1].environment_return, lambda item: item[0]
    )
    console.print(f"{run.name}, evaluation {arguments.evaluation}, {panel}, episode {place}", markup=False)
    print_trajectory(console, trajectory, decode=_decoder(run, trajectory), full=arguments.full)
    return 0


def _choose(
    items: list[Any], arguments: argparse.Namespace, value: Callable[[Any], float], number: Callable[[Any], int]
) -> Any:
    if arguments.episode is not None:
        items = [item for item in items if number(item) == arguments.episode]
    if not items:
        if arguments.group is None and arguments.episode is None:
            raise RunError("There is no episode here; another iteration or evaluation may have some.")
        raise RunError(
            f"There is no episode with group={arguments.group!r} and episode={arguments.episode!r}; both count from 0."
        )
    if arguments.best:
        return max(items, key=value)
    return min(items, key=value) if arguments.worst else items[0]


def _decoder(run: RunFolder, trajectory: Trajectory) -> Callable[[Sequence[int]], str] | None:
    """Return what makes text of ids, if the run's tokenizer is on this machine."""
    if not any(step.completion_ids for step in trajectory.steps):
        return None
    from stratagem.models.catalog import load_tokenizer

    own = run.path / "model"
    tokenizer = load_tokenizer(str(own) if own.is_dir() else stored_recipe(run)["model"]["name"])
    if tokenizer is None:
        return None
    return lambda ids: str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


# ---- games and models ----------------------------------------------------------------------------------------------


def games(arguments: argparse.Namespace) -> int:
    """List the games or show one."""
    console = make_console()
    if arguments.game is None:
        if arguments.reference or arguments.params:
            raise ConfigError("--reference and --param need a game; name one of `stratagem games`.")
        rows = []
        heavy: dict[str, tuple[str, str]] = {}
        """Games whose start takes seconds: asked once, not for each variant."""
        for name in (*GAMES, *VARIANTS):
            base, preset = VARIANTS.get(name, ("", {}))
            game = make(name)
            settings = ", ".join(f"{key}={value}" for key, value in preset.items())
            try:
                if base in heavy:
                    planner, optimum = heavy[base]
                else:
                    game.reset(seed=0)
                    planner = "yes" if game.planner_action(0) is not None else "no"
                    optimum = "yes" if game.optimal_return() is not None else "no"
            except ConfigError:  # its files or programs are not here; `stratagem games NAME` says which
                planner = optimum = "needs data"
            if game.max_concurrent is not None:
                heavy[base or name] = planner, optimum
            what = f"{base} with {settings}" if base else "game"
            rows.append((name, what, str(game.num_players), str(game.max_steps), planner, optimum))
            game.close()
        show_table(console, Table(("Name", "What", "Players", "Steps", "Planner", "Optimum"), tuple(rows)))
        console.print("One of them: stratagem games NAME", markup=False)
        return 0
    return _show_game(console, arguments)


def _show_game(console: Console, arguments: argparse.Namespace) -> int:
    name, params = arguments.game, parse_params(arguments.params)
    game = make(name, **params)
    about = (game_class(name).__doc__ or "no description").strip().partition("\n")[0]
    console.print(f"{name}: {about}", markup=False)
    console.print("parameters:")
    for key, value in (parameters(name) | params).items():
        console.print(f"  {key} = {value!r}", markup=False)
    console.print("what player 0 sees at the start (seed 0):")
    for line in game.reset(seed=0)[0].splitlines():
        console.print(f"  {line}", markup=False, style="dim", soft_wrap=True)
    console.print(f"actions: {', '.join(game.legal_actions(0))}", markup=False)
    game.close()
    if arguments.reference:
        _print_reference(console, name, params)
    return 0


def _print_reference(console: Console, name: str, params: dict[str, Any]) -> None:
    from stratagem.agents.base import POLICIES, make_policy
    from stratagem.evaluation.play import evaluate, seat_opponents

    panel = fixed_panel(name, params)
    game = panel.make_game()
    game.reset(seed=0)
    has_planner = game.planner_action(0) is not None
    opponents = seat_opponents(game)
    game.close()
    optima = panel_optima(panel)
    results = {}
    started = time.perf_counter()
    for policy in POLICIES:
        if policy != "planner" or has_planner:
            players = [make_policy(policy), *opponents]
            results[policy] = [evaluate(panel, players, address=(0, "panel", panel.name), optima=optima)[0]]
    show_results(console, results)
    console.print(f"panel {panel.hash}, {time.perf_counter() - started:.1f} s", markup=False)


def models(arguments: argparse.Namespace) -> int:
    """List the models that need no hub."""
    from stratagem.models.catalog import EMBEDDED, TINY, cache_folder

    console = make_console()
    kept = cache_folder() / "models"
    rows = [(name, entry.parameters, entry.license) for name, entry in EMBEDDED.items()]
    rows.append((TINY, "30k, random", "made on the spot"))
    cells = []
    for name, size, license_name in rows:
        folder = next((path for path in sorted(kept.glob(f"{name}-*")) if (path / "config.json").is_file()), None)
        cells.append(
            (name, size, license_name, str(folder) if folder is not None else "not yet; fetched when first used")
        )
    show_table(console, Table(("Name", "Parameters", "Licence", "Kept in"), tuple(cells)))
    console.print(
        "A folder with safetensors weights, a run's model/ folder or a hub id (owner/model) is taken as well.",
        markup=False,
    )
    return 0
