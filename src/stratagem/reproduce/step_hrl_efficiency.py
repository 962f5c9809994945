"""STEP-HRL's figure 3 and table 3: tokens and seconds of a step against its number.

``python -m stratagem.reproduce.step_hrl_efficiency --out efficiency`` writes the figures (PNG and SVG), ``steps.csv``
and ``efficiency.md``; with ``--record results`` also the records that documents quote. What is counted is said in
:mod:`stratagem.reproduce.step_costs`.
"""

from __future__ import annotations

import argparse
import csv
import io
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stratagem.config import apply_overrides
from stratagem.data.annotations import AnnotatedEpisode
from stratagem.data.expert import expert_episodes
from stratagem.errors import ConfigError, StratagemError
from stratagem.evaluation.figures import Curve, learning_curve
from stratagem.evaluation.records import Record
from stratagem.evaluation.tables import Table
from stratagem.files import atomic_write_text
from stratagem.games import make
from stratagem.reproduce.step_costs import AGENTS, AgentKind, StepCost, count_tokens, episode_calls, measure_seconds

__all__ = ["Measured", "main", "make_records", "steps_table", "total_table", "write_files"]

_SHOWN = (1, 5, 10, 20, 30, 40, 50)
"""Steps that tables show."""

_TOKENS: dict[str, tuple[str, Callable[[StepCost], int]]] = {
    "prompt": ("Tokens in the prompts of a step", lambda cost: cost.prompt),
    "new": ("Tokens to compute in a step where equal beginnings are kept", lambda cost: cost.new),
}
"""What is drawn -> its words, and how it is read."""


@dataclass(frozen=True)
class Measured:
    """Everything that was measured."""

    costs: Mapping[AgentKind, Sequence[Sequence[StepCost]]]
    """Agent -> episode -> step."""
    seconds: Mapping[tuple[AgentKind, bool], Sequence[Sequence[tuple[float, int]]]]
    """(agent, whether beginnings are kept) -> episode -> step -> seconds, generated tokens; empty if not asked for."""


def _column(episodes: Sequence[Sequence[Any]], step: int, read: Callable[[Any], float]) -> list[float]:
    """Return a number of every episode that has the step, which counts from 1."""
    return [read(episode[step - 1]) for episode in episodes if len(episode) >= step]


def steps_table(measured: Measured, read: Callable[[StepCost], int]) -> Table:
    """Return the mean over the episodes that get so far, for some steps."""
    lengths = [len(episode) for episode in measured.costs["flat"]]
    rows = []
    for step in _SHOWN:
        if max(lengths) < step:
            continue
        means = [float(np.mean(_column(episodes, step, read))) for episodes in measured.costs.values()]
        rows.append((str(step), str(sum(n >= step for n in lengths)), *(f"{number:,.0f}" for number in means)))
    return Table(("Step", "Episodes", *(AGENTS[kind] for kind in measured.costs)), tuple(rows))


def total_table(measured: Measured) -> Table:
    """Return what whole episodes cost: means over all steps, and the spread that memory must allow for."""
    rows = []
    for kind, episodes in measured.costs.items():
        steps = [cost for episode in episodes for cost in episode]
        prompts = np.array([cost.prompt for cost in steps])
        rows.append(
            (
                AGENTS[kind],
                f"{prompts.mean():,.0f}",
                f"{prompts.std():,.0f}",
                f"{prompts.max():,}",
                f"{np.mean([cost.generated for cost in steps]):,.1f}",
                f"{np.mean([cost.new for cost in steps]):,.0f}",
                f"{np.mean([cost.calls for cost in steps]):.2f}",
            )
        )
    return Table(
        ("Agent", "Prompts, mean", "Std over steps", "Largest", "Generated, mean", "New, mean", "Calls, mean"),
        tuple(rows),
    )


def seconds_table(measured: Measured, *, keep: bool) -> Table:
    """Return mean and standard deviation of the seconds of some steps."""
    kinds = [kind for kind, kept in measured.seconds if kept is keep]
    lengths = [len(episode) for episode in measured.seconds[kinds[0], keep]]
    rows = []
    for step in _SHOWN:
        if max(lengths) < step:
            continue
        cells = []
        for kind in kinds:
            numbers = _column(measured.seconds[kind, keep], step, lambda pair: float(pair[0]))
            cells.append(f"{np.mean(numbers):.3f} ({np.std(numbers):.3f})")
        rows.append((str(step), str(sum(n >= step for n in lengths)), *cells))
    return Table(("Step", "Episodes", *(AGENTS[kind] for kind in kinds)), tuple(rows))


