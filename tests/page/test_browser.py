"""The page in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
pytestmark = pytest.mark.skipif(
    not Path(CHROMIUM).exists(), reason="Chromium is not installed: apt-get install -y chromium"
)
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
NewRun = Callable[..., Path]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            str(tmp_path_factory.mktemp("profile")), executable_path=CHROMIUM, args=FLAGS, headless=True,
            viewport={"width": 1280, "height": 800},
        )  # fmt: skip
        context.set_default_timeout(15_000)
        yield context
        context.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """A page whose errors, dialogs and refused resources fail the test."""
    page = browser.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: (wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
    yield page
    page.close()
    # A test ends its server first, and the page may ask once more before it is closed.
    assert [text for text in wrong if "ERR_CONNECTION_REFUSED" not in text] == []


def cells(tab: Any, selector: str) -> list[list[str]]:
    read = "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => cell.innerText.trim()))"
    found: list[list[str]] = tab.locator(f"{selector} tbody tr").evaluate_all(read)
    return found


def test_a_recorded_run_shows_its_numbers(tab: Any, new_run: NewRun, serve_page: Any) -> None:
    run = new_run("first", iterations=3)
    new_run("second", iterations=2, rate=1e-3, finished=False)
    with serve_page([run.parent]) as address:
        tab.goto(address)
        rows = {row[1]: row for row in cells(tab, "#runs")}
        # Return 0.3 and success 3/8 at iteration 3; one of four wins before, three after.
        assert rows["first"][2:9] == ["finished", "FrozenLake-NotSlippery", "tiny", "0", "3/3", "0.3", "37.5%"]
        assert rows["first"][9] == "0.25" and rows["first"][10].startswith("0.750 [")
        assert rows["second"][2] == "stopped" and rows["second"][10].endswith("*")
        assert cells(tab, "#settings")[:2] == [
            ["algorithm.num_iterations", "2", "3"],
            ["algorithm.learning_rate", "0.001", "0.0001"],
        ]
        label = tab.locator("svg.chart").first.get_attribute("aria-label")
        assert label == "Return, training episodes, last: second 0.2; first 0.3"
        tab.get_by_role("link", name="first", exact=True).first.click()
        facts = dict(
            zip(tab.locator(".facts dt").all_inner_texts(), tab.locator(".facts dd").all_inner_texts(), strict=True)
        )
        assert facts == {
            "Return": "0.300", "Success": "37.5%", "Valid actions": "87.5%", "Groups without signal": "25%",
            "Tokens saved": "75.0%", "Time": "0.2 min",
        }  # fmt: skip
        labels = tab.locator("svg.chart").evaluate_all(
            "charts => charts.map(chart => chart.getAttribute('aria-label'))"
        )
        assert "Success, last: training episodes 37.5%" in labels
        assert "Seconds per iteration, last: play 2; update 3" in labels
        # Of six episodes in each iteration one wins, four fall, one strays until the end.
        assert "How episodes ended, last: success 16.7%; terminated without success 66.7%; max_steps 16.7%" in labels
        panel = cells(tab, "table.panel")
        assert [row[0] for row in panel] == ["start", "final"]
        # One and three of four episodes are won: returns 1, 0, 0, 0 deviate by sqrt(3 / 16 * 4 / 3) = 0.5.
        assert [row[2:4] for row in panel] == [["0.5", "25.0%"], ["0.5", "75.0%"]]
        assert [row[-1] for row in panel] == ["terminated 4", "terminated 4"]
        tab.locator("svg[data-chart]").first.hover()
        assert "iteration 2\ntraining episodes: 0.2" in tab.locator(".tip-box").inner_text()


def test_episodes_are_filtered_and_sorted(tab: Any, new_run: NewRun, serve_page: Any) -> None:
    run = new_run("first", iterations=3, said="I am LOST")
    with serve_page([run.parent]) as address:
        tab.goto(f"{address}/run/first/episodes")
        assert tab.locator("#count").inner_text() == "6 of 6 episodes"
        assert [row[4] for row in cells(tab, "#episodes")] == ["+1.500", *["+0.000"] * 3, "-0.500", "-1.000"]
        tab.get_by_role("link", name="All iterations").click()
        assert tab.locator("#count").inner_text() == "18 of 18 episodes"
        tab.get_by_label("Outcome").select_option("success")  # the form sends itself
        tab.wait_for_url("**outcome=success**")
        assert [(row[0], row[1], row[2]) for row in cells(tab, "#episodes")] == [
            ("1", "0", "1"), ("2", "0", "1"), ("3", "0", "1")
        ]  # fmt: skip
        tab.get_by_label("Outcome").select_option("")
        tab.wait_for_url("**outcome=&**")
        tab.get_by_label("Ended by").select_option("max_steps")
        tab.wait_for_url("**stop=max_steps**")
        assert {row[8] for row in cells(tab, "#episodes")} == {"max steps"}
        tab.goto(f"{address}/run/first/episodes?from=2&to=2")
        tab.get_by_role("searchbox").fill("lost")
        tab.get_by_role("searchbox").press("Enter")
        tab.wait_for_url("**text=lost**")
        assert [row[2] for row in cells(tab, "#episodes")] == ["2"]
        tab.get_by_role("searchbox").fill("nowhere")
        tab.get_by_role("searchbox").press("Enter")
        tab.get_by_text("No episode passes the filter.").wait_for()


def test_an_episode_is_stepped_through_with_keys(tab: Any, new_run: NewRun, serve_page: Any) -> None:
    run = new_run("first", iterations=1, said="<think>hm</think>")
    with serve_page([run.parent]) as address:
        tab.goto(f"{address}/run/first/iteration/1/group/0/episode/2")
        assert tab.locator("#at").inner_text() == "1 of 3"
        assert tab.locator(".step:visible").count() == 1
        tab.keyboard.press("ArrowRight")
        assert tab.locator("#at").inner_text() == "2 of 3"
        step = tab.locator(".step:visible")
        assert step.locator(".error").inner_text() == "no closing tag; the game was given no action"
        facts = dict(zip(step.locator("dt").all_inner_texts(), step.locator("dd").all_inner_texts(), strict=True))
        assert (facts["Action"], facts["Reward"], facts["Invalid"], facts["So far"]) == (
            "none",
            "+0.00",
            "-0.50",
            "-0.50",
        )
        assert step.locator(".said > .tokens").inner_text() == "<think>hm</think><|im_end|>"
        assert step.locator(".said > .tokens .special").all_inner_texts() == ["<|im_end|>"]
        assert "minus" in str(step.locator(".said > .tokens").get_attribute("class"))
        prompt = step.locator("details pre").inner_text()
        assert prompt.startswith("<|im_start|>user") and prompt.endswith("assistant\n<action>")
        assert step.locator("details .special").count() == 3
        tab.keyboard.press("o")
        assert not step.locator("details pre").is_visible()
        tab.keyboard.press("End")
        assert tab.locator("#at").inner_text() == "3 of 3"
        assert tab.url.endswith("#step-3")
        tab.keyboard.press("p")
        tab.wait_for_url("**/episode/1**")
        assert tab.locator(".step").count() == 6
        assert tab.locator(".step:visible svg.board").get_attribute("aria-label") == (
            "Frozen Lake: player at column 0, row 3, goes down"
        )
        tab.goto(f"{address}/run/first/iteration/1/group/0")
        titles = tab.locator("article h2 a").all_inner_texts()
        assert titles == ["Episode 1", "Episode 0", "Episode 2"]  # by advantage: 1.5, -0.5, -1
        tab.keyboard.press("ArrowRight")
        moves = [card.locator(".actions li.now").inner_text() for card in tab.locator("article").all()]
        assert moves == ["\u2193", "\u2192", "\u2715"]
        tab.goto(f"{address}/run/first/evaluation/final/FrozenLake-NotSlippery/episode/3")
        assert "terminated, no success" in tab.locator(".sub").inner_text()


def test_tokens_take_the_colour_of_their_change_and_the_step_stays(
    tab: Any, new_run: NewRun, add_change: Callable[..., None], serve_page: Any
) -> None:
    run = new_run("first", iterations=1)
    add_change(run, "start", 0.0)
    add_change(run, "000001", -0.5)  # every token became 1.65 times less probable
    with serve_page([run.parent]) as address:
        tab.goto(f"{address}/run/first/iteration/1/group/0/episode/1#step-2")
        assert tab.locator("#at").inner_text() == "2 of 6"
        tab.get_by_label("Colour of a token").select_option("start:000001")  # the form sends itself
        tab.wait_for_url("**change=start%3A000001**")
        assert tab.locator("#at").inner_text() == "2 of 6"
        step = tab.locator(".step:visible")
        assert set(step.locator(".answer span").evaluate_all("spans => spans.map(span => span.className)")) == {
            "s0 minus2", "s0 special minus2"
        }  # fmt: skip
        colours = step.locator(".answer span").evaluate_all(
            "spans => spans.map(span => getComputedStyle(span).borderBottomStyle)"
        )
        assert set(colours) == {"dotted"}  # told apart without a colour as well
        assert tab.get_by_role("list", name="Probability of a token").get_by_role("listitem").count() == 9
        step.locator("summary", has_text="Values").click()
        assert cells(tab, ".step.now .values")[0] == ["d", "99.0%", "60.0%", "-0.500"]
        tab.keyboard.press("o")  # of the prompt, not of the values
        assert not step.locator("details.prompt pre").is_visible()
        assert step.locator("details.values table").is_visible()
        tab.set_viewport_size({"width": 390, "height": 800})
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        tab.set_viewport_size({"width": 1280, "height": 800})
        tab.keyboard.press("p")
        tab.wait_for_url("**/episode/0?change=start%3A000001**")


def test_the_page_follows_a_run_that_is_written(
    tab: Any, new_run: NewRun, grow: Callable[..., None], serve_page: Any
) -> None:
    run = new_run("first", iterations=0, finished=False)
    (run / ".lock").write_text(f"{os.getpid()}\n")
    with serve_page([run.parent]) as address:
        tab.goto(f"{address}/run/first")
        tab.get_by_text("Nothing yet").wait_for()
        grow(run, 1)
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"iteration": 2, "ret')  # killed here, or still being written
        tab.get_by_text("iteration 1 of 1").wait_for()
        assert tab.locator(".tag.training").count() == 1
        assert tab.locator("#live").is_visible()
        text = (run / "metrics.jsonl").read_text()
        (run / "metrics.jsonl").write_text(text[: text.rindex("\n") + 1])
        grow(run, 2)
        tab.get_by_text("iteration 2 of 1").wait_for()
        label = tab.locator("svg.chart").first.get_attribute("aria-label")
        assert label == "Return, last: training episodes 0.2"


def test_names_with_markup_are_text(tab: Any, new_run: NewRun, serve_page: Any, markup: str) -> None:
    run = new_run("first", iterations=1, said=markup)
    name = "<img src=x onerror=alert(1)>&amp;"
    run.rename(run.parent / name)
    with serve_page([run.parent]) as address:
        tab.goto(address)
        tab.get_by_role("link", name=name).click()
        assert tab.locator("h1").inner_text().startswith(name)
        tab.get_by_role("link", name="Episodes", exact=True).click()
        tab.locator("#episodes tr", has_text="max steps").locator("a.open").click()
        tab.wait_for_url("**/episode/2**")
        tab.locator("#film.on").wait_for()
        tab.keyboard.press("ArrowRight")
        assert markup in tab.locator(".step:visible .said > .tokens").inner_text()
        assert tab.locator("img").count() == 0


def test_no_page_is_wider_than_the_screen_in_light_and_dark(tab: Any, new_run: NewRun, serve_page: Any) -> None:
    run = new_run("first-with-a-rather-long-name-that-says-everything", iterations=2)
    with serve_page([run.parent]) as address:
        paths = ["", "/episodes", "/iteration/1/group/0", "/iteration/1/group/0/episode/1"]
        for path in ("/", *(f"/run/{run.name}{path}" for path in paths)):
            tab.goto(address + path)
            for width in (390, 1280):
                tab.set_viewport_size({"width": width, "height": 800})
                assert tab.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
        before = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        tab.keyboard.press("t")
        after = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert {before, after} == {"rgb(245, 246, 248)", "rgb(16, 21, 27)"}
        tab.keyboard.press("t")


def test_the_command_answers_on_loopback_with_a_token(tab: Any, new_run: NewRun) -> None:
    run = new_run("first", iterations=1)
    command = [sys.executable, "-m", "stratagem.cli", "view", "--page", "--no-browser", "--runs-dir", str(run.parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            match = re.fullmatch(r"(http://127\.0\.0\.1:(\d+)/)\?token=([\w-]{20,})", address)
            assert match is not None, address
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(match[1])
            assert refused.value.code == 403
            refused.value.close()
            tab.goto(address)
            assert tab.url == match[1]  # the token does not stay in the address
            assert [row[1] for row in cells(tab, "#runs")] == ["first"]
            table = Path(f"/proc/{process.pid}/net/tcp")
            if table.is_file():  # every listening socket of that port is 127.0.0.1, in hexadecimal from behind
                ends = [line.split()[1] for line in table.read_text().splitlines()[1:] if line.split()[3] == "0A"]
                assert [end for end in ends if end.endswith(f":{int(match[2]):04X}")] == [
                    f"0100007F:{int(match[2]):04X}"
                ]
        finally:
            process.send_signal(2)
            process.wait(15)
    assert process.returncode == 0
