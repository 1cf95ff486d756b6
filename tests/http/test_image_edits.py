"""POST images/edits on the real server and library: an image, a mask in both forms, adapters, hostile files."""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from PIL import Image

from scripts.image_model import make, make_adapter
from tests.conftest import Server, start_process
from tests.images import graph, opened, pixels

LORA = (
    'lora_adapters { alias: "ink" path: "ink.safetensors" }',
    'lora_adapters { alias: "oil" path: "oil.safetensors" alpha: 0.5 }',
    'composite_lora_adapters { alias: "both" components { adapter_alias: "ink" alpha: 0.5 } components { adapter_alias: "oil" } }',
)

FIXED = 'resolution: "72x64"', "num_images_per_prompt: 2", "guidance_scale: 3", 'device: "CPU CPU CPU"'
FUSED = ('lora_adapters { alias: "inked" path: "../tiny/ink.safetensors" mode: FUSE }',)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("edits")
    make(place / "tiny")
    make(place / "blind", edits=False)
    (place / "tiny/graph.pbtxt").write_text(graph("./", 'max_resolution: "128x128"', *LORA))
    (place / "blind/graph.pbtxt").write_text(graph("./"))
    for seed, name in enumerate(("ink", "oil")):
        make_adapter(place / f"tiny/{name}.safetensors", seed=seed)
    for name, options in (("fixed", FIXED), ("fused", FUSED)):
        (place / name).mkdir()
        (place / name / "graph.pbtxt").write_text(graph("../tiny", *options))
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
    return httpx.post(f"{server.v3}/images/edits", json=body, timeout=230)


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


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as made:
        yield made


def test_openai_s_client_edits(client: openai.OpenAI, server: Server) -> None:
    source, mask = file(picture(96, 64)), file(halves("RGBA"))
    options = {"seed": 1, "num_inference_steps": 5, "guidance_scale": 3, "lora_alphas": '{"ink": 0.5}'}
    asked: Any = {"model": "tiny", "prompt": "a cat", "extra_body": options}
    plain = client.images.edit(image=("a.png", source), **asked)
    expected = drawn(server, image=url(source), guidance_scale=3, lora_alphas={"ink": 0.5})
    assert (pixels(plain.data[0].b64_json) == expected).all()
    masked = client.images.edit(image=[("a.png", source)], mask=("m.png", mask), n=2, size="96x64", **asked)
    expected = drawn(
        server, image=url(source), mask=url(mask), guidance_scale=3, lora_alphas={"ink": 0.5}, size="96x64"
    )
    assert (pixels(masked.data[0].b64_json) == expected).all()
    assert len(masked.data) == 2


def test_parameters_without_effect_are_listed(server: Server) -> None:
    response = post(server, image=url(file(picture(64, 64))), max_sequence_length=5, style="x")
    assert response.headers["x-ovserve-ignored-params"] == "max_sequence_length,style"


def test_openai_s_client_edits_in_a_stream(client: openai.OpenAI) -> None:
    stream = client.images.edit(
        model="tiny", prompt="a cat", image=("a.png", file(picture(64, 64))), stream=True, partial_images=1
    )
    kinds = [event.type for event in stream]
    assert kinds[-1] == "image_edit.completed"
    assert set(kinds) <= {"image_edit.partial_image", "image_edit.completed"}


@pytest.mark.parametrize(
    ("data", "files", "field", "part"),
    [
        ({}, [], "image", "image"),
        ({}, ["image", "image"], "image", "one"),
        ({}, ["image[]", "image[]"], "image[]", "one"),
        ({}, ["image", "image[]"], "image", "several"),
        ({"n": "x"}, ["image"], "n", "int"),
        ({"n": "1.5"}, ["image"], "n", "int"),
        ({"guidance_scale": "nan"}, ["image"], "guidance_scale", "float"),
        ({"guidance_scale": "9" * 18}, ["image"], "guidance_scale", "1000"),
        ({"stream": "maybe"}, ["image"], "stream", "bool"),
        ({"lora_alphas": "{"}, ["image"], "lora_alphas", "object"),
        ({"model": "none"}, ["image"], "model", "not served"),
    ],
)
def test_a_wrong_form(server: Server, data: dict[str, str], files: list[str], field: str, part: str) -> None:
    sent = [(name, ("a.png", file(picture(16, 16)), "image/png")) for name in files] or [("other", b"x")]
    body = {"model": "tiny", "prompt": "x", **data}
    response = httpx.post(f"{server.v3}/images/edits", data=body, files=sent)
    assert response.status_code in (400, 404), response.text
    assert response.json()["error"]["param"] == field
    assert part in response.json()["error"]["message"]


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
    response = httpx.post(f"{server.v3}/images/generations", json=asked, timeout=230)
    assert response.status_code == 200, response.text
    return pixels(response.json()["data"][0]["b64_json"])


