"""The verb that runs the experiments of a paper: reproduce."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from stratagem.agents.base import POLICIES, make_policy
from stratagem.config import dump_toml
from stratagem.errors import ConfigError, UnknownNameError
from stratagem.evaluation.panels import fixed_panel
from stratagem.evaluation.play import evaluate, seat_opponents
from stratagem.files import atomic_write_text
from stratagem.reproduce.arms import FROZEN_LAKE, PARTS, SCALES, SNAKE, Arm, make_arms
from stratagem.reproduce.collect import FINISHED, OTHER, STOPPED, Run, collect_baselines, collect_run, measured_rate
from stratagem.reproduce.cost import Cost, cost_table, plan_costs
from stratagem.reproduce.launch import Job, default_slots, run_jobs
from stratagem.reproduce.published import PANELS
from stratagem.reproduce.report import Findings, write_report
from stratagem.runs.experiment import check_recipe, panel_params
from stratagem.runs.plan import make_plan, parameter_count

__all__ = ["PAPERS", "reproduce"]

PAPERS = ("ms-grpo",)

_INTERRUPTED = 130
_STOPPED = (_INTERRUPTED, -15, -2)
"""Exit codes of a run that was asked to stop; before Python handles signals the system's own."""


def reproduce(arguments: argparse.Namespace) -> int:
    """Plan, run and collect the experiments of a paper."""
    if arguments.paper not in PAPERS:
        raise UnknownNameError("paper", arguments.paper, PAPERS)
    parts = _parts(arguments)
    scale = SCALES[arguments.scale]
    seeds = scale.num_seeds if arguments.seeds is None else arguments.seeds
    for name, value in (("--seeds", seeds), ("--jobs", arguments.jobs)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} {value} runs nothing; set it to 1 or more.")
    if arguments.tokens_per_second is not None and not arguments.tokens_per_second > 0:
        raise ConfigError(
            f"--tokens-per-second {arguments.tokens_per_second} never ends; give a measured rate above 0."
        )
    arms = make_arms(arguments.scale, parts, arguments.overrides)
    for arm in arms:
        check_recipe(arm.recipe)
    out = Path(arguments.out or f"reproduce/ms-grpo-{arguments.scale}")
    runs = _collect(arms, seeds, out)
    if arguments.dry_run:
        _print_costs(arguments, arms, runs, seeds, out)
        return 0
    left = [run for run in runs if run.state not in (FINISHED, OTHER)]
    if arguments.dqn is not None:
        _take_dqn(Path(arguments.dqn), out)
    code = 0
    if not arguments.collect:
        if "figure 2" in parts:
            _play_baselines(arms, scale.baseline_episodes, out)
        code = _run(arguments, arms, left, seeds, out)
    page, runs = _report(arguments, parts, arms, seeds, out)
    finished = sum(run.state == FINISHED for run in runs)
    print(f"{finished} of {len(runs)} runs are finished. The page: {page}")
    return code


def _parts(arguments: argparse.Namespace) -> tuple[str, ...]:
    if arguments.table is not None:
        if arguments.table != 1:
            raise ConfigError(f"--table {arguments.table} is not in the paper; its only results table is --table 1.")
        return ("table 1",)
    if arguments.figure is not None:
        if arguments.figure not in (1, 2, 3):
            raise ConfigError(f"--figure {arguments.figure} is not in the paper; use --figure 1, 2 or 3.")
        return (f"figure {arguments.figure}",)
    return ("ablations",) if arguments.ablations else PARTS


def _collect(arms: Sequence[Arm], seeds: int, out: Path) -> list[Run]:
    return [collect_run(arm, seed, out / "runs") for arm in arms for seed in range(seeds)]


def _print_costs(
    arguments: argparse.Namespace, arms: Sequence[Arm], runs: Sequence[Run], seeds: int, out: Path
) -> None:
    scale = SCALES[arguments.scale]
    measured = measured_rate(runs, {arm.name: make_plan(arm.recipe).generated_tokens for arm in arms})
    rate, source = scale.tokens_per_second, scale.rate_source
    if measured is not None:
        rate, source = measured, "the finished runs of this folder"
    if arguments.tokens_per_second is not None:
        rate, source = arguments.tokens_per_second, "--tokens-per-second"
    left = [sum(run.arm is arm and run.state != FINISHED for run in runs) for arm in arms]
    costs = plan_costs(arms, left, seeds, rate)
    slots = default_slots(sum(left), cuda=_needs_cuda(arms), count=arguments.jobs)
    print(f"Would run {sum(left)} of {len(runs)} runs into {out}:\n")
    print(cost_table(costs).markdown())
    print(
        f"Hours are those of one run after the other at {rate:,.0f} planned tokens a second ({source}); {slots.count} "
        f"at once here, {slots.threads} threads each{' on ' + ', '.join(slots.devices) if slots.devices else ''}."
    )
    print(f"{_disk(arguments, costs, slots.count)}; {_free(out):.1f} GiB are free.")
    for run in runs:
        if run.state == OTHER:
            print(f"warning: run {run.name!r} was made with another recipe ({run.detail}) and is left alone")


def _disk(arguments: argparse.Namespace, costs: Sequence[Cost], at_once: int) -> str:
    working = [cost.plan.disk_gib for cost in costs if cost.runs]
    sizes = [parameter_count(cost.arm.recipe.model.name) for cost in costs]
    if None in working or None in sizes:
        return "Disk: unknown, since the size of a model is"
    most = max((size or 0.0 for size in working), default=0.0)
    if arguments.keep_checkpoints:
        return f"Disk: about {sum((c.plan.disk_gib or 0.0) * c.runs for c in costs):.1f} GiB for checkpoints and models"
    models = sum(
        cost.runs * (size or 0.0) * (2 if cost.arm.recipe.model.dtype == "bfloat16" else 4)
        for cost, size in zip(costs, sizes, strict=True)
    )
    return (
        f"Disk: about {models / 2**30:.1f} GiB for finished models, and up to {most * at_once:.1f} GiB for the "
        "checkpoints of runs under way; trajectories besides"
    )


