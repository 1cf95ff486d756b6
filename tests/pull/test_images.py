"""`ovserve pull --task image_generation`: a directory, and which files of a repository are fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovserve.calculators import MODULES
from ovserve.errors import LoadError
from ovserve.graph import Registry
from ovserve.pull.hub_files import RemoteFile, choose
from ovserve.pull.run import Wanted, pull
from ovserve.serving.loader import check_graph


def test_a_directory_becomes_a_graph(image_model: Path, tmp_path: Path) -> None:
    options = {"max_resolution": "512x512", "max_num_inference_steps": 60, "num_streams": 1}
    said: list[str] = []
    wanted = Wanted(
        str(image_model), tmp_path, name="art", options=options, task="image_generation", verify=True
    )
    directory = pull(wanted, said.append)
    text = (directory / "graph.pbtxt").read_text()
    assert 'max_resolution: "512x512"' in text
    assert "HTTP_REQUEST_PAYLOAD:input" in text
    _, engines = check_graph(directory, Registry(MODULES))
    assert set(engines) == {"pipes"}
    assert any("verified: loaded" in line for line in said)


def test_files_of_a_repository() -> None:
    wanted = (
        "model_index.json", "scheduler/scheduler_config.json", "tokenizer/openvino_tokenizer.xml",
        "tokenizer/vocab.json", "tokenizer/merges.txt", "unet/openvino_model.xml", "unet/openvino_model.bin",
    )  # fmt: skip
    others = ("unet/diffusion_pytorch_model.safetensors", "vae/model.onnx", "art.png", "README.md", "x.gguf")
    files = [RemoteFile(name, 1, "", large=False) for name in (*wanted, *others)]
    assert {file.name for file in choose("me/art", files)} == set(wanted)
    with pytest.raises(LoadError, match="optimum-cli export openvino"):
        choose("me/art", [file for file in files if "openvino_model" not in file.name])
