"""`ovserve pull` as a command: its flags, and that what it makes is served."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from ovserve.cli import main
from tests.conftest import ROOT
from tests.pull import tiny_gguf
from tests.pull.conftest import Run


def test_what_is_pulled_is_loaded_and_listed(run: Run, tmp_path: Path) -> None:
    tiny = tiny_gguf.write(tmp_path / "tiny.gguf")
    done = run("pull", tiny, "--model_repository_path", tmp_path / "r", "--model_name", "some/m", "--verify")
    assert done.returncode == 0, done.stderr
    assert "verified: loaded in " in done.stdout
    assert "and goes on after 'The capital of France is' with 't'" in done.stdout
    printed = re.search(rf"^serve it: (.+) serve {tmp_path}/r/some/m$", done.stdout, re.MULTILINE)
    assert printed is not None, done.stdout
    checked = [*shlex.split(printed[1]), "check", str(tmp_path / "r/some/m")]
    assert subprocess.run(checked, cwd=ROOT, timeout=230, check=False).returncode == 0, "it is a command here"
    listed = run("models", tmp_path / "r").stdout
    line = next(line for line in listed.splitlines() if line.startswith("graph"))
    assert line.split()[:8] == ["graph", "some/m", "1", "MB", "LlamaForCausalLM", "512", "none", "none"]


def test_a_model_that_does_not_load_fails_the_verification(run: Run, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "openvino_model.xml").write_text("no model")
    done = run("pull", broken, "--model_repository_path", tmp_path / "r", "--verify")
    assert done.returncode == 1
    assert str(broken) in done.stderr or "openvino" in done.stderr


def test_it_is_written_as_for_ovms_too(run: Run, model: Path, tmp_path: Path) -> None:
    flags = ["--task", "text_generation", "--target_device", "GPU", "--cache_dir", "/tmp/c"]
    flags += ["--log_level", "DEBUG", "--model_repository_path", tmp_path / "r"]
    done = run("--pull", "--source_model", model, *flags)
    assert done.returncode == 0, done.stderr
    assert "--cache_dir has no effect: compiled models are kept by" in done.stderr
    assert "--log_level has no effect" in done.stderr
    assert 'device: "GPU"' in (tmp_path / "r" / model.stem / "graph.pbtxt").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["a", "--source_model", "b"], 1, "SOURCE and --source_model are the same"),
        ([], 1, "which model?"),
        (["smollm2", "--task", "speech"], 2, "text_generation"),
        (["smollm2", "--task", "rerank"], 1, "smollm2 is a model for text_generation, got rerank"),
        (["minilm", "--max_num_seqs", "2"], 1, "--max_num_seqs is not an option of the task embeddings"),
        (["minilm", "--convert"], 1, "--convert is for text generation"),
        (["smollm2", "--cache_size", "-1"], 2, "--cache_size: expected a whole number, got '-1'"),
        (["smollm2", "--enable_prefix_caching", "yes"], 2, "expected true or false, got 'yes'"),
        (["smollm2", "--engine", "PAGED"], 2, "expected one of genai, paged, got 'PAGED'"),
        (["smollm2", "--pipeline_type", "XX"], 2, "expected one of LM, LM_CB, VLM, VLM_CB, OMNI, AUTO"),
        (["smollm2", "--max_length", "9"], 1, "--max_length is not an option of text generation"),
        (["kokoro", "--vocoder", "x"], 2, "--vocoder is OVMS's and not an option here: SpeechT5 is not"),
        (["smollm2", "--draft_model_path", "/none"], 1, "/none"),
        (["smollm2", "--tool_praser", "x"], 2, "did you mean --tool_parser?"),
        (
            ["smollm2", "--weight-format", "int3"],
            2,
            "--weight-format: expected int8, int4, fp16, auto or source, got 'int3'",
        ),
    ],
)
def test_wrong_usage(arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pull", *arguments])
    assert ended.value.code == code
    assert says in capsys.readouterr().err
