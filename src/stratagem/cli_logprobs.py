"""The verb that asks saved weights about recorded answers: logprobs."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace

from stratagem.cli_players import find_run
from stratagem.cli_view import make_console, show_table
from stratagem.errors import ConfigError, RunError
from stratagem.evaluation.tables import Table
from stratagem.recipe import load_recipe
from stratagem.runs.display import Display
from stratagem.runs.folder import RunFolder

__all__ = ["logprobs", "parse_iterations"]

_INTERRUPTED = 130


def logprobs(arguments: argparse.Namespace) -> int:
    """Compute log-probabilities of recorded answers under two sets of weights, and show what changed."""
    if arguments.limit is not None and arguments.limit < 1:
        raise ConfigError(f"--limit {arguments.limit} leaves no episode; set it to 1 or more.")
    run = find_run(arguments.run, arguments.runs_dir)
    recipe = load_recipe(run.recipe_file, of_run=True)
    if arguments.device is not None:
        recipe = replace(recipe, model=replace(recipe.model, device=arguments.device))
    iterations = parse_iterations(arguments.iterations, run)
    from stratagem.models.local import check_device
    from stratagem.runs.logprobs import change_of, compute_logprobs, find_weights, sampling_temperature

    before, after = (find_weights(run, recipe, word) for word in (arguments.before, arguments.after))
    if before == after:
        raise ConfigError(
            f"--from {arguments.before} and --to {arguments.after} are the same weights; name two different ones."
        )
    check_device(recipe.model.device)
    console = make_console()
    total = 2 * len(iterations)
    done = 0
    with Display(console) as display:
        display.start(total, f"{run.name}: {_words(before)} and {_words(after)}", unit="files")
        display.status(f"asking {recipe.model.name}")
        try:
            for written in compute_logprobs(run, recipe, (before, after), iterations, limit=arguments.limit):
                done += 1
                display.advance(done)
                what = "was there" if written.was_there else f"{written.num_tokens:,} tokens"
                display.note(f"iteration {written.iteration} under {_words(written.weights)}: {what}")
        except KeyboardInterrupt:
            display.close()
            print(f"\nStopped with {done} of {total} files saved; the same command makes the others.", file=sys.stderr)
            return _INTERRUPTED
    rows = []
    for iteration in iterations:
        change = change_of(run, iteration, before, after)
        if change is not None:
            cells = (change.after - change.before, change.better, change.worse)
            rows.append(
                (str(iteration), f"{change.num_tokens:,}", f"{change.before:.3f}", f"{change.after:.3f}",
                 *("-" if cell is None else f"{cell:+.3f}" for cell in cells))
            )  # fmt: skip
    headers = ("Iteration", "Tokens", "From", "To", "Change", "Better", "Worse")
    temperature = sampling_temperature(recipe)
    show_table(console, Table(headers, tuple(rows)), f"\nMean log p of a recorded token, temperature {temperature:g}")
    print("Better, Worse: the change in episodes with an advantage above and below 0.")
    print(f"saved in {run.path / 'logprobs'}; the page colours answers by it: stratagem view {run.path}")
    return 0


def parse_iterations(text: str | None, run: RunFolder) -> list[int]:
    """Return the iterations that a user names, oldest first; the newest with trajectories for None.

    Args:
        text: numbers and ranges, as ``1,5,10-20``, or ``all``.
        run: where the trajectories are.

    Raises:
        ConfigError: the text is no such list.
        RunError: there are no trajectories of one of them.
    """
    known = sorted(int(path.stem) for path in run.trajectories.glob("*.parquet") if path.stem.isdigit())
    if not known:
        raise RunError(f"Run {run.name!r} holds no trajectories; run.save_trajectories may be off.")
    if text is None:
        return known[-1:]
    if text == "all":
        return known
    if re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text) is None:
        raise ConfigError(
            f"--iterations {text!r} is no list of iterations; write numbers and ranges, as 1,5,10-20, or all."
        )
    chosen: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found = {at for at in known if int(first) <= at <= int(last or first)}
        if not found:
            raise RunError(
                f"Run {run.name!r} holds no trajectories of iteration {part}; iterations with some: {known[0]} to "
                f"{known[-1]}."
            )
        chosen |= found
    return sorted(chosen)


def _words(weights: str) -> str:
    return f"iteration {int(weights)}" if weights.isdecimal() else "the untrained model"
