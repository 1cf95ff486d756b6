"""`ovserve pull --task image_generation`: a directory, and which files of a repository are fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovserve.calculators.shipped import MODULES
from ovserve.errors import InvalidArgument, LoadError
from ovserve.graph import Registry
from ovserve.kinds.images.options import parse_image_options
from ovserve.pull.encoders import parse_loras
from ovserve.pull.hub import RemoteFile, choose
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


def test_adapters_and_guidance_reach_the_graph(image_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "paint/oil.safetensors"
    file.parent.mkdir()
    file.write_bytes(b"")
    options = {"resolution": "256x256", "guidance_scale": 2.5}
    wanted = Wanted(
        str(image_model),
        tmp_path,
        name="art",
        options=options,
        task="image_generation",
        loras=f"oil={file.parent}:0.8, ink={file}, mix=@ink:0.5+@oil",
    )
    text = (pull(wanted, lambda line: None) / "graph.pbtxt").read_text()
    assert "guidance_scale: 2.5," in text
    assert f'lora_adapters {{ alias: "oil" path: "{file}" alpha: 0.8 }}' in text
    graph, _ = check_graph(tmp_path / "art", Registry(MODULES))
    (node,) = graph.plan.nodes
    made = parse_image_options(node.node)
    assert made.limits.guidance == 2.5
    assert made.aliases["mix"] == pytest.approx({"ink": 0.5, "oil": 0.8}), "0.8 is the adapter's own"


@pytest.mark.parametrize(
    ("loras", "said"),
    [
        ("oil", "expected ALIAS=SOURCE, got 'oil'"),
        ("a b=x", "expected ALIAS=SOURCE"),
        ("a=x,a=y", "'a' is there twice"),
        ("mix=@a:0.5", "mix names 'a', which is not an adapter"),
        ("a=x,mix=@a+a", "a composite is"),
    ],
)
def test_a_list_of_adapters_that_is_wrong(loras: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse_loras(loras)


def test_adapters_are_for_image_models(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="--source_loras is for image_generation"):
        pull(Wanted("minilm", tmp_path, task="embeddings", loras="a=x"), lambda line: None)
