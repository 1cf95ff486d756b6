"""Directories that lack half of the files, or say the same thing in two places."""

import json
from pathlib import Path

import pytest

from ovserve.engine.model.files import ModelFiles, read_model_files
from ovserve.errors import LoadError


def read(tmp_path: Path, **files: object) -> ModelFiles:
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return read_model_files(str(tmp_path))


def test_an_empty_directory_says_nothing(tmp_path: Path) -> None:
    assert read(tmp_path) == ModelFiles()


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 4096, "n_ctx": 1, "sliding_window": 2}, 4096),
        ({"n_ctx": 512, "sliding_window": 256}, 512),
        ({"sliding_window": 256}, 256),
        ({"max_position_embeddings": None, "n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 77}}, 77),
        ({"text_config": {"max_position_embeddings": 77}, "seq_len": 5}, 77),
        ({"max_position_embeddings": "4096"}, None),
        ({"max_position_embeddings": True}, None),
    ],
)
def test_max_length(tmp_path: Path, config: object, length: int | None) -> None:
    assert read(tmp_path, config=config).max_length == length


def test_chat_template_file_wins_over_tokenizer_config(tmp_path: Path) -> None:
    assert read(tmp_path, tokenizer_config={"chat_template": "old"}).chat_template == "old"
    (tmp_path / "chat_template.jinja").write_text("new")
    assert read_model_files(str(tmp_path)).chat_template == "new"


def test_the_variant_for_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    found = read(tmp_path, tokenizer_config={"chat_template": named})
    assert (found.chat_template, found.tool_template) == ("d", "t")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": [*named[:1]]}))
    found = read_model_files(str(tmp_path))
    assert (found.chat_template, found.tool_template) == ("d", None)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/tool_use.jinja").write_text("file")
    assert read_model_files(str(tmp_path)).tool_template == "file"


def test_several_named_chat_templates(tmp_path: Path) -> None:
    templates = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    assert read(tmp_path, tokenizer_config={"chat_template": templates}).chat_template == "d"


@pytest.mark.parametrize(("ends", "ids"), [(2, (2,)), ([2, 7], (2, 7)), (None, ())])
def test_end_tokens(tmp_path: Path, ends: object, ids: tuple[int, ...]) -> None:
    files = read(tmp_path, config={"eos_token_id": 99}, generation_config={"eos_token_id": ends, "top_k": 5})
    assert files.end_token_ids == ids
    assert files.generation_config["top_k"] == 5


def test_broken_json_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LoadError, match=r"config\.json: not a JSON object"):
        read_model_files(str(tmp_path))


def test_a_template_that_cannot_be_read_names_the_file(tmp_path: Path) -> None:
    template = tmp_path / "chat_template.jinja"
    template.write_bytes(b"\xff{{ messages }}")
    with pytest.raises(LoadError, match=r"chat_template\.jinja: it is not UTF-8"):
        read_model_files(str(tmp_path))
    template.unlink()
    template.mkdir()
    with pytest.raises(LoadError, match=r"chat_template\.jinja: cannot be read: Is a directory"):
        read_model_files(str(tmp_path))


def test_another_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"x")
    with pytest.raises(LoadError, match=r"directory or a \.gguf file"):
        read_model_files(str(path))
