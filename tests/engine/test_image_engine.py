"""The image engine on the real library: what ends its process elsewhere, and the options of a node."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ovserve.calculators.shipped import MODULES
from ovserve.engine.client.calls import CallClient, CallStream
from ovserve.engine.client.settings import EngineSettings
from ovserve.errors import EngineDead, LoadError
from ovserve.graph import Registry
from ovserve.kinds.images.spec import GENERATE, GenerateArguments, ImageFacts, ImageItem, ImageSpec
from ovserve.serving.loader import check_graph
from scripts.image_model import make, make_adapter
from tests.engine.conftest import FAST_RESTARTS
from tests.images import graph

SIZE = {"width": 64, "height": 64}


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("slow")
    make(directory, work=3)
    return directory


def draw(model: Path, raises: str) -> list[ImageItem]:
    """Items of one image whose partial images cannot be decoded."""
    from ovserve.engine.protocol.call_backend import Invocation
    from ovserve.engine.protocol.messages import Call
    from ovserve.kinds.images.worker.pipelines import Drawing, ImageBackend

    real = ImageBackend(ImageSpec(str(model)))._pipelines["generate"]

    class Pipeline:
        generate = real.generate

        def decode(self, latent: Any) -> Any:
            raise RuntimeError(raises)

    asked = GenerateArguments("a cat", [1], {**SIZE, "num_inference_steps": 10}, partial_images=1)
    return [
        item.value for item in Drawing(Pipeline(), asked, {}, Invocation(Call(1, GENERATE, b"", ()))).items()
    ]


def test_an_exception_in_a_step_leaves_the_process(slow: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # Of a model whose steps take 0.1 ms the library drops many callbacks.
    assert [item.kind for item in draw(slow, "no picture")] == ["image"]
    assert "no picture" in capfd.readouterr().err


async def last(stream: CallStream) -> None:
    while await stream.next() is not None:
        pass


async def test_kill_9(slow: Path) -> None:
    settings = EngineSettings(restarts=FAST_RESTARTS, ready_timeout=60.0, restart_wait=60.0)
    client = await CallClient.start(ImageSpec(str(slow)), settings)
    try:
        facts = client.facts
        assert isinstance(facts, ImageFacts)
        assert (facts.width, facts.height, facts.pipeline) == (64, 64, "StableDiffusionPipeline")
        arguments = GenerateArguments("a cat", [1], {**SIZE, "num_inference_steps": 10})
        whole = await client.call(GENERATE, arguments)
        await asyncio.sleep(0.2)
        os.kill(client.pid, signal.SIGKILL)
        item = await whole.next()  # nothing had been read, so it was sent again
        assert item is not None
        assert item.decode(ImageItem).kind == "image"
        assert await whole.next() is None
        streamed = await client.call(
            GENERATE, GenerateArguments("x", [1], arguments.options, partial_images=1)
        )
        assert (await streamed.next()) is not None
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineDead):
            await last(streamed)
    finally:
        await client.stop()


@pytest.mark.parametrize(
    ("options", "field", "part"),
    [
        (('device: "CPU GPU"',), "device", "got 2"),
        (('max_resolution: "big"',), "max_resolution", "WIDTHxHEIGHT"),
        (('default_resolution: "65x64"',), "default_resolution", "multiples of 8"),
        (('max_resolution: "64x64"', 'default_resolution: "64x72"'), "default_resolution", "exceeds"),
        (('resolution: "64x64"', 'max_resolution: "64x64"'), "max_resolution", "not with resolution"),
        (('resolution: "64x64 64x64"',), "resolution", "twice"),
        (('resolution: "auto"',), "resolution", "WIDTHxHEIGHT"),
        (('resolution: "64x64"', 'default_resolution: "72x64"'), "default_resolution", "not in resolution"),
        (("num_images_per_prompt: 2",), "num_images_per_prompt", "exactly one size"),
        (("guidance_scale: 2",), "guidance_scale", "exactly one size"),
        (("max_num_images_per_prompt: 0",), "max_num_images_per_prompt", "at least 1"),
        (("max_num_inference_steps: 0",), "default_num_inference_steps", "from 1"),
        (("default_num_inference_steps: 101",), "default_num_inference_steps", "which is 100"),
        (('device: "NPU"',), "resolution", "NPU"),
        (('plugin_config: "{"',), "plugin_config", "JSON"),
        (('lora_adapters { alias: "a" path: "none" }',), "lora_adapters", "does not exist"),
        (('lora_adapters { alias: "a" path: "a.st" }',) * 2, "lora_adapters", "alias of its own"),
        (
            ('composite_lora_adapters { alias: "c" components { adapter_alias: "b" } }',),
            "composite_lora_adapters",
            "'b'",
        ),
    ],
)
def test_a_wrong_option_is_named(
    image_model: Path, tmp_path: Path, options: tuple[str, ...], field: str, part: str
) -> None:
    make_adapter(tmp_path / "a.st")
    (tmp_path / "graph.pbtxt").write_text(graph(str(image_model), *options))
    with pytest.raises(LoadError) as caught:
        check_graph(tmp_path, Registry(MODULES))
    assert caught.value.field == field
    assert part in caught.value.reason
    assert caught.value.line


def test_a_directory_that_is_not_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "graph.pbtxt").write_text(graph("./"))
    with pytest.raises(LoadError, match=r"model_index\.json is missing"):
        check_graph(tmp_path, Registry(MODULES))
