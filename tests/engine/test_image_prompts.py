"""Which prompts are cut: by which text encoder, from which length on. No pipeline is loaded."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ovserve.kinds.images.spec import GenerateArguments
from ovserve.kinds.images.worker.pipelines import Prompts, _Encoder
from scripts.image_model import make
from scripts.vision_parts import write_json

CLIP, T5 = ("transformers", "CLIPTextModel"), ("transformers", "T5EncoderModel")
LONG = "x" * 200


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    make(directory, edits=False)
    return directory / "tokenizer"


def prompts(place: Path, tokenizer: Path, pipeline: str, **encoders: tuple[str, str]) -> Prompts:
    for name in encoders:
        shutil.copytree(tokenizer, place / name.replace("text_encoder", "tokenizer"))
        (place / name).mkdir()
        write_json(place / name / "config.json", {"max_position_embeddings": 77} if name[-1] == "r" else {})
    write_json(place / "model_index.json", {"_class_name": pipeline, **encoders})
    return Prompts(place, 256)


def test_from_the_token_after_the_last_that_fits(tmp_path: Path, tokenizer: Path) -> None:
    import openvino_genai

    count = openvino_genai.Tokenizer(str(tokenizer)).encode
    fits = next(n for n in range(200) if count("x" * (n + 1)).input_ids.shape[1] > 77)
    checked = prompts(tmp_path, tokenizer, "StableDiffusionPipeline", text_encoder=CLIP)
    assert checked.cut(GenerateArguments("x" * fits, [1])) == ()
    assert checked.cut(GenerateArguments("x" * (fits + 1), [1])) == ("prompt",)
    assert checked.cut(GenerateArguments("", [1], {"negative_prompt": "\N{GRINNING FACE}" * 70})) == (
        "negative_prompt",
    )


@pytest.mark.parametrize(
    ("pipeline", "options", "cut"),
    [
        ("StableDiffusionXLPipeline", {"prompt_2": "a"}, ("prompt",)),
        ("StableDiffusionXLPipeline", {"negative_prompt_2": LONG}, ("negative_prompt_2", "prompt")),
        ("StableDiffusion3Pipeline", {"prompt_2": LONG}, ("prompt", "prompt_2")),
    ],
)
def test_each_encoder_reads_its_own_prompt(
    tmp_path: Path,
    tokenizer: Path,
    pipeline: str,
    options: dict[str, str | int | float],
    cut: tuple[str, ...],
) -> None:
    checked = prompts(tmp_path, tokenizer, pipeline, text_encoder=CLIP, text_encoder_2=CLIP)
    assert checked.cut(GenerateArguments(LONG, [1], options)) == cut
    assert checked.cut(GenerateArguments("a", [1], {"prompt_2": LONG})) == ("prompt_2",)


def test_t5_reads_as_many_tokens_as_the_request_says(tmp_path: Path, tokenizer: Path) -> None:
    checked = prompts(tmp_path, tokenizer, "FluxPipeline", text_encoder=CLIP, text_encoder_2=T5)
    for length, cut in ({}, ()), ({"max_sequence_length": 20}, ("prompt_2",)):
        assert checked.cut(GenerateArguments("a", [1], {"prompt_2": LONG, **length})) == cut
    assert checked.cut(GenerateArguments("a", [1], {"prompt_2": "x " * 400})) == ("prompt_2",)


@pytest.mark.parametrize(("tokens", "cut"), [(76, False), (77, True)])
def test_a_tokenizer_that_cuts_by_itself(tokens: int, cut: bool) -> None:
    mask = SimpleNamespace(data=np.ones((1, tokens)))
    tokenizer = SimpleNamespace(encode=lambda text: SimpleNamespace(attention_mask=mask))
    assert _Encoder(tokenizer, "", 77, whole=False).cuts(LONG, 77) == cut
