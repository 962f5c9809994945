r"""What training costs elsewhere: general questions before and after, asked by EleutherAI's lm_eval.

lm_eval (the extra ``retention``) brings the questions, how they are asked and how an answer is judged; the weights come
from :mod:`stratagem.models.catalog`, so only safetensors are read and no code that comes with a model runs. Both models
get the same questions, so the difference is paired: with d_i = after_i - before_i of question i and n questions,

.. math:: \bar d = \frac{1}{n} \sum_i d_i, \qquad \mathrm{stderr} = \frac{\operatorname{std}(d)}{\sqrt{n}}

which is far narrower than two separate errors, since most questions are answered alike. A group such as ``mmlu`` counts
every question of its parts once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib.metadata
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import torch

from stratagem.errors import ConfigError, ModelError
from stratagem.evaluation.statistics import mean, sample_std
from stratagem.evaluation.tables import Table
from stratagem.models.catalog import load_pretrained
from stratagem.models.local import check_device

__all__ = ["DEFAULT_TASKS", "Change", "RetentionConfig", "Scores", "changes", "measure", "retention_table", "version"]

DEFAULT_TASKS = ("arc_challenge", "hellaswag", "piqa", "mmlu")
"""Those of Wen et al. 2024 (arXiv:2405.15821)."""

_NEEDS = "Retention needs lm_eval; run `pip install -e '.[retention]'` in a clone of Stratagem."
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class RetentionConfig:
    """What is asked, and how."""

    tasks: tuple[str, ...] = DEFAULT_TASKS
    """Names of lm_eval's tasks and groups."""
    shots: int = 0
    """Solved examples before each question; 0 as in the paper."""
    limit: int | None = None
    """Only the first so many questions of each task (of each part of a group); None asks all."""
    include: str | None = None
    """A folder with task files of one's own; None has lm_eval's only."""
    batch_size: int = 8
    """Answers scored at once."""
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        """Refuse what asks nothing."""
        if not self.tasks or not all(self.tasks):
            raise ConfigError(f"tasks={','.join(self.tasks)!r} names no task; write names with commas between them.")
        if self.shots < 0:
            raise ConfigError(f"shots={self.shots!r} is negative; use 0 for none.")
        for name in ("limit", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value!r} asks nothing; set it to 1 or more.")
        if self.include is not None and not Path(self.include).is_dir():
            raise ConfigError(f"include={self.include!r} is no folder; name one that holds task files (.yaml).")


@dataclass(frozen=True)
class Scores:
    """What one model scored on one task by one metric."""

    task: str
    metric: str
    values: tuple[float, ...]
    """One for each question."""
    questions: tuple[str, ...]
    """A hash of each question, to pair two models by."""

    @property
    def mean(self) -> float:
        """The score."""
        return mean(self.values)

    @property
    def stderr(self) -> float | None:
        """Its standard error; None for one question."""
        return _stderr(self.values)


def _stderr(values: Sequence[float]) -> float | None:
    std = sample_std(values)
    return None if std is None else std / math.sqrt(len(values))


@dataclass(frozen=True)
class Change:
    """A score before and after."""

    task: str
    metric: str
    num_questions: int
    after: float
    after_stderr: float | None
    before: float | None = None
    """None where there is nothing to compare with."""
    before_stderr: float | None = None
    difference: float | None = None
    difference_stderr: float | None = None
    """Of the paired differences."""


def changes(after: Sequence[Scores], before: Sequence[Scores] | None = None) -> list[Change]:
    """Compare the scores of two models, question by question.

    Args:
        after: of the model in question.
        before: of the model that it is compared with; None compares with nothing.

    Raises:
        ValueError: the two were asked different questions.
    """
    others = {(scores.task, scores.metric): scores for scores in before or ()}
    found = []
    for scores in after:
        change = Change(scores.task, scores.metric, len(scores.values), scores.mean, scores.stderr)
        if before is not None:
            other = others[scores.task, scores.metric]
            if other.questions != scores.questions:
                raise ValueError(f"The questions of task {scores.task!r} are not the same before and after.")
            differences = [mine - theirs for mine, theirs in zip(scores.values, other.values, strict=True)]
            change = dataclasses.replace(
                change,
                before=other.mean,
                before_stderr=other.stderr,
                difference=mean(differences),
                difference_stderr=_stderr(differences),
            )
        found.append(change)
    return found


