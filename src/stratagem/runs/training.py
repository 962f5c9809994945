"""One training run from a recipe to a report: evaluate, warm start, train, save, and go on where it was killed.

1. Evaluate the untrained model ("start"), unless a recipe with a warm start leaves that out; warm start if the recipe
   has one, and evaluate again ("warm_start").
2. Save the reference policy where the algorithm needs one, and a checkpoint of iteration 0: neither is made twice.
3. For each iteration: trajectories, evaluation when due, one line of metrics, a checkpoint when due - in this order, so
   that a checkpoint never counts an iteration whose metrics are missing.
4. Evaluate ("final"), save the model, draw the curve, write the summary.

Nothing here knows an algorithm: :data:`ALGORITHMS` has one entry for each.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from stratagem.agents.history import HistoryAgent
from stratagem.agents.language import LanguageAgent
from stratagem.agents.scoring import ScoringAgent
from stratagem.algorithms import eto, ms_grpo, poad, step_hrl
from stratagem.algorithms.average import WeightAverage
from stratagem.algorithms.bc import warm_start
from stratagem.data.trajectories import write_trajectories
from stratagem.errors import ModelError, RunError
from stratagem.evaluation.episode_log import write_episodes
from stratagem.evaluation.panels import EvaluationResult
from stratagem.evaluation.play import evaluate, seat_opponents
from stratagem.files import atomic_write_text, error_reason
from stratagem.models.catalog import TINY
from stratagem.models.local import LocalModel
from stratagem.recipe import Recipe, to_table
from stratagem.runs.advice import no_gain_advice, no_signal_advice
from stratagem.runs.checkpoint import Checkpoint, list_checkpoints, load_checkpoint, load_latest, save_checkpoint
from stratagem.runs.display import Display
from stratagem.runs.experiment import Experiment, build_agent, build_experiment, hold_template
from stratagem.runs.folder import RunFolder
from stratagem.runs.interrupts import StopRequest
from stratagem.runs.metrics import MetricsLog, read_metrics
from stratagem.runs.report import Evaluation, peak_memory, screen_metrics, write_report
from stratagem.runs.trackers import Trackers
from stratagem.runs.weights import load_parameters, save_model
from stratagem.types import Trajectory

__all__ = ["ALGORITHMS", "Algorithm", "Outcome", "train_run"]

_SOLVED = 0.95
"""Nobody expects a gain from this share of the optimum on."""

_PATIENCE = 10
"""So many iterations in a row without any signal are reported; in short runs a fifth of all, and never fewer than 3."""


@dataclass(frozen=True)
class Algorithm:
    """What the driver asks of an algorithm."""

    make_learner: Callable[[Any, Any], Any]
    """(model, settings) -> an object with ``iteration``, ``optimizer`` and, where it has some, ``heads``
    (:class:`stratagem.models.heads.Heads`), ``average`` (:class:`stratagem.algorithms.average.WeightAverage`) and
    ``on_update``, which is told how far an update is; it takes the weights as its reference."""
    train: Callable[..., Iterator[Any]]
    """Yields ``number``, ``groups``, ``advantages``, ``failed`` and ``metrics`` after each iteration."""
    check_agent: Callable[[Any], None]
    """Refuses an agent that cannot be trained."""


ALGORITHMS: dict[type, Algorithm] = {
    ms_grpo.MSGRPOConfig: Algorithm(ms_grpo.Learner, ms_grpo.train, ms_grpo.check_trainable),
    poad.POADConfig: Algorithm(poad.Learner, poad.train, poad.check_trainable),
    step_hrl.StepHRLConfig: Algorithm(step_hrl.Learner, step_hrl.train, step_hrl.check_trainable),
    eto.ETOConfig: Algorithm(eto.Learner, eto.train, eto.check_trainable),
}
"""Settings -> the algorithm; the names are those of :data:`stratagem.recipe.ALGORITHMS`."""


@dataclass
class Outcome:
    """How a run ended."""

    completed: bool
    """False: it was asked to stop, and can be resumed."""
    iteration: int
    """Iterations that are saved."""
    saved: bool
    """There is a checkpoint."""
    evaluations: dict[str, Evaluation]
    summary: dict[str, Any] = field(default_factory=dict)
    """What ``summary.json`` holds."""


def train_run(recipe: Recipe, folder: RunFolder, display: Display, *, stop: StopRequest | None = None) -> Outcome:
    """Train what a recipe says, from the newest checkpoint of the folder on.

    Args:
        recipe: the one that made the folder.
        folder: locked by this process.
        display: shows progress; the caller closes it.
        stop: looked at after each iteration, warm-start step and evaluation; None never stops early.

    Raises:
        StratagemError: anything that its user can mend.
    """
    driver = _Driver(recipe, build_experiment(recipe), folder, display, stop or StopRequest())
    try:
        return driver.run()
    except FloatingPointError as error:
        raise ModelError(str(error)) from error
    finally:
        if driver.trackers is not None:
            driver.trackers.close()


class _Driver:
    """The state of one call of :func:`train_run`."""

    def __init__(
        self, recipe: Recipe, experiment: Experiment, folder: RunFolder, display: Display, stop: StopRequest
    ) -> None:
        self.recipe = recipe
        self.experiment = experiment
        self.folder = folder
        self.display = display
        self.stop = stop
        self.algorithm = ALGORITHMS[type(recipe.algorithm)]
        self.total = recipe.algorithm.num_iterations
        self.evaluations: dict[str, Evaluation] = {}
        self.warnings: list[str] = []
        self.no_signal = 0
        self.patience = max(3, min(_PATIENCE, self.total // 5))
        self.seconds = {"play": 0.0, "update": 0.0, "evaluate": 0.0, "save": 0.0}
        self.elapsed_before = 0.0
        self.started = time.perf_counter()
        self.trackers: Trackers | None = None

    def run(self) -> Outcome:
        folder, recipe = self.folder, self.recipe
        self.algorithm.check_agent(build_agent(None, recipe))  # type: ignore[arg-type]
        hold_template(recipe, folder.path, keep=True)
        checkpoint = load_latest(folder.checkpoints)
        done = 0 if checkpoint is None else checkpoint.iteration
        self.display.start(self.total, folder.name, completed=done)
        self.display.status(f"loading {recipe.model.name}")
        self.model = LocalModel.load(recipe.model)
        self.agent = build_agent(self.model, recipe)
        self.trackers = Trackers(
            recipe.run.trackers,
            folder.path,
            folder.name,
            to_table(recipe),
            iteration=-1 if checkpoint is None else checkpoint.iteration,
        )
        if checkpoint is not None:
            self._restore(checkpoint)
        elif not self._begin():
            return Outcome(False, 0, bool(list_checkpoints(folder.checkpoints)), self.evaluations)
        if not self._loop():
            return Outcome(False, self.learner.iteration, True, self.evaluations)
        return self._finish()

    # ---- before the first iteration ------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Do all that comes before iteration 1 and save it; False if asked to stop."""
        folder, recipe = self.folder, self.recipe
        folder.rewind(-1)
        for path in filter(Path.is_dir, folder.evaluation.iterdir()):
            shutil.rmtree(path)
        if recipe.evaluation.untrained or recipe.warm_start is None:
            self._evaluate("start", 0)
        if self.stop.requested:
            return False
        row: dict[str, Any] = {}
        if recipe.warm_start is not None:
            if not self._warm_start(row):
                return False
            self._evaluate("warm_start", 0)
        if self._keeps_reference():
            reference = {"parameters": self.model.named_parameters()}
            save_checkpoint(folder.path / "reference", 0, reference, {}, keep=1)
        self.learner = self.algorithm.make_learner(self.model, recipe.algorithm)
        row |= self._panel_metrics(list(self.evaluations)[-1]) | self._take_seconds()
        self._log(0, row)
        self._save(0)
        return not self.stop.requested

    def _warm_start(self, row: dict[str, Any]) -> bool:
        config = self.recipe.warm_start
        assert config is not None
        path = self.folder.path / "warm_start.jsonl"
        path.unlink(missing_ok=True)
        log = MetricsLog(path)
        start = time.perf_counter()
        assert isinstance(self.agent, LanguageAgent | HistoryAgent)
        steps = warm_start(
            self.agent,
            self.experiment.make_game,
            config,
            seed=self.recipe.seed,
            opponents=self.experiment.opponents,  # type: ignore[arg-type]
            excluded_starts=self.experiment.excluded_starts,
        )
        self.display.status("warm start: making demonstrations")
        for metrics in steps:
            number = int(metrics.pop("step"))
            log.append(number, metrics)
            line = f"warm start {number}/{config.num_steps}: loss {metrics['loss']:.3f}"
            self.display.status(line)
            if number in (1, config.num_steps) or number % 10 == 0:
                self.display.note(line)
            if self.stop.requested:
                return False
        row["warm_start_loss"] = metrics["loss"]
        row["seconds_warm_start"] = time.perf_counter() - start
        return True

    def _heads(self) -> Any:
        """Return the learner's heads, or None where it has none."""
        return getattr(self.learner, "heads", None)

    def _average(self) -> WeightAverage | None:
        """Return the average that is evaluated in place of the trained weights, or None."""
        return getattr(getattr(self, "learner", None), "average", None)

    def _applied(self) -> AbstractContextManager[None]:
        average = self._average()
        return nullcontext() if average is None else average.applied()

    def _keeps_reference(self) -> bool:
        return getattr(self.recipe.algorithm, "kl_coef", 0.0) > 0

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Make model, optimizer and counters what they were when the checkpoint was saved."""
        if self._keeps_reference():
            # The learner takes the weights that it finds as its reference, so these come first.
            path = self.folder.path / "reference" / "000000"
            load_parameters(self.model, load_checkpoint(path).tensors["parameters"], path)
        self.learner = self.algorithm.make_learner(self.model, self.recipe.algorithm)
        load_parameters(self.model, checkpoint.tensors["parameters"], checkpoint.path)
        if self._heads() is not None:
            self._heads().load_state(checkpoint.tensors["heads"])
        if (average := self._average()) is not None:
            average.load_state(checkpoint.tensors["average"], checkpoint.iteration)
        state = checkpoint.state
        self.learner.optimizer.load_state_dict(state["optimizer"])
        self.learner.iteration = checkpoint.iteration
        self.no_signal = state["no_signal"]
        self.warnings = state["warnings"]
        self.elapsed_before = state["elapsed"]
        for tag, number, texts in state["evaluations"]:
            self.evaluations[tag] = Evaluation(number, tuple(EvaluationResult.from_json(text) for text in texts))
        self.folder.rewind(checkpoint.iteration)
        for path in filter(Path.is_dir, self.folder.evaluation.iterdir()):
            if path.name not in self.evaluations:
                shutil.rmtree(path)
        for row in read_metrics(self.folder.metrics_file):
            self.display.seed(row)
        self.display.note(f"continuing after iteration {checkpoint.iteration}")

    # ---- the iterations --------------------------------------------------------------------------------------------

    def _loop(self) -> bool:
        """Train up to the last iteration; False if asked to stop before."""
        recipe, folder = self.recipe, self.folder
        mark = last = time.perf_counter()
        played = 0

        def on_finish(number: int, trajectory: Trajectory) -> None:
            nonlocal last, played
            last = time.perf_counter()
            played += 1
            self.display.status(f"iteration {self.learner.iteration + 1}: {played} episodes played")

        def on_update(share: float) -> None:
            self.display.status(f"iteration {self.learner.iteration + 1}: update {share:.0%}")

        if hasattr(self.learner, "on_update"):
            self.learner.on_update = on_update
        iterations = self.algorithm.train(
            self.learner,
            self.agent,
            self.experiment.make_game,
            seed=recipe.seed,
            opponents=self.experiment.opponents,
            excluded_starts=self.experiment.excluded_starts,
            max_concurrent=self.experiment.max_concurrent,
            on_finish=on_finish,
        )
        for iteration in iterations:
            now = time.perf_counter()
            self.seconds["play"] += last - mark
            self.seconds["update"] += now - last
            number = iteration.number
            if recipe.run.save_trajectories and iteration.groups:
                advantages = [
                    [of_group.get(place) for place in range(len(group.trajectories))]
                    for group, of_group in zip(iteration.groups, iteration.advantages, strict=True)
                ]
                write_trajectories(folder.trajectories, number, iteration.groups, advantages)
            self.seconds["save"] += time.perf_counter() - now
            self._watch_signal(iteration)
            row = dict(iteration.metrics) | {"episodes_failed": len(iteration.failed)}
            every = recipe.evaluation.every
            tag = "final" if number == self.total else f"{number:06d}" if every and number % every == 0 else None
            if tag is not None:
                with self._applied():
                    self._evaluate(tag, number)
                row |= self._panel_metrics(tag)
            self._log(number, row | self._take_seconds() | peak_memory())
            if number % recipe.run.checkpoint_every == 0 or number == self.total or self.stop.requested:
                self._save(number)
            if self.stop.requested and number < self.total:
                return False
            mark = last = time.perf_counter()
            played = 0
        return True

    def _watch_signal(self, iteration: Any) -> None:
        """Say why nothing is learnt, once it has lasted."""
        if iteration.failed:
            reason = iteration.failed[0].info.get("error", "no reason given")
            self.display.note(f"{len(iteration.failed)} episodes failed in the game and are left out: {reason}")
        if not iteration.groups:
            return  # nothing was played: it learnt from what there was
        silent = iteration.metrics.get("groups_without_signal")
        has_signal = any(value != 0.0 for of_group in iteration.advantages for value in of_group.values())
        has_signal = has_signal if silent is None else silent < 1.0
        self.no_signal = 0 if has_signal else self.no_signal + 1
        if self.no_signal == self.patience:
            text = f"No group carried a signal for {self.patience} iterations up to {iteration.number}: "
            text += no_signal_advice(iteration.metrics, has_warm_start=self.recipe.warm_start is not None)
            self.warnings.append(text)
            self.display.note(text)

    def _watch_gain(self) -> None:
        """Say so where the first panel is no better than before training."""
        rows = [row for row in read_metrics(self.folder.metrics_file) if row["iteration"] > 0]
        before = self.evaluations.get("warm_start") or self.evaluations.get("start")
        if before is None or not rows or self.recipe.model.name == TINY:
            return  # nobody expects a random model to learn
        final = self.evaluations["final"].results[0]
        change = final.mean - before.results[0].mean
        solved = max(final.share_of_optimum or 0.0, final.success_rate or 0.0) >= _SOLVED
        if change <= 0 and not solved:
            self.warnings.append(no_gain_advice(rows[0], rows[-1], change))

    # ---- evaluation ------------------------------------------------------------------------------------------------

    def _evaluate(self, tag: str, number: int) -> None:
        """Play every panel with the weights in the model and keep the results under ``evaluation/TAG``."""
        start = time.perf_counter()
        agent, temperature = self.agent, self.recipe.evaluation.temperature
        if temperature is not None and isinstance(agent, LanguageAgent | HistoryAgent):
            agent = agent.with_temperature(temperature)
        elif temperature is not None and isinstance(agent, ScoringAgent):
            agent = dataclasses.replace(agent, temperature=temperature)
        results = []
        self.model.weights_changed()
        for panel, optima in zip(self.experiment.panels, self.experiment.optima, strict=True):
            played = 0

            def on_finish(place: int, trajectory: Trajectory, name: str = panel.name) -> None:
                nonlocal played
                played += 1
                self.display.status(
                    f"evaluating {name} ({tag}): {played}/{self.recipe.evaluation.num_episodes} episodes"
                )

            make_game = self.experiment.panel_game(panel)
            game = make_game()
            try:
                opponents = seat_opponents(game)
            finally:
                game.close()
            result, trajectories = evaluate(
                panel,
                [agent, *opponents],
                address=(self.recipe.seed, "panel", panel.name),
                optima=optima,
                make_game=make_game,
                max_concurrent=self.experiment.max_concurrent,
                on_finish=on_finish,
            )
            results.append(result)
            self._write_evaluation(tag, number, result, trajectories)
            full = result.stop_reasons.get("context", 0)
            if full:
                self.display.note(
                    f"{full} of {len(trajectories)} episodes of {panel.name} ended because the prompt filled the "
                    "model's context window"
                )
        self.evaluations[tag] = Evaluation(number, tuple(results))
        self.display.status("")
        self.display.note(
            f"{f'iteration {number}' if tag.isdigit() else tag}: " + "; ".join(_one_line(result) for result in results)
        )
        self.seconds["evaluate"] += time.perf_counter() - start

    def _write_evaluation(
        self, tag: str, number: int, result: EvaluationResult, trajectories: list[Trajectory]
    ) -> None:
        target = self.folder.evaluation / tag
        try:
            target.mkdir(exist_ok=True)
            atomic_write_text(target / f"{result.panel}.json", result.to_json())
            if not tag.isdigit():
                header = {"panel": result.panel, "panel_hash": result.panel_hash, "iteration": number}
                write_episodes(target / f"{result.panel}.jsonl", header, trajectories)
        except OSError as error:
            raise RunError(
                f"Evaluation {tag!r} could not be written to {str(target)!r} ({error_reason(error)}); free some space, "
                "then continue with --resume."
            ) from error

    def _panel_metrics(self, tag: str) -> dict[str, Any]:
        first = self.evaluations[tag].results[0]
        return {
            "panel_mean": first.mean,
            "panel_low": first.interval[0],
            "panel_high": first.interval[1],
            "panel_success_rate": first.success_rate,
            "panel_invalid_action_rate": first.invalid_action_rate,
        }

    # ---- what is kept ----------------------------------------------------------------------------------------------

    def _take_seconds(self) -> dict[str, float]:
        """Return the seconds of each phase since the last line of metrics; saving counts in the line after."""
        taken = {f"seconds_{phase}": value for phase, value in self.seconds.items()}
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        return taken

    def _elapsed(self) -> float:
        return self.elapsed_before + time.perf_counter() - self.started

    def _log(self, number: int, row: dict[str, Any]) -> None:
        MetricsLog(self.folder.metrics_file).append(number, row)
        assert self.trackers is not None
        self.trackers.log(number, row)
        self.display.update(number, screen_metrics(row))

    def _save(self, number: int) -> None:
        start = time.perf_counter()
        self.display.status(f"saving checkpoint {number:06d}")
        state = {
            "optimizer": self.learner.optimizer.state_dict(),
            "no_signal": self.no_signal,
            "warnings": self.warnings,
            "elapsed": self._elapsed(),
            "evaluations": [
                (tag, e.iteration, [r.to_json() for r in e.results]) for tag, e in self.evaluations.items()
            ],
        }
        tensors: dict[str, Mapping[str, Tensor]] = {"parameters": self.model.named_parameters()}
        if self._heads() is not None:
            tensors["heads"] = self._heads().state()
        if (average := self._average()) is not None:
            tensors["average"] = average.state()
        save_checkpoint(self.folder.checkpoints, number, tensors, state, keep=self.recipe.run.keep_checkpoints)
        self.display.status("")
        self.seconds["save"] += time.perf_counter() - start

    def _finish(self) -> Outcome:
        self.display.status("saving the model")
        with self._applied():
            save_model(self.model, self.folder.path / "model")
        self._watch_gain()
        summary = write_report(
            self.folder, self.recipe, self.evaluations, self.experiment.optima, self._elapsed(), self.warnings
        )
        self.display.status("")
        return Outcome(True, self.learner.iteration, True, self.evaluations, summary)


def _one_line(result: EvaluationResult) -> str:
    low, high = result.interval
    success = "" if result.success_rate is None else f", success {result.success_rate:.0%}"
    return (
        f"{result.panel} return {result.mean:.3f} [{low:.3f}, {high:.3f}]{success}, invalid "
        f"{result.invalid_action_rate:.1%}"
    )