def _slim(run: Path) -> None:
    """Delete the checkpoints of a finished run, whose model is kept."""
    for path in ((run / "checkpoints"), (run / "reference")):
        shutil.rmtree(path, ignore_errors=True)


def _free(out: Path) -> float:
    path = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    return shutil.disk_usage(path).free / 2**30


def _needs_cuda(arms: Sequence[Arm]) -> bool:
    return any(arm.recipe.model.device.startswith("cuda") for arm in arms)


def _run(arguments: argparse.Namespace, arms: Sequence[Arm], left: Sequence[Run], seeds: int, out: Path) -> int:
    if not left:
        return 0
    if _needs_cuda(arms):
        from stratagem.models.local import check_device

        check_device("cuda")
    recipes = out / "recipes"
    recipes.mkdir(parents=True, exist_ok=True)
    for arm in arms:
        atomic_write_text(recipes / f"{arm.name}.toml", dump_toml(arm.recipe))
    # Seed by seed, so that after some of the time there is something of everything.
    jobs = [
        Job(run.name, recipes / f"{run.arm.name}.toml", run.seed, run.state == STOPPED)
        for run in sorted(left, key=lambda run: run.seed)
    ]
    slots = default_slots(len(jobs), cuda=_needs_cuda(arms), count=arguments.jobs)
    print(f"{len(jobs)} runs, {slots.count} at once, {slots.threads} threads each", flush=True)
    done = 0

    def started(job: Job, log: Path) -> None:
        print(f"  {job.name}: {'continues' if job.resume else 'starts'}, log {log}", flush=True)

    def finished(job: Job, code: int) -> None:
        nonlocal done
        done += code == 0
        words = "finished" if code == 0 else "stopped" if code in _STOPPED else f"failed with code {code}"
        print(f"  {job.name}: {words} ({done} of {len(jobs)} finished)", flush=True)
        if code == 0:
            if not arguments.keep_checkpoints:
                _slim(out / "runs" / job.name)
            _report(arguments, _parts(arguments), arms, seeds, out)

    def interrupted() -> None:
        print(
            "\nStopping after this iteration of each run, with checkpoints; the same command goes on from there. Press "
            "Ctrl-C again to stop at once.",
            file=sys.stderr,
        )

    codes = run_jobs(
        jobs, slots, runs=out / "runs", logs=out / "logs", on_start=started, on_finish=finished,
        on_interrupt=interrupted,
    )  # fmt: skip
    for name, code in codes.items():
        if code not in (0, *_STOPPED):
            lines = (out / "logs" / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
            print(f"{name}: {lines[-1] if lines else 'no output'}", file=sys.stderr)
    if all(code == 0 for code in codes.values()) and len(codes) == len(jobs):
        return 0
    return _INTERRUPTED if any(code in _STOPPED for code in codes.values()) else 1


def _report(
    arguments: argparse.Namespace, parts: Sequence[str], arms: Sequence[Arm], seeds: int, out: Path
) -> tuple[Path, list[Run]]:
    runs = _collect(arms, seeds, out)
    baselines = collect_baselines(out / "baselines", PANELS)
    findings = Findings(arguments.scale, arms, runs, baselines, _command(arguments), parts)
    return write_report(findings, out), runs


def _command(arguments: argparse.Namespace) -> str:
    words = ["stratagem", "reproduce", arguments.paper]
    for name in ("table", "figure", "seeds"):
        if getattr(arguments, name) is not None:
            words += [f"--{name}", str(getattr(arguments, name))]
    if arguments.ablations:
        words.append("--ablations")
    words += ["--scale", arguments.scale]
    for item in arguments.overrides:
        words += ["--set", item]
    return shlex.join(words)


def _play_baselines(arms: Sequence[Arm], episodes: int, out: Path) -> None:
    """Play each panel with the random policy and the planner, as the trained agents' games are set."""
    bases = [arm for arm in arms if arm.name in (SNAKE, FROZEN_LAKE)]
    for panel_name in PANELS:
        arm = next(arm for arm in bases if panel_name.lower().startswith(arm.name.replace("_", "")))
        panel = fixed_panel(panel_name, panel_params(arm.recipe, panel_name), episodes)
        for name in POLICIES:
            path = out / "baselines" / name / f"{panel_name}.json"
            if path.exists():
                continue
            game = panel.make_game()
            opponents = seat_opponents(game)
            game.close()
            print(f"  {name} on {panel_name}: {episodes} episodes", flush=True)
            result, _ = evaluate(panel, [make_policy(name), *opponents], address=(0, "panel", panel.name))
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_text(path, result.to_json())


def _take_dqn(source: Path, out: Path) -> None:
    """Copy the results of ``stratagem baseline dqn`` beside the other players."""
    found = sorted((source / "evaluation").glob("*.json"))
    if not found:
        raise ConfigError(
            f"--dqn {str(source)!r} holds no evaluation; name a folder that `stratagem baseline dqn --out` has written."
        )
    target = out / "baselines" / "dqn"
    target.mkdir(parents=True, exist_ok=True)
    for path in found:
        atomic_write_text(target / path.name, path.read_text(encoding="utf-8"))
