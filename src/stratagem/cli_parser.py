"""What the command line accepts: every verb with its options and help. Nothing heavy is imported."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from stratagem import __version__

__all__ = ["build_parser", "verb_parser"]

_WIDTH = 100


class _Parser(argparse.ArgumentParser):
    """Help of a fixed width, usage errors in the style of all other errors."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", _Formatter)
        super().__init__(allow_abbrev=False, **settings)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Return the arguments; what the verb does not know is refused by the verb's own parser."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = self._verbs().get(getattr(found, "verb", None) or "", self)
            options = [option for action in parser._actions for option in action.option_strings]
            named = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{_hint(named, options)}")
        return found

    def _verbs(self) -> dict[str, argparse.ArgumentParser]:
        """Return the parser of each verb; none in the parser of a verb."""
        found = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return dict(found[0]) if found else {}

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line, with the nearest name where there is one, and end."""
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message)
        if choice is not None:
            message += _hint(choice[1], re.findall(r"[\w.-]+", choice[2]))
        end = "" if message.endswith("?") else "."
        self.exit(2, f"error: {message}{end} See `{self.prog} --help`.\n")


def _hint(word: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(names), n=1)
    return f". Did you mean {close[0]!r}?" if close else ""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, **{**settings, "width": _WIDTH, "max_help_position": 28})


def build_parser() -> _Parser:
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
    _add_logprobs(verbs)
    _add_reproduce(verbs)
    _add_retention(verbs)
    _add_baseline(verbs)
    _add_lists(verbs)
    _add_export(verbs)
    _add_data(verbs)
    return parser


def verb_parser(verb: str) -> argparse.ArgumentParser:
    """Return the parser of one verb."""
    return build_parser()._verbs()[verb]


def _verb(
    verbs: Any, name: str, operands: str, text: str, details: str, examples: Sequence[str]
) -> argparse.ArgumentParser:
    listed = "\n".join(f"  {example}" for example in examples)
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        prog=f"stratagem {name}",
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
    group.add_argument(
        "--agent", metavar="A", help="how a model plays: language, scoring, hierarchical, react or reflexion"
    )
    group.add_argument(
        "--agent-set", metavar="KEY=VALUE", action="append", default=[], dest="agent_settings",
        help="change a setting of the agent, as num_trials=5; may be given again",
    )  # fmt: skip
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
            "stratagem eval smollm2-135m-instruct --game VirtualHome-Entertainment --agent scoring --gamma 0.95",
            "stratagem eval my-model --base-url http://localhost:8000/v1 --game frozen_lake --template think_action",
            "stratagem eval smollm2-135m-instruct --game ALFWorld-Generated --param view=raw --agent react",
        ],
    )
    parser.add_argument("who", metavar="WHO", help="run, model or policy")
    parser.add_argument("--game", metavar="GAME", help="game or variant (left out: the first panel of the run)")
    _add_params(parser)
    parser.add_argument("--episodes", metavar="N", type=int, default=50, help="episodes of the panel (50)")
    parser.add_argument("--gamma", metavar="X", type=float, help="discount of returns (that of the run, or 1: none)")
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


def _add_logprobs(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "logprobs",
        "RUN [options]",
        "Ask two checkpoints of a run for the probabilities of recorded answers.",
        "Shows which way training moved them, and keeps them in the run folder, by which the page colours the tokens\n"
        "of an episode. W is `start` (the untrained model), an iteration with a checkpoint, `newest` or `final`.\n"
        "Files that are there are not made again.",
        [
            "stratagem logprobs first",
            "stratagem logprobs first --from start --to final --iterations 1,10-12",
            "stratagem logprobs first --to 20 --iterations all --limit 32",
        ],
    )
    parser.add_argument("run", metavar="RUN", help="name or folder of a run")
    parser.add_argument("--from", metavar="W", default="start", dest="before", help="the first weights (start)")
    parser.add_argument("--to", metavar="W", default="newest", dest="after", help="the second weights (newest)")
    parser.add_argument("--iterations", metavar="LIST", help="whose answers, as 1,5,10-20, or all (the newest)")
    parser.add_argument("--limit", metavar="N", type=int, help="only the first N episodes of each iteration")
    parser.add_argument("--device", metavar="D", help="cpu, cuda or cuda:N (that of the run)")
    _add_runs_dir(parser)


def _add_reproduce(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "reproduce",
        "PAPER [options]",
        "Run the experiments of a paper, and put its tables and figures beside ours.",
        "PAPER is ms-grpo, poad or step-hrl. Runs lie under --out and are named there: what is finished is not run\n"
        "again, what was stopped goes on from its newest checkpoint. The page is written after each run, also of what\n"
        "is there so far.",
        [
            "stratagem reproduce ms-grpo --dry-run",
            "stratagem reproduce ms-grpo --table 1 --scale laptop --seeds 2",
            "stratagem reproduce ms-grpo --figure 3 --scale paper --dry-run --tokens-per-second 2000",
            "stratagem reproduce ms-grpo --collect",
            "stratagem reproduce poad --tasks food_preparation,entertainment --seeds 2",
            "stratagem reproduce step-hrl --tasks alfworld --seeds 1",
        ],
    )
    parser.add_argument("paper", metavar="PAPER", help="ms-grpo, poad or step-hrl")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--table", metavar="N", type=int, help="of ms-grpo, only the runs of this table: 1")
    part.add_argument("--figure", metavar="N", type=int, help="of ms-grpo, only the runs of this figure: 1, 2, 3")
    part.add_argument(
        "--tasks",
        metavar="T,T",
        help="of poad and step-hrl, only these: food_preparation, entertainment, ..., alfworld, scienceworld",
    )
    part.add_argument("--ablations", action="store_true", help="only the ablations")
    part.add_argument(
        "--consistency", action="store_const", const=True,
        help="of ms-grpo, only the options against the inconsistency between seeds, on Frozen Lake",
    )  # fmt: skip
    parser.add_argument(
        "--scale", choices=("laptop", "paper", "tiny"), default="laptop",
        help="recipes: those for two cores, those of the paper, or a random model",
    )  # fmt: skip
    parser.add_argument("--seeds", metavar="N", type=int, help="seeds 0 to N-1 of each run (those of the scale)")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides",
        help="change a setting of every run, as algorithm.num_iterations=20; may be given again",
    )  # fmt: skip
    parser.add_argument("--jobs", metavar="N", type=int, help="runs at once (as many as cores or GPUs allow)")
    parser.add_argument("--out", metavar="DIR", help="folder of runs and results (reproduce/PAPER-SCALE)")
    parser.add_argument("--dqn", metavar="DIR", help="of ms-grpo, folder of `stratagem baseline dqn`")
    parser.add_argument(
        "--keep-checkpoints", action="store_true", help="keep those of finished runs, whose models are kept in any case"
    )
    parser.add_argument("--dry-run", action="store_true", help="say which runs there are and what they cost, and stop")
    parser.add_argument("--collect", action="store_true", help="run nothing; make the page from what is there")
    parser.add_argument(
        "--tokens-per-second", metavar="X", type=float,
        help="of ms-grpo and step-hrl, measured rate of generating and learning, for the hours (that of the scale)",
    )  # fmt: skip
    parser.add_argument("--decisions-per-second", metavar="X", type=float, help="of poad, the same (that of the scale)")


def _add_retention(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "retention",
        "WHO [--against MODEL] [options]",
        "Ask general questions before and after training, to see what it cost elsewhere.",
        "WHO is a finished run (compared with the model that it began with) or a model. Needs the extra `retention`,\n"
        "which brings EleutherAI's lm_eval. Its questions are fetched from the Hugging Face hub once and kept.",
        [
            "stratagem retention first",
            "stratagem retention first --tasks arc_easy,piqa --limit 200",
            "stratagem retention my-model --against smollm2-135m-instruct --tasks mmlu --shots 5",
        ],
    )
    parser.add_argument("who", metavar="WHO", help="run or model")
    parser.add_argument("--against", metavar="MODEL", help="run or model to compare with (that which a run began with)")
    parser.add_argument(
        "--tasks", metavar="T,T", default="arc_challenge,hellaswag,piqa,mmlu",
        help="tasks or groups of lm_eval (arc_challenge,hellaswag,piqa,mmlu)",
    )  # fmt: skip
    parser.add_argument("--shots", metavar="N", type=int, default=0, help="solved examples before a question (0)")
    parser.add_argument("--limit", metavar="N", type=int, help="only the first N questions of each task")
    parser.add_argument("--include", metavar="DIR", help="folder with task files of your own (.yaml)")
    parser.add_argument("--batch-size", metavar="N", type=int, default=8, help="answers scored at once (8)")
    parser.add_argument("--device", metavar="D", default="cpu", help="cpu, cuda or cuda:N (cpu)")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="precision of the weights (float32)"
    )
    parser.add_argument("--out", metavar="FILE", help="JSON of the scores (evaluations/WHO-retention-N/retention.json)")
    _add_runs_dir(parser)


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
        "JOB PATH ... [options]",
        "Prepare data: games, and annotated episodes of an expert.",
        "JOB is one of these:\n"
        "  alfworld SRC DST        convert the official ALFWorld folder SRC (with json_2.1.1 in it) to DST, a new\n"
        "                          games.jsonl.gz. The game finds it by its parameter `data` or by the\n"
        "                          environment variable ALFWORLD_DATA.\n"
        "  annotate FILE           let an expert play and write its episodes with subtasks and local progress\n"
        "                          to a new .parquet or .jsonl: by rule for ALFWorld and ScienceWorld, by a\n"
        "                          language model for any game with a planner.\n"
        "  check-annotations FILE  say what is wrong with such a file; exit code 1 if something is.",
        [
            "stratagem data alfworld ~/.cache/alfworld games.jsonl.gz",
            "stratagem data annotate episodes.parquet --episodes 3211",
            "stratagem data annotate lake.jsonl --game frozen_lake --model my-model --base-url http://localhost:8000/v1",
            "stratagem data check-annotations episodes.parquet",
        ],
    )
    parser.add_argument("job", metavar="JOB", help="alfworld, annotate or check-annotations")
    parser.add_argument("paths", metavar="PATH", nargs="*", help="as the job says")
    expert = parser.add_argument_group("annotate: the episodes")
    expert.add_argument("--game", metavar="GAME", help="game or variant (ALFWorld-Generated)")
    expert.add_argument(
        "--param", metavar="KEY=VALUE", action="append", default=[], dest="params",
        help="change a setting of the game, as split=valid_seen; may be given again",
    )  # fmt: skip
    expert.add_argument("--episodes", metavar="N", type=int, help="so many (100)")
    expert.add_argument("--seed", metavar="N", type=int, help="of the starts (0)")
    expert.add_argument("--task", metavar="TEXT", help="the task of a game that states none")
    expert.add_argument(
        "--leave-out", metavar="N", type=int,
        help="start at none of the first N episodes of the game's panel, by which is evaluated (50)",
    )  # fmt: skip
    expert.add_argument("--from", metavar="FILE", dest="source", help="the episodes of this annotation file instead")
    model = parser.add_argument_group("annotate: the language model")
    model.add_argument("--model", metavar="M", help="who annotates; left out, rules do")
    model.add_argument("--base-url", metavar="URL", help="of an OpenAI-compatible server that has it")
    model.add_argument("--api-key-env", metavar="VAR", help="environment variable that holds the server's key")
    model.add_argument("--temperature", metavar="X", type=float, help="of its answers (0)")
    model.add_argument("--max-new-tokens", metavar="N", type=int, help="tokens of an answer at most (400)")
    model.add_argument("--device", metavar="D", help="cpu, cuda or cuda:N")
    model.add_argument("--dtype", choices=("float32", "bfloat16"), help="precision of the weights")
