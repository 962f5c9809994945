"""What the server answers, without a browser: who gets in, and pages of every kind of run."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

import stratagem.page
from stratagem.data.trajectories import read_trajectories, write_trajectories
from stratagem.errors import ConfigError
from stratagem.page.data import Library
from stratagem.page.server import bind, is_loopback, make_app
from stratagem.types import Generation, TrajectoryGroup

NewRun = Callable[..., Path]


def ask(runs: Path, path: str, *, token: str | None = None, any_host: bool = False, **headers: str) -> httpx.Response:
    """Ask the application itself."""
    transport = httpx.ASGITransport(make_app(Library([runs]), token=token, any_host=any_host))

    async def get() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1234") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(get())


def test_a_page_without_the_token_shows_nothing(new_run: NewRun, tmp_path: Path) -> None:
    new_run(iterations=0)
    runs = tmp_path / "runs"
    for path in ("/", "/run/first", "/stamp", "/static/page.js", "/?token=wrong"):
        answer = ask(runs, path, token="secret")
        assert (answer.status_code, "first" in answer.text) == (403, False), path
    answer = ask(runs, "/run/first?smooth=5&token=secret", token="secret")
    assert (answer.status_code, answer.headers["location"]) == (303, "/run/first?smooth=5")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=lax" in cookie.lower()
    assert ask(runs, "/run/first", token="secret", cookie=cookie.partition(";")[0]).status_code == 200


def test_the_token_leads_to_no_other_server(tmp_path: Path) -> None:
    answer = ask(tmp_path, "//elsewhere.example/x?token=secret", token="secret")
    assert answer.headers.get("location", "/").startswith("/") and not answer.headers["location"].startswith("//")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:80", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:80", 421),
    ],
)
def test_only_names_of_this_machine_are_answered(tmp_path: Path, host: str, status: int) -> None:
    assert ask(tmp_path, "/", Host=host).status_code == status
    assert ask(tmp_path, "/", any_host=True, Host=host).status_code == 200


def test_the_browser_is_told_to_run_nothing_from_elsewhere(tmp_path: Path) -> None:
    for path in ("/", "/run/none", "/static/page.css"):
        policy = ask(tmp_path, path).headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy


def test_no_page_names_another_server(new_run: NewRun, tmp_path: Path) -> None:
    run = new_run()
    paths = ["/", "/run/first", "/run/first/episodes", "/run/first/iteration/1/group/0/episode/1"]
    texts = [ask(tmp_path / "runs", path).text for path in paths]
    folder = Path(stratagem.page.__file__).parent
    texts += [path.read_text() for path in [*folder.glob("static/*"), *folder.glob("templates/*")]]
    for text in texts:
        assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}
    assert run.is_dir()


def test_loopback_is_known() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.8.9.1", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "example.com", "")] == [False] * 4


def test_a_taken_port_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = (
            f"--host 127.0.0.1 --port {port} cannot be opened (Address already in use); choose another --port, or "
            "leave it out for any that is free."
        )
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(("path", "asked"), [("/", "/stamp"), ("/run/first", "/stamp?run=first")])
def test_a_page_says_what_it_was_made_from(
    new_run: NewRun, grow: Callable[..., None], tmp_path: Path, path: str, asked: str
) -> None:
    # So that what is written between the page and its first question is not missed.
    run = new_run("first", iterations=1, finished=False)
    made_from = re.search(r'data-now="([^"]*)"', ask(tmp_path / "runs", path).text)
    assert made_from is not None and made_from[1]
    assert ask(tmp_path / "runs", asked).text == made_from[1]
    grow(run, 2)
    assert ask(tmp_path / "runs", asked).text != made_from[1]


def test_an_empty_folder_and_an_empty_run_are_shown(new_run: NewRun, tmp_path: Path) -> None:
    assert "No runs yet" in ask(tmp_path, "/").text
    new_run("empty", iterations=0)
    assert "empty" in ask(tmp_path / "runs", "/").text
    assert "Nothing yet" in ask(tmp_path / "runs", "/run/empty").text
    assert "No episodes here yet" in ask(tmp_path / "runs", "/run/empty/episodes").text


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/run/none", "There is no run &#39;none&#39; here; it may have been deleted or renamed."),
        ("/run/first/iteration/9/group/0/episode/0", "There is no group 0 with an episode 0 in iteration 9."),
        ("/run/first/iteration/1/group/7", "There is no group 7 in iteration 1."),
        ("/run/first/evaluation/final/x", "There are no episodes of panel &#39;x&#39; in evaluation &#39;final&#39;."),
        (
            "/run/first/evaluation/final/FrozenLake-NotSlippery/episode/99",
            "Evaluation &#39;final&#39; of panel &#39;FrozenLake-NotSlippery&#39; has no episode 99.",
        ),
        ("/run/first/episodes?from=x", "from=&#39;x&#39; in the address is no whole number."),
    ],
    ids=["run", "iteration", "group", "panel", "place", "number"],
)
def test_what_is_not_there_is_a_page_that_says_so(new_run: NewRun, tmp_path: Path, path: str, message: str) -> None:
    new_run()
    answer = ask(tmp_path / "runs", path)
    assert (answer.status_code, message in answer.text) == (404, True)


def test_a_damaged_run_is_still_a_page(new_run: NewRun, tmp_path: Path) -> None:
    run = new_run()
    for name in ("recipe.toml", "provenance.json", "summary.json", "trajectories/000003.parquet", "metrics.jsonl"):
        (run / name).write_bytes(b"\xff\xfe{")
    for path in ("/", "/run/first", "/run/first/episodes", "/run/first/iteration/1/group/0"):
        assert ask(tmp_path / "runs", path).status_code == 200, path
    assert "recipe.toml cannot be read" in ask(tmp_path / "runs", "/run/first").text


def test_what_was_said_before_an_action_is_shown_and_found(new_run: NewRun, tmp_path: Path) -> None:
    run = new_run(iterations=1)
    ((stored, *_),) = [read_trajectories(run / "trajectories")]
    episode = stored.group.trajectories[1]
    plan = Generation(role="high", completion="go <down> first", parse_error="no subtask")
    steps = (replace(episode.steps[0], generations=(plan,)), *episode.steps[1:])
    write_trajectories(run / "trajectories", 1, [TrajectoryGroup((replace(episode, steps=steps),))])
    text = ask(tmp_path / "runs", "/run/first/iteration/1/group/0/episode/0").text
    assert "high <small>names the subtask, 0 tokens</small>" in text
    assert "go &lt;down&gt; first" in text and "no subtask" in text
    assert "1 of 1 episodes" in ask(tmp_path / "runs", "/run/first/episodes?text=DOWN%3E+first").text


def test_names_and_texts_with_markup_are_escaped(new_run: NewRun, tmp_path: Path, markup: str) -> None:
    run = new_run(said=markup)
    odd = tmp_path / "runs" / "<b onclick=alert(1)>x&y"
    run.rename(odd)
    (odd / "recipe.toml").write_text(
        (odd / "recipe.toml").read_text().replace('"tiny"', f"'{markup}'").replace("ms_grpo", "<i>")
    )
    page = ask(tmp_path / "runs", "/").text
    url = re.search(r'href="(/run/[^"]+)"', page)
    assert url is not None
    paths = ["", "/episodes", "/iteration/1/group/0", "/iteration/1/group/0/episode/2"]
    for text in [page, *(ask(tmp_path / "runs", url[1] + path).text for path in paths)]:
        assert not {"<img", "<b onclick", "<i>"} & set(re.findall(r"<img|<b onclick|<i>(?=[^to/])", text))
        assert re.findall(r"<script[^>]*>", text) == ['<script src="/static/page.js" defer>']
