"""The command line: parses, calls, prints. Nothing heavy is imported before a verb is known.

Every error of :mod:`stratagem.errors` is one line on standard error and exit code 2; ``STRATAGEM_DEBUG=1`` shows the
traceback. An interrupted command ends with exit code 130.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from stratagem import __version__
from stratagem.errors import ConfigError, StratagemError, UnknownNameError

__all__ = ["VERBS", "build_parser", "main", "verb_parser"]

_WIDTH = 100

VERBS = (
    "train",
    "eval",
    "play",
    "view",
    "report",
    "reproduce",
    "baseline",
    "games",
    "models",
    "doctor",
    "export",
    "data",
)

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells use it."""


class _Parser(argparse.ArgumentParser):
    """Help of a fixed width, usage errors in the style of all other errors."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", _Formatter)
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        command = self.prog
        self.exit(2, f"error: {message}. See `{command} --help`.\n")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, **{**settings, "width": _WIDTH, "max_help_position": 28})


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs."""
    parser = _Parser(
        prog="stratagem",
        usage="stratagem VERB ...",
        description="Post-train small language models to make decisions over many steps,\n"
        "and prove whether they improved.",
        epilog="Examples:\n  stratagem doctor\n  stratagem train tiny\n  stratagem play frozen_lake\n\n"
        "`stratagem VERB --help` says more.",
    )
    parser.add_argument("--version", action="version", version=f"stratagem {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser)
    _add_train(verbs)
    _add_eval(verbs)
    _add_play(verbs)
    _add_view(verbs)
    _add_report(verbs)
    _add_reproduce(verbs)
    _add_baseline(verbs)
    _add_lists(verbs)
    _add_export(verbs)
    _add_data(verbs)
    return parser


def verb_parser(verb: str) -> argparse.ArgumentParser:
    """Return the parser of one verb."""
    for action in build_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            found: argparse.ArgumentParser = action.choices[verb]
            return found
    raise AssertionError("the parser has no verbs")


def _verb(
    verbs: Any, name: str, operands: str, text: str, details: str, examples: Sequence[str]
) -> argparse.ArgumentParser:
    listed = "\n".join(f"  {example}" for example in examples)
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        usage=f"stratagem {name} {operands}".rstrip(),
        help=text,
        description=f"{text}\n\n{details}".rstrip(),
        epilog=f"Examples:\n{listed}",
    )
    return parser


def _add_runs_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs-dir", metavar="DIR", default="runs", help="folder of all runs (runs)")


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("language models", "left out: those of the run, else the defaults of a recipe")
    group.add_argument("--template", metavar="T", help="prompt template: a name or a file")
    group.add_argument("--temperature", metavar="X", type=float, help="sampling temperature; 0 is greedy")
    group.add_argument("--max-new-tokens", metavar="N", type=int, help="completion limit in tokens")
    group.add_argument("--device", metavar="D", help="cpu, cuda or cuda:N")
    group.add_argument("--dtype", choices=("float32", "bfloat16"), help="precision of the weights")
    group.add_argument("--base-url", metavar="URL", help="ask an OpenAI-compatible server; the model is its name there")
    group.add_argument(
        "--continue-assistant", action="store_true", default=None,
        help="the server lets a template begin the answer (vLLM, SGLang)",
    )  # fmt: skip
    group.add_argument("--api-key-env", metavar="VAR", help="environment variable that holds the server's key")


def _add_train(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "train",
        "[RECIPE] [options]",
        "Train what a recipe says.",
        "RECIPE is a name (see recipes/) or a .toml file; with --resume it may be left out. Ctrl-C finishes the\n"
        "iteration, saves a checkpoint and exits with 130; a second Ctrl-C stops at once.",
        [
            "stratagem train tiny",
            "stratagem train frozen_lake_demo --name first --seed 1",
            "stratagem train frozen_lake_demo --set algorithm.group_size=16 --dry-run",
            "stratagem train --name first --resume",
        ],
    )
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="name or file of a recipe")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides",
        help="change a setting, as algorithm.group_size=16; may be given again",
    )  # fmt: skip
    parser.add_argument("--name", metavar="NAME", help="the run's name (recipe-seed-number)")
    parser.add_argument("--seed", metavar="N", type=int, help="the run's seed (that of the recipe)")
    _add_runs_dir(parser)
    parser.add_argument("--resume", action="store_true", help="go on with the run --name from its newest checkpoint")
    parser.add_argument("--dry-run", action="store_true", help="check everything, say what it would cost, and stop")
    parser.add_argument("--print-config", action="store_true", help="print the recipe with every default, and stop")