def _curves(episodes_of: Mapping[AgentKind, Sequence[Sequence[Any]]], read: Callable[[Any], float]) -> list[Curve]:
    curves = []
    for kind, episodes in episodes_of.items():
        steps = range(1, max(map(len, episodes)) + 1)
        columns = [_column(episodes, step, read) for step in steps]
        low, high = ([float(np.percentile(column, q)) for column in columns] for q in (10, 90))
        curves.append(Curve(AGENTS[kind], list(steps), [float(np.mean(column)) for column in columns], low, high))
    return curves


def _csv(measured: Measured) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            *("agent", "episode", "step", "calls", "prompt_tokens", "generated_tokens", "new_tokens"),
            *("seconds_fresh", "sampled_fresh", "seconds_kept", "sampled_kept"),
        ]
    )
    for kind, episodes in measured.costs.items():
        for number, episode in enumerate(episodes):
            for place, cost in enumerate(episode):
                timed: list[Any] = []
                for keep in (False, True):
                    timed_episodes = measured.seconds.get((kind, keep), ())
                    timed += timed_episodes[number][place] if number < len(timed_episodes) else ("", "")
                writer.writerow([kind, number, place + 1, cost.calls, cost.prompt, cost.generated, cost.new, *timed])
    return text.getvalue()


def write_files(measured: Measured, out: Path, *, what: str, command: str) -> Path:
    """Write figures, numbers and the page, and return the page.

    Args:
        measured: what there is.
        out: folder; made if missing.
        what: says which episodes, model and game these are.
        command: that measured it.
    """
    out.mkdir(parents=True, exist_ok=True)
    atomic_write_text(out / "steps.csv", _csv(measured))
    parts = [f"{what}\n\n```text\n{command}\n```\n", "### Whole episodes\n", total_table(measured).markdown()]
    for name, (words, read) in _TOKENS.items():
        for ending in ("png", "svg"):
            learning_curve(
                out / f"tokens_{name}.{ending}",
                _curves(measured.costs, read),
                xlabel="Step",
                ylabel="Tokens",
                title=words,
            )
        parts += [f"### {words}\n", f"![{words}](tokens_{name}.png)\n", steps_table(measured, read).markdown()]
    for keep in (False, True):
        of_kind = {kind: episodes for (kind, kept), episodes in measured.seconds.items() if kept is keep}
        if not of_kind:
            continue
        words = f"Seconds of a step, {'equal beginnings kept' if keep else 'every prompt computed anew'}"
        name = f"seconds_{'kept' if keep else 'fresh'}"
        for ending in ("png", "svg"):
            curves = _curves(of_kind, lambda pair: float(pair[0]))
            learning_curve(out / f"{name}.{ending}", curves, xlabel="Step", ylabel="Seconds", title=words)
        parts += [f"### {words}\n", f"![{words}]({name}.png)\n", seconds_table(measured, keep=keep).markdown()]
    page = out / "efficiency.md"
    atomic_write_text(page, "\n".join(parts))
    return page


def make_records(measured: Measured, *, command: str, note: str, provenance: Mapping[str, Any]) -> list[Record]:
    """Return the records that documents quote: mean tokens in the prompts of a step, for each agent.

    Args:
        measured: what there is.
        command: that measured it.
        note: which episodes these are.
        provenance: from :func:`stratagem.runs.provenance.collect_provenance`.

    Raises:
        ConfigError: the code is in no checkout, so that there is no commit to name.
    """
    git = provenance["git"]
    if git is None:
        raise ConfigError("--record needs the commit of the code, and this copy is in no git checkout; run it in one.")
    hardware = provenance["hardware"]
    machine = f"{hardware['cpu']}, {hardware['usable_cores']} cores"
    records = []
    for kind, episodes in measured.costs.items():
        prompts = [cost.prompt for episode in episodes for cost in episode]
        records.append(
            Record(
                name=f"step_hrl.tokens_per_step.{kind}",
                command=command,
                commit=f"{git['commit']}{'-dirty' if git['dirty'] else ''}",
                machine=machine,
                date=datetime.now(UTC).date().isoformat(),
                unit="tokens",
                value=float(np.mean(prompts)),
                note=f"{AGENTS[kind]}: mean tokens in the prompts of a step, {note}",
            )
        )
    return records


