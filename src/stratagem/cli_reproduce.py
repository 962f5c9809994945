"""The verb that runs the experiments of a paper: reproduce."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from stratagem.cli_papers import Paper, find_paper
from stratagem.config import dump_toml
from stratagem.errors import ConfigError
from stratagem.files import atomic_write_text
from stratagem.reproduce.arm import Arm
from stratagem.reproduce.collect import FINISHED, OTHER, STOPPED, Run, collect_baselines, collect_run, measured_rate
from stratagem.reproduce.cost import Cost, cost_table, plan_costs
from stratagem.reproduce.launch import Job, default_slots, run_jobs
from stratagem.reproduce.pages import Findings
from stratagem.runs.experiment import check_recipe
from stratagem.runs.plan import ADAPTER_SHARE, make_plan, parameter_count

__all__ = ["reproduce"]

_INTERRUPTED = 130
_STOPPED = (_INTERRUPTED, -15, -2)
"""Exit codes of a run that was asked to stop; before Python handles signals the system's own."""


def reproduce(arguments: argparse.Namespace) -> int:
    """Plan, run and collect the experiments of a paper."""
    paper = find_paper(arguments)
    parts = paper.parts(arguments)
    scale = paper.scales[arguments.scale]
    seeds = scale.num_seeds if arguments.seeds is None else arguments.seeds
    for name, value in (("--seeds", seeds), ("--jobs", arguments.jobs)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} {value} runs nothing; set it to 1 or more.")
    option = paper.options[-1]
    rate = getattr(arguments, option)
    if rate is not None and not rate > 0:
        raise ConfigError(f"--{option.replace('_', '-')} {rate} never ends; give a measured rate above 0.")
    arms = paper.make_arms(arguments, parts)
    for arm in arms:
        check_recipe(arm.recipe)
    out = Path(arguments.out or f"reproduce/{arguments.paper}-{arguments.scale}")
    runs = _collect(arms, seeds, out)
    if arguments.dry_run:
        _print_costs(arguments, paper, arms, runs, seeds, out)
        return 0
    left = [run for run in runs if run.state not in (FINISHED, OTHER)]
    if paper.prepare is not None:
        paper.prepare(arguments, parts, arms, out)
    code = 0 if arguments.collect else _run(arguments, paper, arms, left, seeds, out)
    page, runs = _report(arguments, paper, arms, seeds, out)
    finished = sum(run.state == FINISHED for run in runs)
    print(f"{finished} of {len(runs)} runs are finished. The page: {page}")
    return code


def _collect(arms: Sequence[Arm], seeds: int, out: Path) -> list[Run]:
    return [collect_run(arm, seed, out / "runs") for arm in arms for seed in range(seeds)]


def _print_costs(
    arguments: argparse.Namespace, paper: Paper, arms: Sequence[Arm], runs: Sequence[Run], seeds: int, out: Path
) -> None:
    scale = paper.scales[arguments.scale]
    planned = {arm.name: make_plan(arm.recipe).work for arm in arms}
    measured = measured_rate(runs, {name: amount for name, (amount, _) in planned.items()})
    rate, source = scale.rate, scale.rate_source
    if measured is not None:
        rate, source = measured, "the finished runs of this folder"
    option = paper.options[-1]
    if getattr(arguments, option) is not None:
        rate, source = getattr(arguments, option), f"--{option.replace('_', '-')}"
    left = [sum(run.arm is arm and run.state != FINISHED for run in runs) for arm in arms]
    costs = plan_costs(arms, left, seeds, rate)
    slots = default_slots(sum(left), cuda=_needs_cuda(arms), count=arguments.jobs)
    print(f"Would run {sum(left)} of {len(runs)} runs into {out}:\n")
    print(cost_table(costs).markdown())
    unit = planned[arms[0].name][1]
    devices = f" on {', '.join(slots.devices)}" if slots.devices else ""
    print(
        f"Hours are those of one run after the other at {rate:,.0f} planned {unit} a second ({source}); {slots.count} "
        f"at once here, {slots.threads} threads each{devices}."
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
        cost.runs
        * (size or 0.0)
        * (2 if model.dtype == "bfloat16" else 4)
        * (1.0 if model.lora is None else ADAPTER_SHARE)
        for cost, size, model in zip(costs, sizes, [cost.arm.recipe.model for cost in costs], strict=True)
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


def _run(
    arguments: argparse.Namespace, paper: Paper, arms: Sequence[Arm], left: Sequence[Run], seeds: int, out: Path
) -> int:
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
            _report(arguments, paper, arms, seeds, out)

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
    arguments: argparse.Namespace, paper: Paper, arms: Sequence[Arm], seeds: int, out: Path
) -> tuple[Path, list[Run]]:
    runs = _collect(arms, seeds, out)
    baselines = collect_baselines(out / "baselines", paper.panels)
    findings = Findings(arguments.scale, arms, runs, baselines, _command(arguments), paper.parts(arguments))
    return paper.write_report(findings, out), runs


def _command(arguments: argparse.Namespace) -> str:
    words = ["stratagem", "reproduce", arguments.paper]
    for name in ("table", "figure", "tasks", "seeds"):
        if getattr(arguments, name) is not None:
            words += [f"--{name}", str(getattr(arguments, name))]
    words += [f"--{name}" for name in ("ablations", "consistency") if getattr(arguments, name)]
    words += ["--scale", arguments.scale]
    for item in arguments.overrides:
        words += ["--set", item]
    return shlex.join(words)
