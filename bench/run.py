"""Measure speed and memory side by side with what a user would pick instead.

    python bench/run.py all                 everything; about 15 minutes on two cores that do nothing else
    python bench/run.py train --only a d    some workloads
    python bench/run.py all --quick         seconds; shows that everything runs, keeps nothing

Every number is kept as a record under ``results/``; ``docs/performance.md`` quotes them. A side that cannot run here is
named with its reason and keeps no record.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

# Before anything imports torch or huggingface_hub, which read these once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import precision
import sampling
import torch
from iteration import MAX_TOKENS as MEMORY_TOKENS
from iteration import compare as compare_iterations
from iteration import peak_of_iteration
from keeper import Keeper
from measure import NotRun, cores, peak_gib, run_child
from rich.console import Console
from training import MAX_TOKENS, RowByRow, TrainingResult, tree_pass
from training import compare as compare_training
from workloads import LETTERS, Workload, build

from stratagem.evaluation.tables import Table
from stratagem.models.catalog import ModelConfig
from stratagem.models.local import LocalModel

DEFAULT_MODEL = "smollm2-135m-instruct"
PEAKED = ("a", "d")
MIXED_TRAINED, MIXED_SAMPLED = ("a", "c", "d"), ("a", "d")
SAMPLED = ("a", "b", "c", "d", "e")
FLOORED = ("a", "b", "c", "d")


def run_train(options: argparse.Namespace, keeper: Keeper, console: Console) -> None:
    model = LocalModel.load(ModelConfig(name=options.model))
    peer = RowByRow(options.model)
    letters = [letter for letter in options.only if letter in LETTERS]
    cells = []
    for letter in letters:
        workload = _workload(letter, model, options)
        if letter == letters[0]:
            tree_pass(model, workload.rows[:4])  # warms up
            peer.tune(workload.rows)
            options.budget = peer.budget
            console.print(f"Row by row: {peer.budget} padded tokens in a micro-batch were fastest.")
        try:
            result = compare_training(model, peer, workload, options.repeats, quick=options.quick)
        except NotRun as reason:
            console.print(f"({letter}) not run: {reason}")
            continue
        peaks = [_child_peak(side, letter, options, console) for side in ("tree", "rows")]
        cells.append(_train_cells(result, peaks))
        _keep_training(keeper, result)
        if letter == "a":
            _full_size(model, result, options, keeper, console)
    headers = (
        "training pass", "tokens seen", "padded", "computed", "rows s", "tree s", "speed-up", "of floor", "build",
        "rows GiB", "tree GiB", "gradient gap",
    )  # fmt: skip
    console.print(Table(headers, tuple(cells)).rich("Forward and backward, float32"))


def _train_cells(result: TrainingResult, peaks: Sequence[float | None]) -> tuple[str, ...]:
    tree, rows = ("-" if peak is None else f"{peak:.2f}" for peak in peaks)
    return (
        f"({result.workload.letter}) {result.workload.title}",
        f"{result.workload.num_row_tokens:,}",
        f"{result.padded:,}",
        f"{result.computed:,}",
        f"{statistics.median(result.timing.theirs):.2f}",
        f"{statistics.median(result.timing.ours):.2f}",
        f"{result.timing.speedup:.2f}x [{min(result.timing.ratios):.2f}, {max(result.timing.ratios):.2f}]",
        f"{result.floor_share:.0%}",
        f"{result.build_share:.1%}",
        rows,
        tree,
        f"{result.gradient_gap:.0e}",
    )


def _keep_training(keeper: Keeper, result: TrainingResult) -> None:
    workload = result.workload
    counts = f"{workload.num_row_tokens:,} tokens row by row, {result.computed:,} on the tree"
    keeper.keep(
        f"tree.train.speedup.{workload.letter}",
        round(result.timing.speedup, 3),
        "times as fast",
        f"({workload.letter}) {workload.title}: {counts}; {result.timing.describe()}",
    )
    if workload.letter in FLOORED:
        keeper.keep(
            f"tree.train.matmul_share.{workload.letter}",
            round(100 * result.floor_share, 1),
            "%",
            f"({workload.letter}) {workload.title}: time of the unavoidable matrix products "
            f"({result.floor.flops / 1e9:,.0f} GFLOP at {result.floor.rate / 1e9:.0f} GFLOP/s) over that of the pass",
        )


def _full_size(
    model: LocalModel, small: TrainingResult, options: argparse.Namespace, keeper: Keeper, console: Console
) -> None:
    """Time our pass at the size of a real iteration; row by row is scaled from what was just measured, per token."""
    workload = _workload("a_full", model, options)
    seconds = []
    for _ in range(2):
        model.module.zero_grad(set_to_none=True)
        start = time.perf_counter()
        _, computed = tree_pass(model, workload.rows)
        seconds.append(time.perf_counter() - start)
    model.module.zero_grad(set_to_none=True)
    theirs = statistics.median(small.timing.theirs) / small.workload.num_row_tokens * workload.num_row_tokens
    speedup = theirs / min(seconds)
    counts = f"{workload.num_row_tokens:,} tokens row by row, {computed:,} on the tree"
    console.print(f"(a) at full size, {workload.title}: {counts}; tree {min(seconds):.1f} s, row by row {theirs:.0f} s "
                  f"(scaled from (a) by tokens), {speedup:.1f}x")  # fmt: skip
    note = f"(a) {workload.title}: {counts}; row by row estimated from the time per token of the smaller (a)"
    keeper.keep("tree.train.speedup.a_full", round(speedup, 2), "times as fast", note)


def run_sample(options: argparse.Namespace, keeper: Keeper, console: Console) -> None:
    model = sampling.load(options.model)
    peer = sampling.Generate(options.model)
    workloads = [_workload(letter, model, options, sampled=True) for letter in SAMPLED if letter in options.only]
    longest = max(len(prompt) for w in workloads for prompt in w.prompts) + max(w.max_new_tokens for w in workloads)
    start = f"vLLM in {options.vllm_dtype} on core {cores(options.threads)}"
    vllm = None
    if "vllm" in options.without:
        console.print("vLLM not run: left out with --without.")
    else:
        settings = (options.model, options.vllm_dtype, options.threads, longest + 8)
        vllm = _try(console, start, lambda: sampling.Vllm(*settings))
    if vllm is not None:
        console.print(f"{start}: started in {vllm.start_seconds:.0f} s.")
    cells = []
    try:
        for workload in workloads:
            result = _try(
                console,
                f"({workload.letter})",
                lambda w=workload: sampling.compare(model, peer, vllm, w, options.repeats),
            )
            if result is None:
                continue
            against = result.vllm
            cells.append(
                (
                    f"({workload.letter}) {workload.title}",
                    f"{result.new_tokens:,}",
                    f"{result.computed:,}",
                    f"{result.rate(result.timing.theirs):.1f}",
                    "not run" if against is None else f"{result.rate(against.theirs):.1f}",
                    f"{result.rate(result.timing.ours):.1f}",
                    f"{result.timing.speedup:.2f}x [{min(result.timing.ratios):.2f}, {max(result.timing.ratios):.2f}]",
                    "-" if against is None else f"{against.speedup:.2f}x",
                )
            )
            title = f"({workload.letter}) {workload.title}, {workload.max_new_tokens} new tokens each"
            keeper.keep(
                f"tree.sample.speedup.{workload.letter}",
                round(result.timing.speedup, 3),
                "times as fast",
                f"{title}, against transformers generate: {result.rate(result.timing.theirs):.0f} and "
                f"{result.rate(result.timing.ours):.0f} new tokens/s; {result.timing.describe()}",
            )
            if against is not None:
                keeper.keep(
                    f"tree.sample.vs_vllm.{workload.letter}",
                    round(against.speedup, 3),
                    "times as fast",
                    f"{title}, against vLLM ({options.vllm_dtype}): {result.rate(against.theirs):.0f} and "
                    f"{result.rate(against.ours):.0f} new tokens/s; {against.describe()}",
                )
    finally:
        if vllm is not None:
            vllm.close()
    headers = (
        "sampling", "new tokens", "computed", "generate tok/s", "vLLM tok/s", "tree tok/s", "vs generate", "vs vLLM",
    )  # fmt: skip
    console.print(Table(headers, tuple(cells)).rich("New tokens per second, prompts included"))


def run_iteration(options: argparse.Namespace, keeper: Keeper, console: Console) -> None:
    if "trl" in options.without:
        console.print("Iteration against TRL not run: left out with --without.")
        return
    result = _try(
        console,
        "Iteration against TRL",
        lambda: compare_iterations(options.model, options.repeats, options.threads, quick=options.quick),
    )
    if result is None:
        return
    timing = result.timing
    row = (
        f"{result.our_pairs} steps, {result.new_tokens} new tokens each",
        f"{statistics.median(timing.theirs):.1f}",
        f"{statistics.median(timing.ours):.1f}",
        f"{timing.speedup:.2f}x [{min(timing.ratios):.2f}, {max(timing.ratios):.2f}]",
    )
    full = (
        f"{result.full_pairs} steps (TRL scaled from {result.their_pairs} pairs)",
        f"{result.full_speedup * result.full_seconds:.0f}",
        f"{result.full_seconds:.1f}",
        f"{result.full_speedup:.1f}x",
    )
    console.print(Table(("one iteration on Frozen Lake", "TRL s", "ours s", "speed-up"), (row, full)).rich())
    keeper.keep(
        "tree.iteration.vs_trl",
        round(timing.speedup, 3),
        "times as fast",
        f"One MS-GRPO iteration on Frozen Lake, {result.our_pairs} steps, against TRL's GRPOTrainer on as many pairs "
        f"of {result.new_tokens} new tokens (run with {result.their_pairs}): {timing.describe()}",
    )
    keeper.keep(
        "tree.iteration.vs_trl_full",
        round(result.full_speedup, 2),
        "times as fast",
        f"The same with 4 boards x 32 episodes, {result.full_pairs} steps in {result.full_seconds:.0f} s; TRL "
        f"estimated from its time per pair",
    )


def run_memory(options: argparse.Namespace, keeper: Keeper, console: Console) -> None:
    arguments = ["child-memory", "--model", options.model, *(["--quick"] if options.quick else [])]
    found = _try(console, "Peak memory", lambda: run_child(arguments, options.threads))
    if found is None:
        return
    text = (
        f"One iteration of MS-GRPO on Frozen Lake, G={found['group_size']:.0f}, all weights in float32 with AdamW, "
        f"{found['steps']:.0f} steps, {found['tokens_seen']:,.0f} tokens seen, {found['tokens_computed']:,.0f} "
        f"computed in passes of at most {MEMORY_TOKENS:,}, {found['seconds']:.0f} s"
    )
    console.print(f"{text}: {found['gib']:.2f} GiB at the peak")
    keeper.keep("tree.peak_gib.g256", round(found["gib"], 2), "GiB", text)


def run_precision(options: argparse.Namespace, keeper: Keeper, console: Console) -> None:
    sides = precision.Sides(options.model)
    cells = []
    for kind, letters in (("train", MIXED_TRAINED), ("sample", MIXED_SAMPLED)):
        for letter in (letter for letter in letters if letter in options.only):
            workload = _workload(letter, sides.exact, options, sampled=kind == "sample")
            compare = precision.compare_training if kind == "train" else precision.compare_sampling
            result = _try(console, f"({letter})", lambda c=compare, w=workload: c(sides, w, options.repeats))
            if result is None:
                continue
            timing = result.timing
            gap = f"{result.gap:.3f}" if kind == "train" else "-"
            cells.append(
                (
                    f"{kind} ({letter}) {workload.title}",
                    f"{statistics.median(timing.theirs):.2f}",
                    f"{statistics.median(timing.ours):.2f}",
                    f"{timing.speedup:.2f}x [{min(timing.ratios):.2f}, {max(timing.ratios):.2f}]",
                    gap,
                )
            )
            what = "forward and backward" if kind == "train" else f"{workload.max_new_tokens} new tokens each"
            error = f"; log-probabilities off by {result.gap:.3f} nats in the mean" if kind == "train" else ""
            keeper.keep(
                f"mixed.{kind}.speedup.{letter}",
                round(timing.speedup, 3),
                "times as fast",
                f"({letter}) {workload.title}, {what}: products in bfloat16 against float32, "
                f"{timing.describe()}{error}",
            )
    headers = ("products in bfloat16", "float32 s", "bfloat16 s", "speed-up", "gap")
    console.print(Table(headers, tuple(cells)).rich("Weights in float32"))


def child_memory(options: argparse.Namespace) -> None:
    print(json.dumps(peak_of_iteration(options.model, quick=options.quick)))


def child_peak(options: argparse.Namespace) -> None:
    """Train two passes or two micro-batches of a workload (memory does not grow after that) and print the peak."""
    model = LocalModel.load(ModelConfig(name=options.model))
    rows = build(options.only[0], model, model.module.config.vocab_size, quick=options.quick).rows
    if options.side == "tree":
        part = [i for part in model.split(rows, MAX_TOKENS)[:2] for i in part]
        tree_pass(model, [rows[i] for i in part])
    else:
        del model
        peer = RowByRow(options.model)
        peer.budget = options.budget
        part = [i for part in peer.micro_batches(rows)[:2] for i in part]
        peer.run([rows[i] for i in part])
    print(json.dumps({"gib": peak_gib()}))


def _child_peak(side: str, letter: str, options: argparse.Namespace, console: Console) -> float | None:
    if letter not in PEAKED or options.quick:
        return None
    arguments = ["child-peak", "--side", side, "--only", letter, "--model", options.model]
    arguments += ["--budget", str(options.budget), *(["--quick"] if options.quick else [])]
    found = _try(console, f"({letter}) peak of {side}", lambda: run_child(arguments, options.threads))
    return None if found is None else float(found["gib"])


def _workload(letter: str, model: LocalModel, options: argparse.Namespace, *, sampled: bool = False) -> Workload:
    return build(letter, model, model.module.config.vocab_size, quick=options.quick, sampled=sampled)


def _try(console: Console, what: str, run: Callable[[], Any]) -> Any:
    try:
        return run()
    except NotRun as reason:
        console.print(f"{what} not run: {reason}", markup=False)
        return None


PARTS = {
    "train": run_train,
    "sample": run_sample,
    "iteration": run_iteration,
    "memory": run_memory,
    "precision": run_precision,
}
CHILDREN = {"child-memory": child_memory, "child-peak": child_peak}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a part of the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="bench/run.py", description=main.__doc__)
    parser.add_argument("part", choices=["all", *PARTS, *CHILDREN], metavar=f"{{all,{','.join(PARTS)}}}")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="catalog name or folder")
    parser.add_argument(
        "--only", nargs="+", choices=LETTERS, default=list(LETTERS), help="workloads of train and sample"
    )
    parser.add_argument("--repeats", type=int, help="alternating pairs (3; 1 with --quick)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of every side (2)")
    parser.add_argument("--without", nargs="+", choices=["vllm", "trl"], default=[], help="peers to leave out")
    parser.add_argument("--vllm-dtype", default="float32", choices=["float32", "bfloat16"], help="of vLLM (float32)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; no records unless --results is given")
    parser.add_argument("--results", metavar="FOLDER", help="where records go (results)")
    parser.add_argument("--side", choices=["tree", "rows"], help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=int, default=1024, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    options.given = sys.argv[1:] if argv is None else list(argv)
    if options.repeats is None:
        options.repeats = 1 if options.quick else 3
    if options.results is None and not options.quick:
        options.results = "results"
    torch.set_num_threads(options.threads)
    if options.part in CHILDREN:
        CHILDREN[options.part](options)
        return 0
    console = Console(width=None if sys.stdout.isatty() else 200)
    keeper = Keeper(options, "bench/run.py")
    console.print(f"{options.model} on {keeper.machine}, commit {keeper.commit[:9]}", markup=False)
    for part in PARTS if options.part == "all" else [options.part]:
        start = time.perf_counter()
        PARTS[part](options, keeper, console)
        console.print(f"{part}: {time.perf_counter() - start:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