# ---- the command -----------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what a step of each agent costs; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m stratagem.reproduce.step_hrl_efficiency", description=main.__doc__)
    parser.add_argument("--out", default="efficiency", metavar="DIR", help="folder of the results (efficiency)")
    parser.add_argument("--model", default="smollm2-135m-instruct", metavar="M", help="whose tokens are counted")
    parser.add_argument(
        "--game", default="ALFWorld-Generated", metavar="GAME", help="a game whose expert is annotated by rule"
    )
    parser.add_argument(
        "--param", metavar="KEY=VALUE", action="append", default=[], dest="params", help="change a setting of the game"
    )
    parser.add_argument("--starts", type=int, default=1000, metavar="N", help="expert episodes to choose from (1000)")
    parser.add_argument("--episodes", type=int, default=20, metavar="N", help="the longest of these are measured (20)")
    parser.add_argument("--latency", type=int, default=0, metavar="N", help="measure seconds on N of them (0)")
    parser.add_argument("--record", metavar="FOLDER", help="also write records into this folder")
    arguments = parser.parse_args(argv)
    words = list(sys.argv[1:] if argv is None else argv)
    command = shlex.join(["python", "-m", "stratagem.reproduce.step_hrl_efficiency", *words])
    try:
        return _run(arguments, command)
    except StratagemError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace, command: str) -> int:
    from stratagem.models.catalog import ModelConfig
    from stratagem.models.local import LocalModel

    if not 1 <= arguments.episodes <= arguments.starts:
        raise ConfigError(
            f"--episodes {arguments.episodes} is not in 1..{arguments.starts}, the expert episodes that --starts "
            "gives; choose a number that is."
        )
    if not 0 <= arguments.latency <= arguments.episodes:
        raise ConfigError(f"--latency {arguments.latency} is not in 0..{arguments.episodes}; choose a number that is.")
    params = apply_overrides({}, arguments.params)
    if make(arguments.game, **params).name == "alfworld":
        params = {"view": "raw"} | params
    make_game = partial(make, arguments.game, **params)
    episodes = longest(expert_episodes(make_game, arguments.starts, seed=0), arguments.episodes)
    model = LocalModel.load(ModelConfig(name=arguments.model))
    game = make_game()
    try:
        calls = {kind: [episode_calls(kind, model, game, episode) for episode in episodes] for kind in AGENTS}
    finally:
        game.close()
    seconds = {
        (kind, keep): [measure_seconds(model, steps, keep=keep) for steps in calls[kind][: arguments.latency]]
        for keep in (False, True)
        for kind in AGENTS
        if arguments.latency
    }
    costs = {kind: [count_tokens(steps) for steps in of_kind] for kind, of_kind in calls.items()}
    measured = Measured(costs, seconds)
    lengths = sorted(len(episode.steps) for episode in episodes)
    note = (
        f"the {len(episodes)} longest of {arguments.starts} expert episodes of {arguments.game} ({lengths[0]} to "
        f"{lengths[-1]} steps), tokens of {arguments.model}"
    )
    page = write_files(measured, Path(arguments.out), what=f"Measured on {note}.", command=command)
    print(total_table(measured).markdown(), end="")
    print(f"The page: {page}")
    if arguments.record is not None:
        from stratagem.runs.provenance import collect_provenance

        for record in make_records(measured, command=command, note=note, provenance=collect_provenance(0)):
            path = Path(arguments.record) / f"{record.name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_text(path, record.to_json())
            print(f"record: {path}")
    return 0


def longest(episodes: Sequence[AnnotatedEpisode], count: int) -> list[AnnotatedEpisode]:
    """Return the longest episodes, the longest first."""
    return sorted(episodes, key=lambda episode: len(episode.steps), reverse=True)[:count]


if __name__ == "__main__":
    sys.exit(main())
