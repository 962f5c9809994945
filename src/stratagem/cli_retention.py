"""The verb that asks general questions before and after training: retention."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from stratagem.cli_players import find_run, free_folder
from stratagem.cli_view import make_console, show_table
from stratagem.errors import RunError, UnknownNameError
from stratagem.evaluation.retention import RetentionConfig, Scores, changes, measure, retention_table, version
from stratagem.files import atomic_write_json
from stratagem.models.catalog import EMBEDDED, TINY
from stratagem.recipe import load_recipe
from stratagem.runs.experiment import check_model_name
from stratagem.runs.folder import list_runs

__all__ = ["retention"]


def retention(arguments: argparse.Namespace) -> int:
    """Measure a run or a model on general questions, beside what it was trained from."""
    config = RetentionConfig(
        tasks=tuple(arguments.tasks.split(",")),
        shots=arguments.shots,
        limit=arguments.limit,
        include=arguments.include,
        batch_size=arguments.batch_size,
        device=arguments.device,
        dtype=arguments.dtype,
    )
    label, source, base = _find(arguments.who, arguments.runs_dir)
    against = base
    if arguments.against is not None:
        _, against, _ = _find(arguments.against, arguments.runs_dir)
    used = version()  # refuses a missing lm_eval before weights are read
    before: list[Scores] | None = None
    if against is not None:
        print(f"before: {against}", flush=True)
        before = measure(against, config)
    print(f"after:  {source}" if against is not None else source, flush=True)
    rows = changes(measure(source, config), before)
    out = Path(arguments.out) if arguments.out is not None else free_folder(label, "retention") / "retention.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_json(
        out,
        {
            "who": label,
            "model": source,
            "against": against,
            **dataclasses.asdict(config),
            "lm_eval": used,
            "scores": [dataclasses.asdict(row) for row in rows],
        },
    )
    show_table(make_console(), retention_table(rows), f"\n{label}, {config.shots} shots; standard errors in brackets")
    if against is not None:
        print("The error of a difference is that of the same questions, paired.")
    print(f"saved in {out}")
    return 0


def _find(who: str, runs_dir: str) -> tuple[str, str, str | None]:
    """Return a label, where the weights are, and of a run the model that it began with."""
    if (Path(who) / "recipe.toml").is_file() or (Path(runs_dir) / who / "recipe.toml").is_file():
        run = find_run(who, runs_dir)
        model = run.path / "model"
        if not model.is_dir():
            raise RunError(
                f"Run {run.name!r} is not finished, so it holds no model; write that of its newest checkpoint with "
                f"`stratagem export {run.name} --to DIR --merged` and name DIR, with --against for the model before."
            )
        return run.name, str(model), load_recipe(run.recipe_file, of_run=True).model.name
    try:
        check_model_name(who)
    except UnknownNameError:
        raise UnknownNameError("run or model", who, [*list_runs(runs_dir), *EMBEDDED, TINY]) from None
    return who, who, None
