"""A directory in OpenVINO IR form is a model too: made of two layers by the library itself, then served."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import Start, make_ir, read_all, request

from ovserve.errors import LoadError
from tests import short_model

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def directory(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """openvino_model.xml and its tokenizers, with the facts that a Hugging Face export adds, next to their source."""
    made = tmp_path_factory.mktemp("hf") / "model"
    short_model.write_gguf(model, made.with_name(model.name))
    make_ir(made.with_name(model.name), made)
    (made / "config.json").write_text(
        json.dumps({"max_position_embeddings": 8192, "architectures": ["Llama"]})
    )
    (made / "generation_config.json").write_text(json.dumps({"eos_token_id": [2], "temperature": 0.5}))
    (made / "tokenizer_config.json").write_text(
        json.dumps(
            {"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]}
        )
    )
    return made


async def test_the_directory_answers_like_the_gguf(start: Start, directory: Path, model: Path) -> None:
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    answers = []
    for path in (directory, directory.with_name(model.name)):
        client = await start(str(path), ready_timeout=60.0)
        answers.append(
            (await read_all(await client.generate(request(prompt, temperature=0, max_tokens=20))))[0]
        )
        await client.stop()
    assert answers[0] == answers[1] != ""


async def test_its_files_are_the_facts(start: Start, directory: Path) -> None:
    facts = (await start(str(directory), ready_timeout=60.0)).facts
    assert (facts.max_length, facts.architecture) == (8192, "Llama")
    assert (facts.chat_template, facts.tool_template) == ("D", "T")
    assert facts.generation_config["temperature"] == 0.5
    assert 2 in facts.eos_token_ids


async def test_files_of_two_models_are_named_as_such(start: Start, directory: Path, tmp_path: Path) -> None:
    """The process ended with a traceback, or the server with the fault of a request that nobody had made."""
    for name, spoil, why in (
        ("alone", lambda made: (made / "openvino_tokenizer.xml").unlink(), "openvino_tokenizer.xml was not"),
        (
            "other",
            lambda made: (made / "config.json").write_text('{"vocab_size": 2}'),
            "the model has 2 tokens",
        ),
    ):
        shutil.copytree(directory, made := tmp_path / name)
        spoil(made)
        with pytest.raises(LoadError, match=why) as caught:
            await start(str(made), ready_timeout=60.0)
        assert "last output" not in str(caught.value)