def _add_eval(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "eval",
        "WHO --game GAME [options]",
        "Play a fixed panel of episodes and measure.",
        "WHO is a run (name or folder), a model (name or folder), or one of the policies `random` and `planner`.\n"
        "Every episode is saved as it ends; --resume plays only what is missing.",
        [
            "stratagem eval random --game FrozenLake-Slippery",
            "stratagem eval first --game FrozenLake-Slippery --temperature 0",
            "stratagem eval smollm2-135m-instruct --game Snake-Standard --template action --max-new-tokens 12",
            "stratagem eval my-model --base-url http://localhost:8000/v1 --game frozen_lake --template think_action",
        ],
    )
    parser.add_argument("who", metavar="WHO", help="run, model or policy")
    parser.add_argument("--game", metavar="GAME", help="game or variant (left out: the first panel of the run)")
    _add_params(parser)
    parser.add_argument("--episodes", metavar="N", type=int, default=50, help="episodes of the panel (50)")
    parser.add_argument("--seed", metavar="N", type=int, help="of the sampling (0, or that of the run)")
    parser.add_argument("--out", metavar="DIR", help="folder of the results (evaluations/WHO-GAME-number)")
    parser.add_argument("--resume", action="store_true", help="go on with the evaluation in --out")
    parser.add_argument("--max-concurrent", metavar="N", type=int, default=256, help="episodes under way at once (256)")
    _add_runs_dir(parser)
    _add_model_options(parser)


def _add_params(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--param", metavar="KEY=VALUE", action="append", default=[], dest="params",
        help="change a setting of the game, as size=8; may be given again",
    )  # fmt: skip


def _add_play(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "play",
        "GAME [options]",
        "Play a game by hand, or watch somebody play.",
        "By hand: type an action or its number; q quits. --policy watches a policy, a run or a model instead.",
        [
            "stratagem play frozen_lake",
            "stratagem play FrozenLake-Slippery --seed 7 --param size=8",
            "stratagem play Snake-Standard --policy planner --delay 0.3",
            "stratagem play frozen_lake --policy first",
        ],
    )
    parser.add_argument("game", metavar="GAME", help="game or variant")
    _add_params(parser)
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the start and of chance (0)")
    parser.add_argument("--policy", metavar="WHO", help="watch a run, a model, `random` or `planner`")
    parser.add_argument("--delay", metavar="S", type=float, default=0.0, help="seconds between moves when watching (0)")
    _add_runs_dir(parser)
    _add_model_options(parser)


def _add_view(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "view",
        "[RUN ...] [options]",
        "Look into runs: in the browser, or printed.",
        "RUN is a name or a folder; left out, all runs. On a terminal a page opens that follows the runs while they\n"
        "train. With --text, with an option that chooses an episode, or into a pipe, it is printed: the list of runs,\n"
        "the summary of one, or one of its episodes step by step.",
        [
            "stratagem view",
            "stratagem view first second",
            "stratagem view first --text",
            "stratagem view first --iteration 20 --best",
            "stratagem view first --iteration 20 --group 3 --episode 5",
            "stratagem view first --evaluation final --worst",
        ],
    )
    parser.add_argument("runs", metavar="RUN", nargs="*", help="names or folders of runs, or a folder of runs")
    page = parser.add_argument_group("the page")
    page.add_argument("--page", action="store_true", help="open it also where the output is no terminal")
    page.add_argument("--port", metavar="N", type=int, help="port of this machine (any that is free)")
    page.add_argument("--host", metavar="H", help="let other machines in through this address (127.0.0.1: none)")
    page.add_argument("--no-token", action="store_true", help="a plain address, for every user of this machine")
    page.add_argument("--no-browser", action="store_true", help="print the address, but start no browser")
    text = parser.add_argument_group("printed")
    text.add_argument("--text", action="store_true", help="print also on a terminal")
    text.add_argument("--iteration", metavar="N", type=int, help="show an episode of this iteration")
    text.add_argument("--evaluation", metavar="TAG", help="show an episode of start, warm_start or final instead")
    text.add_argument("--panel", metavar="P", help="which panel of the evaluation (the first)")
    text.add_argument("--group", metavar="G", type=int, help="which group, from 0 (0)")
    text.add_argument("--episode", metavar="E", type=int, help="which episode, from 0 (0)")
    choice = text.add_mutually_exclusive_group()
    choice.add_argument("--best", action="store_true", help="the episode with the highest return")
    choice.add_argument("--worst", action="store_true", help="the episode with the lowest return")
    text.add_argument("--full", action="store_true", help="show every observation whole, not only what changed")
    _add_runs_dir(parser)


