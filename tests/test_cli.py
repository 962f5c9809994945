"""The command line end to end, in this process where possible, with the tiny model."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stratagem import __version__, cli_doctor
from stratagem.cli import VERBS, main, verb_parser
from stratagem.cli_doctor import Check
from stratagem.cli_reference import cli_reference
from stratagem.games import GAMES, VARIANTS
from stratagem.recipe import load_recipe
from stratagem.runs.experiment import build_experiment
from stratagem.runs.metrics import read_metrics

ROOT = Path(__file__).resolve().parents[1]

FAST = [
    *("--set", "agent.recovery=random", "--set", "agent.max_new_tokens=4", "--set", "warm_start=false"),
    *("--set", "algorithm.num_iterations=2", "--set", "evaluation.num_episodes=3"),
    *("--set", "game.params={size=3, max_steps=4, coordinates=false}"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working folder with one finished run called ``done``."""
    folder = tmp_path_factory.mktemp("home")
    before, here = os.environ.get("STRATAGEM_CACHE"), Path.cwd()
    os.environ["STRATAGEM_CACHE"] = str(folder / "cache")
    os.chdir(folder)
    try:
        assert main(["train", "tiny", "--name", "done", *FAST]) == 0
        yield folder
    finally:
        os.chdir(here)
        os.environ.pop("STRATAGEM_CACHE")
        if before is not None:
            os.environ["STRATAGEM_CACHE"] = before


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Run a command and return what it printed."""
    capsys.readouterr()
    assert main(words) == code, capsys.readouterr()
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], message: str, *words: str) -> None:
    """Run a command that must fail with one line."""
    capsys.readouterr()
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.err == f"error: {message}\n"
    assert captured.out == ""


# ---- help and errors -------------------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom stratagem.cli import main\n"
        "try:\n    main(['train', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'numpy', 'transformers', 'rich', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_takes_less_than_half_a_second_of_processor_time() -> None:
    code = (
        "import os, subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'stratagem.cli', '--help'], check=True, stdout=subprocess.DEVNULL)\n"
        "spent = os.times()\nprint(spent.children_user + spent.children_system)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.5


@pytest.mark.parametrize("verb", VERBS)
def test_every_help_has_examples(verb: str) -> None:
    text = verb_parser(verb).format_help()
    assert f"Examples:\n  stratagem {verb}" in text
    assert max(map(len, text.splitlines())) <= 120


def test_the_page_of_the_command_line_is_what_help_prints() -> None:
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == cli_reference(), (
        "run python -m stratagem.cli_reference > docs/cli.md"
    )


def test_without_a_verb_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys).startswith("usage: stratagem VERB ...\n")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--version"])
    assert capsys.readouterr().out == f"stratagem {__version__}\n"


def test_an_unknown_verb_is_refused_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    names = (
        "baseline, data, doctor, eval, export, games, logprobs, models, play, report, reproduce, retention, train, view"
    )
    refused(capsys, f"Unknown verb 'trian'. Did you mean 'train'? Available: {names}.", "trian", "tiny")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "train tiny --nme x",
            "unrecognized arguments: --nme x. Did you mean '--name'? See `stratagem train --help`.",
        ),
        ("train tiny --sed=1", "unrecognized arguments: --sed=1. Did you mean '--seed'? See `stratagem train --help`."),
        ("train tiny second", "unrecognized arguments: second. See `stratagem train --help`."),
        ("train tiny --zzz", "unrecognized arguments: --zzz. See `stratagem train --help`."),
        ("--versoin", "unrecognized arguments: --versoin. Did you mean '--version'? See `stratagem --help`."),
        ("export first", "the following arguments are required: --to. See `stratagem export --help`."),
    ],
    ids=["option", "with_value", "operand", "nothing_near", "no_verb", "missing"],
)
def test_wrong_options_are_one_line_with_the_nearest_one(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(shlex.split(words))
    assert capsys.readouterr().err == f"error: {message}\n"


def test_a_wrong_choice_is_answered_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["eval", "tiny", "--dtype", "bfloat"])
    assert capsys.readouterr().err.endswith(". Did you mean 'bfloat16'? See `stratagem eval --help`.\n")


_ERRORS = {
    "train nosuch": "Unknown recipe 'nosuch'",
    "train tiny --set algoritm.x=1": "Unknown recipe key 'algoritm'",
    "train tiny --set game.name=frozen_lak": "Unknown game 'frozen_lak'",
    "train tiny --set model.name=tinny": "Unknown model 'tinny'",
    "play frozen_lak": "Unknown game 'frozen_lak'",
    "eval randm --game frozen_lake": "Unknown policy, run or model 'randm'",
    "trian tiny": "Unknown verb 'trian'",
}


@pytest.mark.parametrize("words", _ERRORS)
def test_a_wrong_name_is_refused_before_torch_is_loaded(words: str) -> None:
    # Torch and transformers take seconds, and nobody should wait for them to read of a misspelling.
    code = (
        "import sys\nfrom stratagem.cli import main\n"
        f"code = main({shlex.split(words)!r})\n"
        "print(code, sorted({'torch', 'transformers', 'peft', 'accelerate'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.startswith(f"error: {_ERRORS[words]}")
    assert done.stdout == "2 []\n"


def test_the_traceback_is_shown_on_request(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATAGEM_DEBUG", "1")
    with pytest.raises(ValueError, match=r"^Unknown recipe 'tini'"):
        main(["train", "tini"])


# ---- train -----------------------------------------------------------------------------------------------------------


def test_a_run_that_exists_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(
        capsys,
        "Run 'done' exists in 'runs'; choose another name with --name, or continue it with --resume.",
        *("train", "tiny", "--name", "done"),
    )


def test_resuming_with_other_settings_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(
        capsys,
        "Run 'done' was made with another recipe; different: seed (0 -> 1). Resume with the run's own recipe.toml, or "
        "choose another name with --name.",
        *("train", "--name", "done", "--resume", "--seed", "1"),
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--set", "game.name=frozen_lke"],
            "Unknown game 'frozen_lke'. Did you mean 'frozen_lake'? "
            f"Available: {', '.join(sorted([*GAMES, *VARIANTS]))}.",
        ),
        (
            ["--set", "evaluation.panels=['Snake-Standart']"],
            "Unknown game 'Snake-Standart'. Did you mean 'Snake-Standard'? "
            f"Available: {', '.join(sorted([*GAMES, *VARIANTS]))}.",
        ),
        (
            ["--set", "model.name=tinny"],
            "Unknown model 'tinny'. Did you mean 'tiny'? Available: smollm2-135m-instruct, tiny.",
        ),
        (
            ["--set", "agent.temperature=0"],
            "agent.temperature=0 always gives the same episode, so nothing is learnt; set it above 0.",
        ),
    ],
    ids=["game", "panel", "model", "greedy"],
)
def test_wrong_settings_are_refused_before_anything_is_made(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    refused(capsys, message, "train", "tiny", "--runs-dir", "nowhere", *words)
    assert not Path("nowhere").exists()


def test_a_run_needs_a_recipe(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = "RECIPE is missing; name one, or continue a run with --name NAME --resume."
    refused(capsys, message, "train")
    refused(capsys, message, "train", "--resume")


def test_a_dry_run_tells_the_costs_and_makes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "train", "frozen_lake_demo", "--dry-run", "--runs-dir", "nowhere")
    first, *rest = text.splitlines()
    assert first.startswith("Would train smollm2-135m-instruct (float32, cpu) on FrozenLake-NotSlippery for ")
    assert [line.split()[0] for line in rest] == ["training", "evaluation", "tokens", "disk", "free"]
    assert not Path("nowhere").exists()


def test_the_printed_recipe_is_a_recipe(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("printed.toml").write_text(said(capsys, "train", "tiny", "--print-config", "--seed", "7"), encoding="utf-8")
    assert load_recipe("printed.toml") == load_recipe("tiny", ["seed=7"])


def test_a_run_without_a_name_gets_the_next_number(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = [*FAST, "--set", "algorithm.num_iterations=1", "--seed", "5"]
    text = said(capsys, "train", "tiny", *short)
    assert Path("runs/tiny-5-1/summary.json").is_file()
    assert "final - start = " in text
    assert "The first episode of FrozenLake-NotSlippery after training:\nstep 1\n" in text
    assert str(Path("runs/tiny-5-1/figures/learning_curve.png")) in text
    # Off a terminal there is one plain line for each iteration, and no escape codes.
    assert re.search(r"^\[1/1\] return ", text, flags=re.MULTILINE)
    assert "\x1b" not in text


# ---- view and export -------------------------------------------------------------------------------------------------


def test_runs_are_listed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "view")
    assert re.search(r"done .*FrozenLake-NotSlippery .*tiny .*2/2", text)
    assert said(capsys, "view", "--runs-dir", "none") == "No runs in 'none'; make one with `stratagem train tiny`.\n"


def test_a_run_is_summed_up(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "view", "done")
    assert text.startswith("done: tiny on FrozenLake-NotSlippery, 2 of 2 iterations, finished\n")
    mean = read_metrics(Path("runs/done/metrics.jsonl"))[-1]["return_mean"]
    assert f"-> {mean:.3f}" in text
    assert re.search(r"^FrozenLake-NotSlippery, 3 episodes\n .*\nstart .*\nfinal ", text, flags=re.MULTILINE)


def test_an_episode_is_shown_step_by_step(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "view", "done", "--iteration", "1", "--best")
    assert text.startswith("done, iteration 1, group ")
    assert "prompt ends  ..." in text
    assert "<|im_start|>assistant\\n<action>" in text  # special tokens are visible
    assert "action       none: " in text
    assert "advantage " in text or "end: " in text
    best, worst = (
        float(re.search(r"return ([+-][\d.]+)", said(capsys, "view", "done", "--iteration", "1", flag))[1])  # type: ignore[index]
        for flag in ("--best", "--worst")
    )
    assert best >= worst


def test_only_what_changed_is_shown_again(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = said(capsys, "view", "done", "--group", "0", "--episode", "0")
    full = said(capsys, "view", "done", "--group", "0", "--episode", "0", "--full")
    assert short.count("[Rules]") == 1
    assert full.count("[Rules]") == full.count("step ")


def test_an_evaluation_is_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "view", "done", "--evaluation", "final", "--episode", "2")
    assert text.startswith("done, evaluation final, FrozenLake-NotSlippery, episode 2\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["don"], "Unknown run 'don'. Did you mean 'done'? Available: done"),
        (
            ["done", "--iteration", "9"],
            "Run 'done' holds no trajectories of iteration 9; iterations with some: 1 to 2.",
        ),
        (
            ["done", "--iteration", "1", "--group", "7"],
            "There is no episode with group=7 and episode=None; both count from 0.",
        ),
        (
            ["done", "--evaluation", "fin"],
            "Unknown evaluation with episodes 'fin'. Did you mean 'final'? Available: final, start.",
        ),
        (
            ["done", "--evaluation", "final", "--panel", "x"],
            "Unknown panel 'x'. Available: FrozenLake-NotSlippery.",
        ),
        (
            ["done", "--evaluation", "final", "--iteration", "1"],
            "--iteration and --evaluation are different places; give one of them.",
        ),
        (
            ["done", "--evaluation", "final", "--group", "1"],
            "--group has no meaning in an evaluation, which has no groups; choose with --episode.",
        ),
    ],
    ids=["run", "iteration", "group", "evaluation", "panel", "both", "group_of_evaluation"],
)
def test_what_is_not_there_is_named(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["view", *words]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_an_exported_model_plays_as_the_run_does(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "export", "done", "--to", "out/model")
    assert text.startswith(str(Path("out/model")) + ": ")
    assert text.endswith("\nOther programs have to stop an answer after </action> (stop_strings in transformers).\n")
    refused(capsys, "--to 'out/model' exists; name a new folder.", "export", "done", "--to", "out/model")
    options = ["--episodes", "2", "--temperature", "0", "--max-new-tokens", "3", "--param", "max_steps=2"]
    said(capsys, "eval", "done", "--out", "ev_run", "--game", "frozen_lake", *options)
    # A run's settings of the game hold for its panels; a bare model has none.
    options += ["--param", "size=3", "--param", "coordinates=false"]
    said(capsys, "eval", "out/model", "--out", "ev_model", "--game", "frozen_lake", *options)
    ids = [
        [json.loads(line)["trajectory"]["steps"][0]["completion_ids"] for line in lines[1:]]
        for folder in ("ev_run", "ev_model")
        if (lines := (Path(folder) / "episodes.jsonl").read_text().splitlines())
    ]
    assert ids[0] == ids[1]


def test_a_game_of_ones_own_trains_from_the_command_line(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    assert "actions: one, two, three" in said(capsys, "games", "own_game:Nim")
    options = ["--set", "game.name=own_game:Nim", "--set", "game.params={}", "--set", "algorithm.num_iterations=1"]
    text = said(capsys, "train", "tiny", "--name", "nim", *FAST, *options)
    assert "The first episode of own_game:Nim after training:" in text
    assert "own_game:Nim" in said(capsys, "view", "nim", "--text")
    document = (ROOT / "docs/games.md").read_text().replace("\\\n", " ")
    words = re.search(r"stratagem (train frozen_lake_demo .*own_game:Nim.*)", document)
    assert words is not None
    parsed = verb_parser("train").parse_args(shlex.split(words[1])[1:])
    build_experiment(load_recipe(parsed.recipe, parsed.overrides))  # refuses what a run would refuse
    assert "own_game:Nim" in said(capsys, "eval", "nim", "--episodes", "2")


# ---- eval ------------------------------------------------------------------------------------------------------------


def test_a_policy_is_evaluated_and_saved(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "eval", "planner", "--game", "FrozenLake-NotSlippery", "--episodes", "4")
    assert "1.000 [1.000, 1.000]" in text
    assert text.endswith(f"saved in {Path('evaluations/planner-FrozenLake-NotSlippery-1')}\n")
    settings = json.loads(Path("evaluations/planner-FrozenLake-NotSlippery-1/settings.json").read_text())
    assert settings["who.policy"] == "planner"
    assert settings["tokens"] == {"prompt": 0, "completion": 0}


def test_a_run_brings_its_own_game_and_counts_tokens(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "eval", "done", "--episodes", "3", "--out", "ev_done")
    assert re.search(r"tokens: [\d,]+ in prompts, [\d,]+ generated", text)
    # The same panel, seed and draws as the run's last evaluation.
    final = json.loads(Path("runs/done/evaluation/final/FrozenLake-NotSlippery.json").read_text())
    assert json.loads(Path("ev_done/result.json").read_text()) == final


def test_an_interrupted_evaluation_plays_only_what_is_missing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("eval", "done", "--episodes", "3", "--out", "ev_part")
    said(capsys, *words)
    result = Path("ev_part/result.json").read_bytes()
    log = Path("ev_part/episodes.jsonl")
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:3]) + lines[3][:20])  # two episodes, and a torn third
    refused(
        capsys,
        f"{str(log)!r} exists; continue that evaluation with --resume, or name another folder with --out.",
        *words,
    )
    assert said(capsys, *words, "--resume").startswith("done on FrozenLake-NotSlippery: 3 episodes, 2 done\n")
    assert Path("ev_part/result.json").read_bytes() == result
    refused(
        capsys,
        f"{str(log)!r} holds another evaluation; different: who.temperature (1.0 -> 0.5). Name another folder with "
        "--out.",
        *words,
        "--resume",
        "--temperature",
        "0.5",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["random"], "--game is missing; name a game or variant of `stratagem games`."),
        (
            ["random", "--game", "snake", "--resume"],
            "--resume needs the folder of the evaluation; give it with --out.",
        ),
        (
            ["random", "--game", "snake", "--temperature", "1"],
            "--temperature has no effect on policy 'random', which asks no model; leave it out.",
        ),
        (
            ["tiny", "--game", "snake", "--api-key-env", "KEY"],
            "--api-key-env has no effect without --base-url; give both, or leave it out.",
        ),
        (
            ["m", "--game", "snake", "--base-url", "http://127.0.0.1:9/v1"],
            "--template 'action' begins the answer with '<action>', which many servers cannot; choose another, such as "
            "--template think_action, or give --continue-assistant for vLLM or SGLang.",
        ),
        (
            ["m", "--game", "snake", "--base-url", "http://127.0.0.1:9/v1", "--dtype", "float32"],
            "--dtype has no effect with --base-url, where the server decides; leave it out.",
        ),
        (
            ["random", "--game", "snake", "--param", "width"],
            "--param 'width' is not an assignment; write key=value, for example size=8.",
        ),
    ],
    ids=["no_game", "resume", "policy_option", "key", "served_prefix", "served_option", "param"],
)
def test_options_without_effect_are_refused(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    refused(capsys, message, "eval", *words)


def test_nobody_of_that_name(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "plannr", "--game", "snake"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: Unknown policy, run or model 'plannr'. Did you mean 'planner'? Available: done, planner, random, "
    )


class Answering(BaseHTTPRequestHandler):
    """A chat server that always goes right."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "<action>right</action>"}
        usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
        answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


