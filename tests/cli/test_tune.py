"""`ovserve tune` as a command, on scripted engines whose speed depends on their options; once on the real one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ovserve.cli import main
from ovserve.tools.tuning.graph_file import find
from tests.conftest import ROOT, script_graph

pytestmark = pytest.mark.long

WORDS = "one two three four five six seven eight"
SCRIPT = {
    "step_seconds": 0.004,
    "replies": [{"text": WORDS}],
    "variants": [
        {"options": {"max_num_batched_tokens": 2048}, "step_seconds": 0.0004},
        {"options": {"max_num_batched_tokens": 512}, "load": "fail"},
        {
            "options": {"max_num_batched_tokens": 1024},
            "step_seconds": 0.0,
            "text": WORDS.replace("five", "six"),
        },
    ],
}


def tune(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ovserve", "tune", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def test_the_fastest_is_written_with_the_evidence_above_it(tmp_path: Path) -> None:
    directory = script_graph(tmp_path / "g", json.dumps(SCRIPT))
    own = directory / "graph.pbtxt"
    text = own.read_text().replace("models_path", "# mine\n      models_path")
    own.write_text(text)
    (tmp_path / "new").mkdir()
    output = tmp_path / "new/graph.pbtxt"
    asked = (directory, "--for", "latency", "--budget", "60s", "--only", "batched_tokens")
    done = tune(*asked, "--output", output)
    assert done.returncode == 0, done.stderr

    told = {line.split("  ")[0]: line for line in done.stdout.partition("\n\n")[0].splitlines()}
    assert told["max_num_batched_tokens=2048"].endswith("taken")
    assert told["max_num_batched_tokens=512"].endswith("failed: the script says that loading fails")
    assert (
        "not taken: 4 of 4 answers differ, first at character 19: 'five six"
        in told["max_num_batched_tokens=1024"]
    )
    assert f"written: {output}" in done.stdout
    assert "greedy answers are the same" in done.stdout
    assert re.search(r"^the graph against itself +[- o:]*o[- :]*  \d\.\d\d$", done.stdout, re.MULTILINE)
    assert re.search(r"^ *\d+%  max_num_batched_tokens=2048$", done.stderr, re.MULTILINE)

    new, was = find(output).spec, find(directory).spec
    assert new.max_num_batched_tokens == 2048
    assert new.model_path == was.model_path
    comments, graph = output.read_text().split("\n\n# SmolLM2", 1)
    assert comments.startswith("# Tuned for latency by `ovserve tune`")
    assert "#   max_num_batched_tokens=512: not measured, failed: the script says" in comments
    assert '      # mine\n      models_path: "../g/model.script.json"\n' in graph
    assert own.read_text() == text

    again = tune(*asked, "--output", output)
    assert again.returncode == 1
    assert f"--output: {output} exists; --force would overwrite it" in again.stderr


def test_nothing_is_written_when_nothing_is_better(tmp_path: Path) -> None:
    script = json.dumps({"step_seconds": 0.003, "replies": [{"text": WORDS}]})
    directory = script_graph(tmp_path, script, 'engine: "genai"')
    done = tune(
        directory, "--for", "latency", "--budget", "30s", "--only", "split_fuse", "--allow_different_text"
    )
    assert done.returncode == 0, done.stderr
    assert "nothing is better than the graph as it is, so no graph was written" in done.stdout
    assert not (directory / "graph.tuned.pbtxt").exists()


def test_a_budget_too_short_for_anything_is_told(tmp_path: Path) -> None:
    done = tune(script_graph(tmp_path, "{}"), "--budget", "0.1s")
    assert done.returncode == 0, done.stderr
    assert "--budget was too short to try anything, so no graph was written" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--budget", "10"], "--budget: expected a time such as 90s, 10m or 2h, got '10'"),
        (["--concurrency", "1,x"], "--concurrency: expected numbers from 1"),
        (["--concurrency", "300"], "300 streams are more than the graph's max_num_seqs 256"),
        (["--only", "thread"], "--only: there is no 'thread'; known: weights, precision"),
        (["--node", "X"], "--node: no node 'X' with an engine"),
        (["--weights", "nowhere"], "--weights: nowhere does not exist"),
        (["--prompts", "nowhere"], "--prompts: nowhere cannot be read"),
        (["--output", "nowhere/g.pbtxt"], "--output: the directory nowhere does not exist"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_measured(
    tmp_path: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="1"):
        main(["tune", str(script_graph(tmp_path, "{}")), *arguments])
    said = capsys.readouterr().err
    assert says in said
    assert "%" not in said


def test_an_engine_that_does_not_load_is_told(tmp_path: Path) -> None:
    done = tune(script_graph(tmp_path, '{"load": "fail"}'), "--budget", "5s")
    assert done.returncode == 1
    assert "ovserve: the script says that loading fails" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_real_engine_takes_its_turns(model: Path, tmp_path: Path) -> None:
    """Which threads win is this machine's business; that engines played and were told of is ours."""
    output = tmp_path / "graph.pbtxt"
    done = tune(
        ROOT / "graphs/smollm2",
        "--for",
        "latency",
        "--budget",
        "120s",
        "--only",
        "threads,kv_cache",
        "--output",
        output,
    )
    assert done.returncode == 0, done.stderr
    told = {line.split("  ")[0]: line for line in done.stdout.partition("\n\n")[0].splitlines()}
    assert told["the graph as it is"].endswith("noise")
    # On a busy machine there may be no time for it, which is said then.
    assert re.search(
        r"^(not tried for lack of time: .*)?INFERENCE_NUM_THREADS=1\b", done.stdout, re.MULTILINE
    )
    assert "KV_CACHE_PRECISION=u8" in done.stdout
    if output.exists():
        assert find(output).spec.model_path == str(model.resolve())
    else:
        assert "so no graph was written" in done.stdout