def _add_report(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "report",
        "RUN [options]",
        "Write a run as one HTML file that needs nothing else, and as Markdown.",
        "Curves, panels, the best, the median and the worst episode, the recipe and the versions; also of a run that\n"
        "is not finished. Files of an earlier report are replaced.",
        ["stratagem report first", "stratagem report first --to out"],
    )
    parser.add_argument("run", metavar="RUN", help="name or folder of a run")
    parser.add_argument("--to", metavar="DIR", help="folder of report.html and report.md (that of the run)")
    _add_runs_dir(parser)


def _add_reproduce(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "reproduce",
        "PAPER [options]",
        "Run the experiments of a paper, and put its tables and figures beside ours.",
        "PAPER is ms-grpo. Runs lie under --out and are named there: what is finished is not run again, what was\n"
        "stopped goes on from its newest checkpoint. The page is written after each run, also of what is there so far.",
        [
            "stratagem reproduce ms-grpo --dry-run",
            "stratagem reproduce ms-grpo --table 1 --scale laptop --seeds 2",
            "stratagem reproduce ms-grpo --figure 3 --scale paper --dry-run --tokens-per-second 2000",
            "stratagem reproduce ms-grpo --collect",
        ],
    )
    parser.add_argument("paper", metavar="PAPER", help="ms-grpo")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--table", metavar="N", type=int, help="only the runs of this table: 1")
    part.add_argument("--figure", metavar="N", type=int, help="only the runs of this figure: 1, 2 or 3")
    part.add_argument("--ablations", action="store_true", help="only our further ablations: sampling, format, KL")
    parser.add_argument(
        "--scale", choices=("laptop", "paper", "tiny"), default="laptop",
        help="recipes: those for two cores, those of the paper, or a random model",
    )  # fmt: skip
    parser.add_argument("--seeds", metavar="N", type=int, help="seeds 0 to N-1 of each run (laptop 3, paper 8, tiny 2)")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides",
        help="change a setting of every run, as algorithm.num_iterations=20; may be given again",
    )  # fmt: skip
    parser.add_argument("--jobs", metavar="N", type=int, help="runs at once (as many as cores or GPUs allow)")
    parser.add_argument("--out", metavar="DIR", help="folder of runs and results (reproduce/ms-grpo-SCALE)")
    parser.add_argument("--dqn", metavar="DIR", help="folder of `stratagem baseline dqn`, for figure 2")
    parser.add_argument(
        "--keep-checkpoints", action="store_true", help="keep those of finished runs, whose models are kept in any case"
    )
    parser.add_argument("--dry-run", action="store_true", help="say which runs there are and what they cost, and stop")
    parser.add_argument("--collect", action="store_true", help="run nothing; make the page from what is there")
    parser.add_argument(
        "--tokens-per-second", metavar="X", type=float,
        help="measured rate of generating and learning, for the hours (laptop 1900, paper 2000, tiny 2000)",
    )  # fmt: skip


def _add_baseline(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "baseline",
        "dqn [options]",
        "Train a player that is no language model, and measure it.",
        "Needs the extra `dqn` for training. Writes the network, its settings and all results into --out.",
        [
            "stratagem baseline dqn",
            "stratagem baseline dqn --seed 1 --set num_steps=200000 --out dqn-short",
            "stratagem baseline dqn --load --out dqn-short --panel Snake-Standard --episodes 50",
        ],
    )
    parser.add_argument("kind", metavar="KIND", help="dqn")
    parser.add_argument("--game", metavar="GAME", default="Snake-Standard", help="Snake variant (Snake-Standard)")
    _add_params(parser)
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides",
        help="change a setting of the training, as num_steps=200000; may be given again",
    )  # fmt: skip
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the training (0)")
    parser.add_argument("--episodes", metavar="N", type=int, default=1000, help="episodes of each panel (1000)")
    parser.add_argument(
        "--panel", metavar="P", action="append", default=[], dest="panels",
        help="variant to evaluate on (the game and the other variants of the paper); may be given again",
    )  # fmt: skip
    parser.add_argument("--out", metavar="DIR", default="dqn", help="folder of the network and the results (dqn)")
    parser.add_argument("--load", action="store_true", help="evaluate the network in --out instead of training one")
    parser.add_argument("--every-seconds", metavar="S", type=float, default=30.0, help="between lines of progress (30)")