def test_a_served_model_is_evaluated_and_its_tokens_are_counted(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            text = said(
                capsys,
                *("eval", "my/model", "--base-url", f"http://127.0.0.1:{server.server_port}/v1", "--out", "ev_served"),
                *(
                    "--game",
                    "frozen_lake",
                    "--param",
                    "board=['SG', 'FF']",
                    "--episodes",
                    "2",
                    "--template",
                    "think_action",
                ),
            )
        finally:
            server.shutdown()
    # Two episodes of one step: twice the 100 and 5 tokens that the server reports.
    assert "tokens: 200 in prompts, 10 generated\n" in text
    assert json.loads(Path("ev_served/result.json").read_text())["mean"] == 1.0
    assert json.loads(Path("ev_served/settings.json").read_text())["tokens"]["requests"] == 2


# ---- play, games, models, doctor -------------------------------------------------------------------------------------


def type_in(monkeypatch: pytest.MonkeyPatch, *lines: str) -> list[str]:
    """Type lines, then end the input; return the list in which what was asked appears."""
    waiting = iter(lines)
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", answer)
    return asked


def test_a_game_is_played_by_hand(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    board = ("--param", "board=['SF', 'FG']")
    # The prompt lists up, down, left, right, and so does the menu; "do" begins one word only.
    asked = type_in(monkeypatch, "jump", "4", "do")
    text = said(capsys, "play", "frozen_lake", *board)
    assert asked == ["1 up  2 down  3 left  4 right  (q quits) > "] * 3
    assert text.count("P _\n_ G\n") == 1  # the board at the start is part of the prompt
    assert "'jump' is none of them; type a word or its number, or an empty line for no action.\n" in text
    assert "step 1: right | reward +0\n" in text
    assert "step 2: down | reward +1\n" in text
    assert text.endswith("end: terminated, success, return +1 in 2 steps (best expected return 1.000)\n")
    type_in(monkeypatch, "", "q")
    text = said(capsys, "play", "frozen_lake", *board)
    assert "step 1: no action | reward +0\n" in text
    assert text.endswith("\nbye\n")
    type_in(monkeypatch)
    assert said(capsys, "play", "frozen_lake", *board).endswith("\nbye\n")


def test_somebody_is_watched(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "play", "Snake-Standard", "--policy", "planner", "--seed", "3", "--param", "max_steps=3")
    assert text.startswith("planner plays Snake-Standard, seed 3\n")
    assert (
        said(capsys, "play", "Snake-Standard", "--policy", "planner", "--seed", "3", "--param", "max_steps=3") == text
    )
    text = said(capsys, "play", "frozen_lake", "--policy", "done", "--param", "max_steps=2")
    assert text.startswith("done plays frozen_lake, seed 0\n")
    assert "without a valid action" in text
    refused(capsys, "--delay -1.0 is negative; use 0 or more seconds.", "play", "snake", "--delay", "-1")


def test_games_are_listed_and_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "games")
    assert re.search(r"Snake-Poison .*snake with apple_reward=-1.0 .*2 .*100 .*yes .*no", text)
    text = said(capsys, "games", "frozen_lake", "--param", "size=3", "--reference")
    assert "  size = 3\n" in text
    assert "actions: left, down, right, up\n" in text
    assert re.search(r"planner .*100.0%", text)
    refused(
        capsys,
        "--reference and --param need a game; name one of `stratagem games`.",
        *("games", "--reference"),
    )


def test_models_are_listed_with_their_place(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "models")
    assert re.search(r"smollm2-135m-instruct .*135M .*Apache-2.0 .*not yet; fetched when first used", text)
    assert "tiny" in text


def test_the_doctor_finds_this_machine_fit(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_doctor, "_MATMUL_SECONDS", 0.05)
    text = said(capsys, "doctor")
    assert text.startswith("ok    stratagem")
    assert "GFLOP/s in float32" in text
    assert text.endswith("This machine is fit. Try: stratagem train tiny\n")


def test_the_doctor_says_that_its_speed_was_measured_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_doctor, "_matmul_rate", lambda dtype: 120.0)
    monkeypatch.setattr(cli_doctor, "load_average", lambda: 1.9)
    monkeypatch.setattr(cli_doctor, "busy_with", lambda limit: 1.9)
    cores = os.cpu_count()
    assert cli_doctor._speed() == Check(
        "speed",
        f"120 GFLOP/s in float32, 120 in bfloat16, at a load of 1.9 on {cores} cores",
        "The machine is busy with other work, so it is faster than that; ask again when it is idle.",
    )
    monkeypatch.setattr(cli_doctor, "busy_with", lambda limit: None)
    monkeypatch.setattr(cli_doctor, "load_average", lambda: None)
    assert cli_doctor._speed() == Check("speed", "120 GFLOP/s in float32, 120 in bfloat16")


def test_the_doctor_gives_advice_where_something_is_broken(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Check("torch", "ImportError: no", "Install it again: pip install --force-reinstall torch", True)
    monkeypatch.setattr(cli_doctor, "_package", lambda name: broken if name == "torch" else Check(name, "1"))
    text = said(capsys, "doctor", code=1)
    assert "FAIL  torch        ImportError: no\n" in text
    assert "Install it again: pip install --force-reinstall torch\n" in text
    assert text.endswith("broken: torch\n")
