"""POST images/edits on the real server and library: an image, a mask in both forms, adapters, hostile files."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from scripts.image_model import make, make_adapter
from tests.conftest import Server, start_process
from tests.images import graph, pixels

LORA = (
    'lora_adapters { alias: "ink" path: "ink.safetensors" }',
    'lora_adapters { alias: "oil" path: "oil.safetensors" alpha: 0.5 }',
    'composite_lora_adapters { alias: "both" components { adapter_alias: "ink" alpha: 0.5 } components { adapter_alias: "oil" } }',
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("edits")
    make(place / "tiny")
    make(place / "blind", edits=False)
    (place / "tiny/graph.pbtxt").write_text(graph("./", 'max_resolution: "128x128"', *LORA))
    (place / "blind/graph.pbtxt").write_text(graph("./"))
    for seed, name in enumerate(("ink", "oil")):
        make_adapter(place / f"tiny/{name}.safetensors", seed=seed)
    server = start_process("--graphs_dir", str(place), "--metrics_enable")
    yield server
    server.stop()


def picture(*size: int, mode: str = "RGB") -> Image.Image:
    shape = (size[1], size[0], len(mode)) if len(mode) > 1 else (size[1], size[0])
    return Image.fromarray(np.random.default_rng(3).integers(0, 255, shape, np.uint8), mode)


def file(image: Image.Image, format_: str = "PNG") -> bytes:
    data = io.BytesIO()
    image.save(data, format_)
    return data.getvalue()


def url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def post(server: Server, **body: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": "a cat", "seed": 1, "num_inference_steps": 5, **body}
    return httpx.post(f"{server.v3}/images/edits", json=body, timeout=60)


def drawn(server: Server, **body: Any) -> Any:
    response = post(server, **body)
    assert response.status_code == 200, response.text
    return pixels(response.json()["data"][0]["b64_json"])


def halves(mode: str) -> Image.Image:
    """A mask that selects the left half: transparent there (RGBA), or white (L)."""
    values = np.full((64, 96, 4), 255, np.uint8) if mode == "RGBA" else np.zeros((64, 96), np.uint8)
    if mode == "RGBA":
        values[:, :48, 3] = 0
    else:
        values[:, :48] = 255
    return Image.fromarray(values, mode)


def test_json_edit(server: Server) -> None:
    source = url(file(picture(96, 64)))
    one, other = drawn(server, image=source), drawn(server, image=url(file(picture(96, 64).rotate(180))))
    assert one.shape == (64, 96, 3)
    assert (one != other).any()
    assert (drawn(server, image=source, strength=0.2) != one).any()


@pytest.mark.parametrize("mode", ["RGBA", "L"])
def test_a_mask(server: Server, mode: str) -> None:
    source, mask = url(file(picture(96, 64))), url(file(halves(mode)))
    cat, dog = (drawn(server, image=source, mask=mask, prompt=p) for p in ("a cat", "a dog"))
    assert cat.shape == (64, 96, 3)
    # The tiny VAE blends about a latent to each side of the edge.
    assert (cat[:, 64:] == dog[:, 64:]).all()
    assert np.abs(cat[:, :32] - dog[:, :32]).mean() > 5


def of(server: Server, model: str, **body: Any) -> Any:
    asked = {"model": model, "prompt": "a cat", "seed": 1, "num_inference_steps": 5, **body}
    response = httpx.post(f"{server.v3}/images/generations", json=asked, timeout=60)
    assert response.status_code == 200, response.text
    return pixels(response.json()["data"][0]["b64_json"])


def test_adapters_are_models_of_their_own(server: Server) -> None:
    listed = {m["id"]: m.get("parent") for m in httpx.get(f"{server.v3}/models").json()["data"]}
    assert listed == {"tiny": None, "blind": None, "ink": "tiny", "oil": "tiny", "both": "tiny"}
    assert httpx.get(f"{server.v3}/models/ink").json()["parent"] == "tiny"
    plain, ink, oil, both = (of(server, name) for name in ("tiny", "ink", "oil", "both"))
    for one, other in ((plain, ink), (plain, oil), (plain, both), (ink, oil), (ink, both), (oil, both)):
        assert np.abs(one - other).mean() > 3
    assert (of(server, "tiny") == plain).all(), "the base name turns all adapters off"
    by_hand = of(server, "tiny", lora_alphas={"ink": 0.5, "oil": 0.5})
    assert np.abs(by_hand - both).mean() < 3
    assert np.abs(of(server, "ink", lora_alphas={"ink": 0}) - plain).mean() < 3


def test_an_edit_has_the_adapter_of_its_own_request(server: Server) -> None:
    source = url(file(picture(96, 64)))
    plain = drawn(server, image=source)
    of(server, "ink")
    assert (drawn(server, image=source) == plain).all(), "the last call's adapter is off"
    ink = drawn(server, image=source, model="ink")
    assert np.abs(ink - plain).mean() > 3
    of(server, "tiny")
    assert (drawn(server, image=source, model="ink") == ink).all()


def test_an_adapter_that_is_not_there(server: Server) -> None:
    response = httpx.post(
        f"{server.v3}/images/generations", json={"model": "tiny", "prompt": "x", "lora_alphas": {"no": 1}}
    )
    assert response.status_code == 400
    assert "ink, oil" in response.json()["error"]["message"]


def test_a_model_that_cannot_edit_says_so(server: Server) -> None:
    response = post(server, model="blind", image=url(file(picture(64, 64))))
    assert response.status_code == 400
    assert "Image-to-image pipeline is not available" in response.json()["error"]["message"]