def _add_lists(verbs: Any) -> None:
    games = _verb(
        verbs,
        "games",
        "[GAME] [options]",
        "List the games, or show one: parameters and what a player sees.",
        "",
        ["stratagem games", "stratagem games frozen_lake", "stratagem games Snake-Standard --reference"],
    )
    games.add_argument("game", metavar="GAME", nargs="?", help="game or variant")
    _add_params(games)
    games.add_argument("--reference", action="store_true", help="also play its panel with `random` and `planner`")
    _verb(verbs, "models", "", "List the models that need no hub, and where they are kept.", "", ["stratagem models"])
    doctor = _verb(
        verbs,
        "doctor",
        "[options]",
        "Check this machine; exit code 1 with advice if something is broken.",
        "",
        ["stratagem doctor"],
    )
    _add_runs_dir(doctor)


def _add_export(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "export",
        "RUN --to DIR [options]",
        "Write a run's model as a folder that transformers reads.",
        "A run that is not finished gives the weights of its newest checkpoint.",
        ["stratagem export first --to my-model", "stratagem export first --to my-model --merged"],
    )
    parser.add_argument("run", metavar="RUN", help="name or folder of a run")
    parser.add_argument("--to", metavar="DIR", required=True, help="a new folder")
    parser.add_argument("--merged", action="store_true", help="with an adapter: write whole weights with it added in")
    _add_runs_dir(parser)


def _add_data(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "data",
        "DATASET SRC DST",
        "Convert a downloaded data set to the form that a game reads fast.",
        "DATASET is alfworld: SRC is the official folder (with json_2.1.1 in it), DST a new games.jsonl.gz. The game\n"
        "finds it by its parameter `data` or by the environment variable ALFWORLD_DATA.",
        ["stratagem data alfworld ~/.cache/alfworld games.jsonl.gz"],
    )
    parser.add_argument("dataset", metavar="DATASET", help="alfworld")
    parser.add_argument("source", metavar="SRC", help="folder of the download")
    parser.add_argument("target", metavar="DST", help="a new file")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without Unicode shows "?" rather than a traceback
            stream.reconfigure(errors="replace")
    parser = build_parser()
    words = list(sys.argv[1:] if argv is None else argv)
    if words and not words[0].startswith("-") and words[0] not in VERBS:
        print(f"error: {UnknownNameError('verb', words[0], VERBS)}", file=sys.stderr)
        return 2
    arguments = parser.parse_args(words)
    if arguments.verb is None:
        parser.print_help()
        return 0
    # Ctrl-C in the middle of a rollout leaves a task behind, which asyncio would report with a traceback.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            return _dispatch(arguments)
        except StratagemError as error:
            if os.environ.get("STRATAGEM_DEBUG") == "1":
                raise
            print(f"error: {' '.join(str(error).splitlines())}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("\nInterrupted.", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:
            # The reader (head, less) has seen enough; nothing may be written to it any more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except OSError as error:
            if os.environ.get("STRATAGEM_DEBUG") == "1":
                raise
            where = "" if error.filename is None else f"{str(error.filename)!r}: "
            reason = error.strerror or " ".join(str(error).splitlines())
            print(f"error: {where}{reason}. Check the path, its permissions and the free space.", file=sys.stderr)
            return 2


def _dispatch(arguments: argparse.Namespace) -> int:
    if arguments.verb in ("train", "eval", "export"):
        from stratagem import cli_work

        return {"train": cli_work.train, "eval": cli_work.evaluate_command, "export": cli_work.export}[arguments.verb](
            arguments
        )
    if arguments.verb == "play":
        from stratagem.cli_play import play

        return play(arguments)
    if arguments.verb == "data":
        from stratagem.cli_data import data

        return data(arguments)
    if arguments.verb == "baseline":
        from stratagem.cli_baselines import baseline

        return baseline(arguments)
    if arguments.verb == "reproduce":
        from stratagem.cli_reproduce import reproduce

        return reproduce(arguments)
    if arguments.verb == "doctor":
        from stratagem.cli_doctor import doctor

        return doctor(arguments)
    if arguments.verb == "report":
        from stratagem.cli_page import report

        return report(arguments)
    if arguments.verb == "view":
        from stratagem.cli_page import view, wants_page

        if wants_page(arguments):
            return view(arguments)
        if len(arguments.runs) > 1:
            raise ConfigError(
                f"{len(arguments.runs)} runs cannot be printed at once; name one, or open the page with --page."
            )
        arguments.run = arguments.runs[0] if arguments.runs else None
    from stratagem import cli_view

    return {"view": cli_view.view, "games": cli_view.games, "models": cli_view.models}[arguments.verb](arguments)


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    print(f"warning: {' '.join(str(message).splitlines())}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
