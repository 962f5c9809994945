"""Take the pictures of docs/page.md: the real page on real runs, in Chromium.

    python docs/images/page.py RUN [OTHER ...]

RUN is a run folder; the others stand beside it in the comparison. Needs the extras ``page`` and ``dev``, and Chromium.
The picture of tokens by change of probability needs ``stratagem logprobs RUN --iterations N`` before; which N is said
where it is missing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from stratagem.data.token_logprobs import list_weights
from stratagem.page.data import RunData
from stratagem.page.store import EpisodeRow

HERE = Path(__file__).resolve().parent
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


def choose(run: RunData) -> EpisodeRow:
    """Return a success of middling length from a group that has both outcomes, early enough to be won by few."""
    found: list[tuple[float, EpisodeRow]] = []
    for iteration in run.store.iterations():
        rows = run.store.index(iteration)
        for group in sorted({row.group for row in rows}):
            members = [row for row in rows if row.group == group]
            wins = [row for row in members if row.success]
            if wins and len(wins) < len(members):
                middle = sorted(wins, key=lambda row: row.num_steps)[len(wins) // 2]
                found.append((abs(len(wins) / len(members) - 0.4), middle))
    return min(found, key=lambda item: item[0])[1] if found else run.store.index(run.store.iterations()[-1])[0]


def settle(page: Page) -> None:
    """Wait for everything that is read in pieces."""
    page.wait_for_function("() => !document.querySelector('[data-pending]')", timeout=60_000)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the runs, open each view, write the pictures beside this file."""
    paths = [Path(path).resolve() for path in (sys.argv[1:] if argv is None else argv)]
    row = choose(RunData(paths[0], paths[0].name))
    run = f"/run/{paths[0].name}"
    group = f"{run}/iteration/{row.iteration}/group/{row.group}"
    film, step = f"{group}/episode/{row.episode}", f"#step-{max(1, row.num_steps - 1)}"
    known = list_weights(paths[0], row.iteration)
    if len(known) < 2:
        print(f"no page_change.png: run stratagem logprobs {paths[0]} --iterations {row.iteration}")
    command = [sys.executable, "-m", "stratagem.cli", "view", "--page", "--no-browser", *map(str, paths)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as viewer, sync_playwright() as driver:
        assert viewer.stdout is not None
        address, _, token = viewer.stdout.readline().strip().partition("?")
        with tempfile.TemporaryDirectory() as profile:
            context = driver.chromium.launch_persistent_context(
                profile, executable_path=shutil.which("chromium"), args=FLAGS, headless=True,
                viewport={"width": 1280, "height": 860},
            )  # fmt: skip
            page = context.new_page()
            page.goto(f"{address}?{token}")
            for name, path, dark in (
                ("page_runs", "/", False),
                ("page_run", run, False),
                ("page_episodes", f"{run}/episodes?from={row.iteration}&to={row.iteration}", False),
                ("page_episode", film + step, False),
                ("page_group", group, True),
                ("page_change", f"{film}?change={known[0]}:{known[-1]}{step}" if len(known) > 1 else None, False),
            ):
                if path is None:
                    continue
                page.goto(address.rstrip("/") + path)
                settle(page)
                if name == "page_group":
                    page.keyboard.press("ArrowRight")
                if name == "page_change":
                    page.locator(".step.now summary", has_text="Values").click()
                    page.evaluate("scrollTo(0, 0)")
                if dark:
                    page.keyboard.press("t")
                page.screenshot(path=HERE / f"{name}.png")
                if dark:
                    page.keyboard.press("t")
            context.close()
        viewer.send_signal(2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