def retention_table(rows: Sequence[Change]) -> Table:
    """Return a table with standard errors in brackets."""

    def cell(value: float | None, stderr: float | None, sign: str = "") -> str:
        if value is None:
            return "-"
        return f"{value:{sign}.4f}" + ("" if stderr is None else f" ({stderr:.4f})")

    compared = any(row.before is not None for row in rows)
    headers = ("Task", "Metric", "Questions", *(("Before", "After", "Difference") if compared else ("Score",)))
    cells = []
    for row in rows:
        after = cell(row.after, row.after_stderr)
        sides = (cell(row.before, row.before_stderr), after, cell(row.difference, row.difference_stderr, "+"))
        cells.append((row.task, row.metric, f"{row.num_questions:,}", *(sides if compared else (after,))))
    return Table(headers, tuple(cells))


# ---- lm_eval ---------------------------------------------------------------------------------------------------------


def version() -> str:
    """Return lm_eval's version.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.metadata.version("lm_eval")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(_NEEDS) from None


def measure(name: str, config: RetentionConfig) -> list[Scores]:
    """Ask a model all questions.

    Args:
        name: of the model, as :func:`stratagem.models.catalog.load_pretrained` takes it.
        config: what is asked.

    Returns:
        The scores of each task in turn, by each metric that judges single questions.

    Raises:
        ConfigError: lm_eval is not installed, or a task is unknown.
        ModelError: weights or questions cannot be loaded.
    """
    version()
    from lm_eval import evaluator
    from lm_eval.models.huggingface import HFLM

    check_device(config.device)
    with _quiet():
        loaded = _load_tasks(config)
        module, tokenizer = load_pretrained(name, dtype=_DTYPES[config.dtype])
        module.to(config.device).eval()
        asked = HFLM(pretrained=module, tokenizer=tokenizer, batch_size=config.batch_size)
        leaves = {name: task for tasks in loaded.values() for name, task in tasks.items()}
        # Not lm_eval's simple_evaluate, which seeds the process and asks the hub about the model.
        found: Any = evaluator.evaluate(asked, {"tasks": leaves}, limit=config.limit, bootstrap_iters=0)
    samples = {task: [sample for leaf in tasks for sample in found["samples"][leaf]] for task, tasks in loaded.items()}
    return [scores for task, of_task in samples.items() for scores in _scores(task, of_task)]


def _load_tasks(config: RetentionConfig) -> dict[str, dict[str, Any]]:
    """Return the tasks of each name that is asked for: itself, or the parts of a group."""
    from lm_eval.tasks import TaskManager

    manager = None
    if config.include is not None:  # reading all files of lm_eval takes seconds, so only where one is needed
        manager = TaskManager(include_path=config.include, include_defaults=False)
    if manager is None or not set(config.tasks) <= set(manager.all_subtasks):
        manager = TaskManager(include_path=config.include)
    found: dict[str, dict[str, Any]] = {}
    for name in config.tasks:
        if name not in manager.all_tasks:
            close = difflib.get_close_matches(name, manager.all_tasks, n=1, cutoff=0.5)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"Unknown task {name!r} of lm_eval.{hint} `lm-eval ls tasks` lists them.")
        try:
            found[name] = manager.load([name])["tasks"]
        except (OSError, ValueError, httpx.HTTPError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ModelError(
                f"The questions of task {name!r} could not be loaded ({reason}). They are fetched from the Hugging "
                "Face hub once and kept; try again where there is a network, or name tasks of your own with --include."
            ) from error
        for task in found[name].values():
            if task.get_config("num_fewshot") != 0:  # 0 means that examples would spoil the task
                task.set_config(key="num_fewshot", value=config.shots)
            task.set_fewshot_seed(seed=_FEWSHOT_SEED)
    return found


_FEWSHOT_SEED = 1234
"""Which solved examples are shown; lm_eval's own default."""


def _scores(task: str, samples: Sequence[dict[str, Any]]) -> Iterator[Scores]:
    """Return one score for each metric that judges single questions by a number."""
    filters = dict.fromkeys(sample["filter"] for sample in samples)
    for key in filters:
        of_filter = [sample for sample in samples if sample["filter"] == key]
        for metric in of_filter[0]["metrics"]:
            judged = [sample for sample in of_filter if isinstance(sample.get(metric), int | float)]
            if len(judged) == len(of_filter):
                values = tuple(float(sample[metric]) for sample in judged)
                name = metric if len(filters) == 1 else f"{metric} ({key})"
                yield Scores(task, name, values, tuple(sample["doc_hash"] for sample in judged))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out lm_eval's notes on what it does; its warnings stay."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
