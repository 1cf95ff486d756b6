"""`ovserve bench` against a real server, what it asks, and its percentiles."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ovserve.tools.bench import Sample, jobs, lengths, summary, text
from tests.conftest import ROOT, Server, script_graph, start_server

SCRIPT = json.dumps(
    {
        "replies": [
            {"match": "fail", "refuse": "resource_exhausted"},
            {"match": "slow", "text": "word", "step_seconds": 4},
            {"text": "a b c d"},
        ]
    }
)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ovserve", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_server(script_graph(tmp_path_factory.mktemp("bench") / "g", SCRIPT), name="m")
    yield server
    server.stop()


def test_it_asks_as_often_as_told_and_fails_when_a_request_does(here: Server) -> None:
    done = bench(here.v3, "--model", "m", "--requests", "7", "--concurrency", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("7 answers, 0 failed")
    assert [line.split("  ")[0] for line in done.stdout.splitlines()[4:]] == [
        "first token",
        "between tokens",
        "whole answer",
    ]
    done = bench(here.v3, "--model", "m", "--requests", "3", "--prompt", "fail")
    assert done.returncode == 1
    assert done.stdout.startswith("0 answers, 3 failed")
    assert "failed 3 times: " in done.stdout
    assert "the script rejects this" in done.stdout


def test_nobody_there(here: Server) -> None:
    done = bench("http://127.0.0.1:9", "--model", "m", "--requests", "1")
    assert done.returncode == 1
    assert "ConnectionRefusedError" in done.stdout


def test_a_file_of_prompts_as_requests_come_with_json(here: Server, tmp_path: Path) -> None:
    """At 50 a second twenty come long before the slow ones have ended: the loop is open."""
    (tmp_path / "asked.txt").write_text('slow one\n{"prompt": "another"}\n')
    done = bench(
        here.v3, "--model", "m", "--requests", "20", "--rate", "50", "--prompts", str(tmp_path / "asked.txt"),
        "--max_tokens", "1-3", "--json", str(tmp_path / "out.json"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "out.json").read_text())
    assert (told["answers"], told["failed"], told["errors"], len(told["requests"])) == (20, 0, {}, 20)
    assert told["asked"]["rate"] == 50
    came = [one["began"] for one in told["requests"]]
    assert came == sorted(came)
    ended = [one["began"] + one["whole_answer"] / 1000 for one in told["requests"]]
    assert sum(end > max(came) for end in ended) > 4, "more are under way than clients of a closed loop"
    assert {one["tokens"] for one in told["requests"][1::2]} <= {1, 2, 3}
    assert told["tokens"] == sum(one["tokens"] for one in told["requests"])
    assert told["first_token"]["p50"] <= told["first_token"]["max"] <= told["whole_answer"]["max"]


def test_json_alone_can_be_the_output(here: Server) -> None:
    done = bench(here.v3, "--model", "m", "--requests", "2", "--prompt_words", "30", "--json", "-")
    told = json.loads(done.stdout)
    assert told["answers"] == 2
    assert told["prompt_tokens"] >= 60


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ftp://x"], "'ftp://x'"),
        (["http://x:99999"], "expected an address such as http://127.0.0.1:8000, got 'http://x:99999'"),
        (["http://x", "--requests", "0"], "--requests: expected at least 1, got 0"),
        (["http://x", "--rate", "0"], "--rate: expected more than 0"),
        (["http://x", "--rate", "2", "--concurrency", "2"], "--rate and --concurrency"),
        (["http://x", "--max_tokens", "9-3"], "--max_tokens: expected a number from 1"),
        (["http://x", "--prompt_words", "x"], "--prompt_words: expected a number from 1"),
        (
            ["http://x", "--prompt", "a", "--prompt_words", "9"],
            "--prompt and --prompt_words: give only one of them",
        ),
        (["http://x", "--prompts", "nowhere"], "--prompts: nowhere cannot be read"),
        (["http://x", "--json", "nowhere/x.json"], "--json: the directory nowhere does not exist"),
        (["http://x", "--json", "/"], "--json: / is a directory; name a file in it"),
    ],
)
def test_wrong_options_are_refused(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from ovserve.cli import main

    with pytest.raises(SystemExit, match="1"):
        main(["bench", *arguments, "--model", "m"])
    assert says in capsys.readouterr().err


def test_the_same_seed_asks_the_same() -> None:
    def made(seed: int) -> object:
        return jobs(50, [], (5, 50), prompt=(10, 90), rate=4.0, seed=seed)

    assert made(1) == made(1) != made(2)
    found = jobs(400, ["a", "b"], lengths("5-50", "--max_tokens"), rate=4.0)
    assert [job.prompt for job in found[:3]] == ["a", "b", "a"]
    assert {job.max_tokens for job in found} == set(range(5, 51))
    times = [job.at for job in found if job.at is not None]
    assert times == sorted(times)
    assert 80 < times[-1] < 125, "400 at 4 a second"
    assert {job.at for job in jobs(3, ["a"], (1, 1))} == {None}
    words = [job.prompt.split() for job in jobs(100, [], (1, 1), prompt=(10, 12))]
    assert {len(prompt) for prompt in words} == {10, 11, 12}
    assert len({prompt[0] for prompt in words}) == 100, "no two begin alike"


def test_percentiles() -> None:
    answers = [Sample(first=i / 1000, total=1.0, gaps=[0.002], tokens=10) for i in range(1, 101)]
    found = summary([*answers, Sample(error="503: no")], 10.0)
    lines, rows = text(found)
    assert lines == [
        "100 answers, 1 failed, in 10.00 s",
        "10.00 answers/s, 100.0 tokens/s",
        "failed: 503: no",
    ]
    assert rows[0] == ["first token", "51.0", "91.0", "100.0", "100.0"]
    assert rows[1] == ["between tokens", "2.0", "2.0", "2.0", "2.0"]
    assert text(summary([Sample(error="x")], 1.0))[1] == []
    assert text(summary([Sample(tokens=1)], 1.0))[1][1] == ["between tokens", "-", "-", "-", "-"]