def test_adapters_are_models_of_their_own(server: Server) -> None:
    listed = {m["id"]: m.get("parent") for m in httpx.get(f"{server.v3}/models").json()["data"]}
    assert listed == {
        **dict.fromkeys(("ink", "oil", "both"), "tiny"),
        **dict.fromkeys(("tiny", "blind", "fixed")),
        "inked": "fused",
    }
    assert httpx.get(f"{server.v3}/models/ink").json()["parent"] == "tiny"
    plain, ink, oil, both = (of(server, name) for name in ("tiny", "ink", "oil", "both"))
    for one, other in ((plain, ink), (plain, oil), (plain, both), (ink, oil), (ink, both), (oil, both)):
        assert np.abs(one - other).mean() > 3
    assert (of(server, "tiny") == plain).all(), "the base name turns all adapters off"
    by_hand = of(server, "tiny", lora_alphas={"ink": 0.5, "oil": 0.5})
    assert np.abs(by_hand - both).mean() < 3
    assert np.abs(of(server, "ink", lora_alphas={"ink": 0}) - plain).mean() < 3


def test_fused_adapters_answer_to_their_name_alone(server: Server) -> None:
    assert np.abs(of(server, "inked") - of(server, "ink")).mean() < 3
    response = post(server, model="fused", image=url(file(picture(64, 64))))
    assert response.status_code == 404
    assert "inked" in response.json()["error"]["message"]


def test_a_pipeline_of_one_shape(server: Server) -> None:
    asked = {"model": "fixed", "prompt": "a cat", "seed": 1, "num_inference_steps": 5}
    answer = httpx.post(f"{server.v3}/images/generations", json=asked, timeout=230).json()
    assert [opened(data["b64_json"]).size for data in answer["data"]] == [(72, 64)] * 2
    expected = of(server, "tiny", size="72x64", guidance_scale=3)
    assert np.abs(pixels(answer["data"][0]["b64_json"]) - expected).mean() < 3
    for change in ({"size": "64x64"}, {"guidance_scale": 4}, {"n": 3}):
        response = httpx.post(f"{server.v3}/images/generations", json={**asked, **change})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == next(iter(change))


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


def bomb() -> bytes:
    """A PNG of 50,000 x 50,000 white pixels in 2 kB: its header says so, and its data is cut."""
    image = file(Image.new("1", (64, 64), 1))
    head = b"IHDR" + (50_000).to_bytes(4, "big") * 2 + b"\x01\x00\x00\x00\x00"
    return image[:12] + head + zlib.crc32(head).to_bytes(4, "big") + image[33:]


@pytest.mark.parametrize(
    ("name", "data", "part"),
    [
        ("bomb", bomb(), "50000 x 50000"),
        ("text", b"hello", "not an image"),
        ("empty", b"", "not an image"),
        ("svg", b'<svg xmlns="http://www.w3.org/2000/svg"/>', "not an image"),
        ("cut", file(picture(96, 64))[:2000], "broken"),
        ("large", b"\x89PNG" + b"\0" * 20_000_001, "larger than"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
@pytest.mark.parametrize("field", ["image", "mask"])
def test_a_hostile_file_is_rejected(server: Server, field: str, name: str, data: bytes, part: str) -> None:
    body = {"image": url(file(picture(64, 64))), field: url(data)}
    response = post(server, **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == field
    assert part in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (file(picture(1, 1)), (8, 8)),
        (file(picture(2000, 2)), (128, 8)),
        (file(picture(300, 200, mode="CMYK"), "JPEG"), (128, 80)),
        (file(picture(64, 64, mode="RGBA"), "WEBP"), (64, 64)),
        (file(picture(40, 64).convert("P"), "GIF"), (40, 64)),
    ],
    ids=["1x1", "strip", "cmyk", "webp", "gif"],
)
def test_an_unusual_image_is_edited(server: Server, data: bytes, size: tuple[int, int]) -> None:
    assert drawn(server, image=url(data)).shape[1::-1] == size
    assert drawn(server, image=url(data), size="64x72").shape[:2] == (72, 64)


@pytest.mark.parametrize(
    ("body", "field", "part"),
    [
        ({"image": None}, "image", "null"),
        ({"image": 5}, "image", "str"),
        ({"image": "/etc/passwd"}, "image", "not allowed"),
        ({"image": "http://127.0.0.1/x.png"}, "image", "allow"),
        ({"strength": 1.5}, "strength", "1"),
        ({"strength": 0.1}, "strength", "of 5 steps leaves none"),
        ({"size": "60x60"}, "size", "multiples of 8"),
        ({"size": "256x64"}, "size", "128x128"),
        ({"n": 0}, "n", "1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_wrong_value_is_named(server: Server, body: dict[str, Any], field: str, part: str) -> None:
    response = post(server, **{"image": url(file(picture(64, 64))), **body})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == field
    assert part in response.json()["error"]["message"]


def test_capabilities_tell_the_limits(server: Server) -> None:
    (model,) = httpx.get(f"{server.v3}/capabilities", params={"model": "ink"}).json()["data"]
    (engine,) = model["engines"]
    assert engine["kind"] == "image"
    assert engine["facts"]["max_resolution"] == "128x128"
    assert engine["facts"]["tasks"] == ["generate", "edit", "inpaint"]
    assert engine["facts"]["model_names"] == ["both", "ink", "oil"]
